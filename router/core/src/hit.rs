//! How much of a text is there already: the longest start of it that every kind of layers can serve.
//!
//! A full kind needs every block from the first one on, a window only those that the next token sees, a state only the
//! one that stands right before it. Tokens within a block count where blocks can be copied in part.
//!
//! Never here: requests, who holds what is found.

use crate::keys::Key;
use crate::kinds::{KINDS_MAX, Kinds};
use crate::prefix::PrefixIndex;
use crate::table::Table;
use crate::tiers::Found;
use crate::{BlockId, HostBlockId};

/// What of a request's known tokens has KV already. At most all but one: the last token must be computed to draw the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    /// How many full blocks of tokens.
    pub(crate) places: usize,
    /// Those of their blocks that are on the device, shared: of each kind those that it needs.
    pub(crate) table: Table,
    /// The others, place by place.
    pub(crate) loads: Vec<LowerBlock>,
    /// The start of the next block, to be copied.
    pub(crate) partial: Option<Partial>,
}

impl Hit {
    pub(crate) fn none(kinds: &Kinds) -> Self {
        Self { places: 0, table: Table::new(kinds.count()), loads: Vec::new(), partial: None }
    }

    fn put(&mut self, kind: usize, at: usize, found: Found) {
        match found {
            Found::Device(block) => self.table.put(kind, at, block),
            Found::Host(from) => self.loads.push(LowerBlock { kind, at, from }),
        }
    }

    /// How many full blocks of tokens come before the first one that is not on the device.
    pub(crate) fn unbroken(&self) -> usize {
        self.loads.first().map_or(self.places, |first| first.at)
    }

    /// What has to be brought back for a kind and place, if anything has.
    pub(crate) fn load(&self, kind: usize, at: usize) -> Option<HostBlockId> {
        let load = self.loads.binary_search_by_key(&(at, kind), |load| (load.at, load.kind)).ok()?;
        Some(self.loads[load].from)
    }

    /// Only its first `places` places. Of a model whose layers are all full.
    pub(crate) fn cut(&mut self, places: usize) {
        self.table.truncate(places);
        self.loads.retain(|load| load.at < places);
        self.places = places;
    }
}

/// A block that is found below the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LowerBlock {
    pub(crate) kind: usize,
    pub(crate) at: usize,
    pub(crate) from: HostBlockId,
}

/// The start of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partial {
    /// Which block's, by kind.
    pub(crate) sources: Vec<BlockId>,
    /// How many tokens.
    pub(crate) tokens: u32,
}

/// The longest start of at most `places_max` full blocks that every kind can serve. `look` finds the block of a kind and
/// place; it is asked once for each.
pub(crate) fn longest(
    kinds: &Kinds,
    block_size: u32,
    places_max: usize,
    mut look: impl FnMut(usize, usize) -> Option<Found>,
) -> Hit {
    let mut hit = Hit::none(kinds);
    let mut end = places_max;
    for kind in kinds.full() {
        let mut at = 0;
        while at < end
            && let Some(found) = look(kind, at)
        {
            hit.put(kind, at, found);
            at += 1;
        }
        end = at;
    }
    if kinds.count() > 1 || kinds.has_bounded() {
        end = shorten(kinds, block_size, end, &mut hit, look);
        drop_what_nobody_needs(kinds, block_size, end, &mut hit);
    }
    hit.loads.sort_unstable_by_key(|load| (load.at, load.kind));
    hit.places = end;
    hit
}

/// Goes back from `end` until all bounded kinds have what they need right before it.
fn shorten(
    kinds: &Kinds,
    block_size: u32,
    mut end: usize,
    hit: &mut Hit,
    mut look: impl FnMut(usize, usize) -> Option<Found>,
) -> usize {
    let mut lowest = [end; KINDS_MAX]; // from here to `end` the kind's blocks are there, or nothing was asked
    'shorter: loop {
        for kind in kinds.bounded() {
            let needed = kinds.first_needed(kind, tokens(end, block_size));
            let mut at = lowest[kind].min(end);
            while at > needed {
                at -= 1;
                lowest[kind] = at;
                match look(kind, at) {
                    Some(found) => hit.put(kind, at, found),
                    None => {
                        end = at;
                        continue 'shorter;
                    }
                }
            }
        }
        return end;
    }
}

fn drop_what_nobody_needs(kinds: &Kinds, block_size: u32, end: usize, hit: &mut Hit) {
    let first_needed = |kind| kinds.first_needed(kind, tokens(end, block_size));
    for kind in 0..kinds.count() {
        for at in 0..first_needed(kind) {
            hit.table.take(kind, at);
        }
    }
    hit.table.truncate(end);
    hit.loads.retain(|load| (first_needed(load.kind)..end).contains(&load.at));
}

fn tokens(places: usize, block_size: u32) -> u32 {
    u32::try_from(places).expect("blocks are counted by u32") * block_size
}

