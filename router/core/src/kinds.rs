//! Kinds of layers, by what they keep of the tokens behind them: all of it, a window, or a state.
//!
//! All kinds take equal blocks from one pool. Each has a row of its own in a request's table; block `at` belongs to the
//! tokens from `at * block_size` on. What a kind reads no more is given back, and its place in the table is a hole.
//!
//! A state is treated as a window of two tokens: to compute a token one needs what is left of the token before it, and
//! nothing else. The block of a state holds the state after the last token that was computed of its place, so a block whose
//! place is full holds the state after an aligned position, and that one can be found again.
//!
//! Never here: which blocks, whose. Arithmetic alone.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Kinds that a model may have.
pub const KINDS_MAX: usize = 16;

/// What some of a model's layers keep in blocks. The layers of a model are divided into kinds so that a block of each
/// takes the same bytes: of a model whose windows outnumber its full layers, several kinds may be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Attention to all tokens: every block is kept.
    Full,
    /// Attention to the latest tokens: blocks are freed as the window passes.
    Window {
        /// How many tokens one sees, itself included; at least 1.
        tokens: u32,
    },
    /// A recurrent state, one block each time it is kept. It begins as zeros. B:KV1.
    State {
        /// Which states are kept for others.
        mode: StateMode,
    },
}

/// Which states of a request can be found by later ones. What is computed is the same in each mode. C:K8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateMode {
    /// None: a request has one block for good, and nothing of a model with such layers is ever found.
    None,
    /// Those after each full block of tokens. The worker can write states in the midst of a row.
    All,
    /// Those after rows that end with a full block: prompts are cut so that they do.
    Align,
}

/// The most blocks that a request of so many tokens holds, if it computes them in the smallest steps.
pub fn blocks_at(kinds: &[Kind], block_size: u32, tokens: u32) -> u32 {
    Kinds::new(kinds, block_size).blocks_at(tokens)
}

/// The kinds of a model, with what is asked of them all the time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Kinds {
    block_size: u32,
    list: [Kind; KINDS_MAX],
    count: usize,
    fulls: u32,
    tables: u32,
    states: u32,
    growing: u32,
}