/// The start of the block behind `parent` that every kind has, if blocks can be copied in part at all: of each kind the
/// block with most tokens in common with `rest`.
pub(crate) fn partial(kinds: &Kinds, index: &PrefixIndex, parent: Key, rest: &[u32]) -> Option<Partial> {
    if !kinds.can_be_copied() {
        return None;
    }
    let mut common = rest.len();
    let mut sources = Vec::with_capacity(kinds.count());
    for kind in 0..kinds.count() {
        let (source, tokens) = index.longest_child(kind, parent, rest)?;
        common = common.min(tokens);
        sources.push(source);
    }
    Some(Partial { sources, tokens: u32::try_from(common).expect("less than a block") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::keys::{KeyChain, KeyMaker};
    use crate::{Kind, StateMode, TokenId};

    const BLOCK_SIZE: u32 = 3;

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            2 => Just(Kind::Full),
            2 => (1u32..9).prop_map(|tokens| Kind::Window { tokens }),
            1 => prop_oneof![Just(StateMode::All), Just(StateMode::Align)].prop_map(|mode| Kind::State { mode }),
        ]
    }

    /// What is there, as plain texts: of a kind, the block that ends with them.
    type There = BTreeSet<(usize, Vec<TokenId>)>;

    /// Whether every token that is read from behind the first `places` blocks of `text` is there.
    fn is_served(kinds: &[Kind], there: &There, text: &[TokenId], places: usize) -> bool {
        let end = places * BLOCK_SIZE as usize;
        let has = |kind, token: usize| {
            let block_end = (token / BLOCK_SIZE as usize + 1) * BLOCK_SIZE as usize;
            there.contains(&(kind, text[..block_end].to_vec()))
        };
        kinds.iter().enumerate().all(|(number, kind)| match kind {
            Kind::Full => (0..end).all(|token| has(number, token)),
            Kind::Window { tokens } => (0..end).all(|token| end - token >= *tokens as usize || has(number, token)),
            Kind::State { .. } => end == 0 || has(number, end - 1),
        })
    }

    proptest! {
        /// The oracle is a plain set of texts: the hit is the longest start from which all that is read is there.
        #[test]
        fn a_hit_is_the_longest_start_that_every_kind_can_serve(
            list in prop::collection::vec(any_kind(), 1..4),
            texts in prop::collection::vec(prop::collection::vec(0u32..2, 0..24), 1..5),
            lost in prop::collection::vec(0u32..96, 0..24),
            asked in prop::collection::vec(0u32..2, 0..24),
        ) {
            let kinds = Kinds::new(&list, BLOCK_SIZE);
            let maker = KeyMaker::new([1, 2], BLOCK_SIZE as usize);
            let mut index = PrefixIndex::new(512, BLOCK_SIZE as usize);
            let mut entered = Vec::new();
            for text in &texts {
                let mut chain = KeyChain::new(None);
                for at in 0..text.len() / BLOCK_SIZE as usize {
                    let filling = &text[at * BLOCK_SIZE as usize..][..BLOCK_SIZE as usize];
                    let (parent, key) = (chain.key(&maker, text, at), chain.key(&maker, text, at + 1));
                    for kind in 0..list.len() {
                        let block = BlockId(u32::try_from(entered.len()).expect("few"));
                        let beyond = (at + 1) * BLOCK_SIZE as usize;
                        if index.insert_full(block, kind, parent, key, filling, filling.len()) {
                            entered.push((block, kind, text[..beyond].to_vec()));
                        }
                    }
                }
            }
            for lost in lost {
                if !entered.is_empty() {
                    let (block, ..) = entered.swap_remove(lost as usize % entered.len());
                    index.forget(block);
                }
            }
            index.check();
            let there: There = entered.iter().map(|(_, kind, text)| (*kind, text.clone())).collect();
            let places_max = asked.len() / BLOCK_SIZE as usize;
            let expected = (0..=places_max)
                .rev()
                .find(|&places| is_served(&list, &there, &asked, places))
                .expect("nothing is needed before the first token");

            let mut chain = KeyChain::new(None);
            let mut looks = BTreeSet::new();
            let hit = longest(&kinds, BLOCK_SIZE, places_max, |kind, at| {
                assert!(looks.insert((kind, at)), "one look for each block");
                // Some of them stand for blocks of the host's memory: where a block is makes no difference to the hit.
                let block = index.find(kind, chain.key(&maker, &asked, at + 1))?;
                Some(if block.0 % 3 == 0 { Found::Host(HostBlockId(block.0)) } else { Found::Device(block) })
            });
            prop_assert_eq!(hit.unbroken(), hit.loads.iter().map(|load| load.at).min().unwrap_or(expected));
            prop_assert_eq!(hit.places, expected);
            let end = tokens(expected, BLOCK_SIZE);
            for kind in 0..list.len() {
                for at in 0..places_max {
                    let is_needed = (kinds.first_needed(kind, end)..expected).contains(&at);
                    let there = (hit.table.get(kind, at).is_some(), hit.load(kind, at).is_some());
                    prop_assert_eq!(there.0 || there.1, is_needed, "kind {} at {}", kind, at);
                    prop_assert!(!(there.0 && there.1));
                }
            }
        }
    }
}