impl Kinds {
    pub(crate) fn new(kinds: &[Kind], block_size: u32) -> Self {
        assert!((1..=KINDS_MAX).contains(&kinds.len()), "{} kinds; allowed: 1 to {KINDS_MAX}", kinds.len());
        assert!(!kinds.contains(&Kind::Window { tokens: 0 }), "a token sees itself at least");
        let mut list = [Kind::Full; KINDS_MAX];
        list[..kinds.len()].copy_from_slice(kinds);
        let count =
            |what: fn(&Kind) -> bool| u32::try_from(kinds.iter().filter(|kind| what(kind)).count()).expect("few");
        Self {
            block_size,
            list,
            count: kinds.len(),
            fulls: count(|kind| *kind == Kind::Full),
            tables: count(|kind| !matches!(kind, Kind::State { .. })),
            states: count(|kind| matches!(kind, Kind::State { .. })),
            growing: count(|kind| matches!(kind, Kind::Window { .. } | Kind::State { mode: StateMode::All })),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The kinds by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Kind)> {
        self.list[..self.count].iter().copied().enumerate()
    }

    /// Those that keep every block.
    pub(crate) fn full(&self) -> impl Iterator<Item = usize> {
        self.iter().filter(|(_, kind)| *kind == Kind::Full).map(|(number, _)| number)
    }

    /// The others: what a request holds of them has a bound.
    pub(crate) fn bounded(&self) -> impl Iterator<Item = usize> {
        self.iter().filter(|(_, kind)| *kind != Kind::Full).map(|(number, _)| number)
    }

    /// Those whose blocks the worker is told of as a table.
    pub(crate) fn in_tables(&self) -> impl Iterator<Item = usize> {
        self.iter().filter(|(_, kind)| !matches!(kind, Kind::State { .. })).map(|(number, _)| number)
    }

    /// How many these are.
    pub(crate) fn tables(&self) -> u32 {
        self.tables
    }

    /// Those with a state, and how it is kept.
    pub(crate) fn with_state(&self) -> impl Iterator<Item = (usize, StateMode)> {
        self.iter().filter_map(|(number, kind)| match kind {
            Kind::State { mode } => Some((number, mode)),
            _ => None,
        })
    }

    /// Whether all that there is is full attention, as of most models.
    pub(crate) fn is_plain(&self) -> bool {
        self.count == 1 && self.fulls == 1
    }

    /// How many these are.
    pub(crate) fn states(&self) -> u32 {
        self.states
    }

    pub(crate) fn fulls(&self) -> u32 {
        self.fulls
    }

    pub(crate) fn has_bounded(&self) -> bool {
        self.fulls as usize != self.count
    }

    /// Of how many kinds a row wants one more block for each block of its tokens, though they keep not all of them.
    pub(crate) fn growing(&self) -> u32 {
        self.growing
    }

    /// The one that speaks for all where only one can: the first full one, if there is any.
    pub(crate) fn leading(&self) -> usize {
        self.full().next().unwrap_or(0)
    }

    /// Whether anything computed can be found again.
    pub(crate) fn can_be_found(&self) -> bool {
        !self.list[..self.count].contains(&Kind::State { mode: StateMode::None })
    }

    /// Whether a request can go on in the midst of a block: a state is there after full blocks only.
    pub(crate) fn can_be_copied(&self) -> bool {
        self.states == 0
    }

    /// Whether rows have to end with a full block where they can.
    pub(crate) fn cuts_rows(&self) -> bool {
        self.list[..self.count].contains(&Kind::State { mode: StateMode::Align })
    }

    /// The first place of which a token behind `tokens` others needs the block.
    pub(crate) fn first_needed(&self, kind: usize, tokens: u32) -> usize {
        let window = match self.list[kind] {
            Kind::Full | Kind::State { mode: StateMode::None } => return 0,
            Kind::Window { tokens } => tokens,
            Kind::State { .. } => 2,
        };
        ((tokens + 1).saturating_sub(window) / self.block_size) as usize
    }

    /// The places whose blocks a row writes that computes the tokens from `start` to `end`.
    pub(crate) fn written(&self, kind: usize, start: u32, end: u32) -> Range<usize> {
        let first = (start / self.block_size) as usize;
        let beyond = end.div_ceil(self.block_size) as usize;
        match self.list[kind] {
            Kind::Full | Kind::Window { .. } | Kind::State { mode: StateMode::All } => first..beyond,
            Kind::State { mode: StateMode::Align } => beyond - 1..beyond,
            Kind::State { mode: StateMode::None } => 0..1,
        }
    }

    /// Whether the block at a full place has all that it may keep of its tokens, right after a row has ended behind
    /// `committed` tokens. The state of a row that passes the end of the place is written elsewhere.
    pub(crate) fn is_kept(&self, kind: usize, at: usize, committed: u32) -> bool {
        self.list[kind] != (Kind::State { mode: StateMode::Align })
            || (at + 1) * self.block_size as usize == committed as usize
    }

    /// The most blocks that a request holds with so many tokens, if it computes them in the smallest steps: those of a
    /// block each, and none ahead of another.
    pub(crate) fn blocks_at(&self, tokens: u32) -> u32 {
        let places = tokens.div_ceil(self.block_size);
        let mut blocks = places.saturating_mul(self.fulls);
        if self.has_bounded() {
            for kind in self.bounded() {
                blocks = blocks.saturating_add(places.min(self.bound(kind)));
            }
        }
        blocks
    }

    fn bound(&self, kind: usize) -> u32 {
        let window = match self.list[kind] {
            Kind::Full => u32::MAX,
            Kind::Window { tokens } => tokens,
            Kind::State { mode: StateMode::None } => 1,
            Kind::State { .. } => 2,
        };
        (window - 1).div_ceil(self.block_size).saturating_add(1) // wherever in a block it begins
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Full),
            (1u32..12).prop_map(|tokens| Kind::Window { tokens }),
            prop_oneof![Just(StateMode::All), Just(StateMode::Align), Just(StateMode::None)]
                .prop_map(|mode| Kind::State { mode }),
        ]
    }

    proptest! {
        /// Lives through a request in rows of a block each, and counts the blocks that are needed for each row.
        #[test]
        fn a_request_never_needs_more_blocks_than_foreseen_and_once_needs_them_all(
            kind in any_kind(), block_size in 1u32..6, tokens in 1u32..60,
        ) {
            let kinds = Kinds::new(&[kind], block_size);
            let mut worst = 0;
            let (mut start, mut places) = (0, std::collections::BTreeSet::new());
            while start < tokens {
                let end = ((start / block_size + 1) * block_size).min(tokens);
                places.extend(kinds.written(0, start, end));
                worst = worst.max(places.len());
                start = end;
                places.retain(|&place| place >= kinds.first_needed(0, start));
            }
            prop_assert!(worst <= kinds.blocks_at(tokens) as usize);
            // Rows of a token each need the bound itself: a window may begin in the midst of a block.
            let (mut worst, mut places) = (0, std::collections::BTreeSet::new());
            for start in 0..tokens + 2 * block_size * 12 {
                places.extend(kinds.written(0, start, start + 1));
                worst = worst.max(places.len());
                places.retain(|&place| place >= kinds.first_needed(0, start + 1));
            }
            prop_assert_eq!(worst, kinds.blocks_at(tokens + 2 * block_size * 12) as usize);
        }

        #[test]
        fn what_a_window_needs_is_where_its_tokens_are(window in 1u32..12, block_size in 1u32..6, tokens in 0u32..60) {
            let kinds = Kinds::new(&[Kind::Window { tokens: window }], block_size);
            let oldest_seen = (0..=tokens).find(|seen| tokens - seen < window).expect("a token sees itself");
            prop_assert_eq!(kinds.first_needed(0, tokens), (oldest_seen / block_size) as usize);
        }
    }
}
