//! One step, as the core plans it and as its results come back. Plain values: the engine writes them into a frame.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{BlockId, HostBlockId, RequestId, Sampling, SlotId, StepId, TokenId};

/// What one step may hold at most: the capacities of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Slots of the persistent batch; rows and their drafts together, so that a step has no more draws than this.
    pub slots: u32,
    /// Tokens of all rows together.
    pub tokens: u32,
    /// Block appends.
    pub appends: u32,
    /// Blocks copied to the host's memory; 0: none ever is.
    pub saves: u32,
    /// Blocks copied back from there; 0: none ever is.
    pub loads: u32,
    /// Block copies.
    pub copies: u32,
    /// State moves.
    pub states: u32,
    /// Entries of all admitted requests' logit biases.
    pub biases: u32,
    /// Entries of all admitted requests' suppressed ids, and of those that are told.
    pub suppressed: u32,
    /// Tokens of all admitted requests with penalties.
    pub history: u32,
    /// Prompt tokens that are scored, beside all draws; 0: no request may ask for that.
    pub scores: u32,
    /// Prompt tokens that only hold the places of embeddings; 0: no request may have any.
    pub embeds: u32,
}

/// One step of one worker group. Applied by the worker in the order of the fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Counted from 1, without gaps, within a worker's epoch.
    pub step: StepId,
    /// Slots whose requests have left.
    pub drops: Vec<SlotId>,
    /// Requests that enter a slot. Their block table is empty before `appends`.
    pub admits: Vec<Admit>,
    /// Blocks put into slots' tables, in order.
    pub appends: Vec<Append>,
    /// Blocks copied to the host's memory, before anything of this step writes a block.
    pub saves: Vec<Save>,
    /// Blocks copied back from there, before anything of this step reads a block, but for `saves`.
    pub loads: Vec<Load>,
    /// Copies of KV between blocks, in order, before any row of this step writes.
    pub copies: Vec<Copy>,
    /// Where the rows' recurrent states come from and go to, slot by slot and kind by kind in the order of the tokens.
    pub states: Vec<StateMove>,
    /// What is computed; each slot at most once. None in a step that only moves blocks between tiers.
    pub rows: Vec<Row>,
    /// The known tokens of all rows, one row after the other.
    pub tokens: Vec<TokenId>,
}

/// A request that enters a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Admit {
    /// The slot.
    pub slot: SlotId,
    /// Which request it is (for the engine's own books; the worker never learns it).
    pub request: RequestId,
    /// Tokens of the prompt, but for those that only hold the places of embeddings: those after them are output, for the penalties.
    pub prompt_len: u32,
    /// Below this number of known tokens, `suppressed` cannot be drawn.
    pub suppress_until: u32,
    /// The stop ids, while `min_tokens` is not reached; else empty.
    #[serde(with = "crate::snapshot::shared")]
    pub suppressed: Arc<[TokenId]>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Prompt and output so far, if the request has penalties, but for tokens that only hold places; else empty.
    pub history: Vec<TokenId>,
}

/// A block put into a slot's table: at its end, or, of a kind that keeps not all blocks, behind a hole. What a window has
/// passed is told by nobody: a worker never reads behind it, and finds there what has long been another one's. Kinds with a
/// state have no table: see [`StateMove`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// Whose table.
    pub slot: SlotId,
    /// The kind of layers that it is for, as it stands in [`crate::CoreConfig::kinds`].
    pub kind: u32,
    /// Its place: the block is for the tokens from `at * block_size` on.
    pub at: u32,
    /// The block.
    pub block: BlockId,
}

/// A full block, copied from the device to the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    /// Source.
    pub from: BlockId,
    /// Target.
    pub to: HostBlockId,
}

/// A full block, copied from the host's memory to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Source.
    pub from: HostBlockId,
    /// Target.
    pub to: BlockId,
}

/// How a row's recurrent state moves from block to block. The row's tokens up to `until`, from where the move before it
/// ended or from the row's start, are computed on from the state in `from`, and the state after them stays in `to`.
///
/// What is left in `from` must not be written, unless it is `to` itself: others may find it. In `to` the slot's state
/// stays, and rows without a move go on from there in place. A kernel that writes states in the midst of a row
/// (`StateMode::All`) takes all moves of a row at once; in the other modes a row has one at most, and it reaches to the
/// row's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateMove {
    /// The slot, which has a row in this step.
    pub slot: SlotId,
    /// The kind of layers.
    pub kind: u32,
    /// Where the state before these tokens is; none: it is zero, whatever the block `to` contains. B:KV1.
    pub from: Option<BlockId>,
    /// Where the state after them goes.
    pub to: BlockId,
    /// The absolute position behind the last of these tokens.
    pub until: u32,
}

/// The first `tokens` tokens of a block, copied to another one of the same kind (a partial prefix hit).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Source.
    pub from: BlockId,
    /// Target.
    pub to: BlockId,
    /// How many tokens' KV.
    pub tokens: u32,
}

/// Some tokens of one request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The slot.
    pub slot: SlotId,
    /// Absolute position of the row's first token: how many tokens of the request have KV before it.
    pub start: u32,
    /// Tokens of this row, at least 1.
    pub count: u32,
    /// Those of them that stand in `Plan::tokens`: `count`, or `count - 1` if the last one is not known yet. That one
    /// is what the slot's latest sampling row draws (one step ahead).
    pub known: u32,
    /// Its last tokens that are drafts: a token is drawn after the last one before them, and after each of them. Never if
    /// the row does not sample, if one of its tokens is not known, or while another step with a row of the slot is in flight.
    pub drafts: u32,
    /// Whether a token is drawn after the row's last token.
    pub samples: bool,
    /// Whether it is drawn within a mask: then it may come back without a token. Never if the row does not sample.
    pub masked: bool,
    /// Whether the request's tokens end with this row and become a vector. Never if the row samples.
    pub pools: bool,
    /// Its last tokens, without the one that it draws behind, that are scored: each tells how likely the prompt token after it was.
    /// Never if it has drafts, or if one of its tokens is not known.
    pub scores: u32,
    /// The prompt token after the row's last one, if that is scored.
    pub next: Option<TokenId>,
    /// Its first tokens that only hold the places of embeddings. Never if it pools.
    pub embeds: u32,
}

impl Plan {
    /// The drafts of all rows, one row after the other.
    pub fn drafts(&self) -> impl Iterator<Item = TokenId> + '_ {
        let mut end = 0;
        self.rows.iter().flat_map(move |row| {
            end += row.known as usize;
            self.tokens[end - row.drafts as usize..end].iter().copied()
        })
    }
}

impl Row {
    /// How many results it has: one, and one for each draft.
    pub fn results(&self) -> usize {
        1 + self.drafts as usize
    }
}

/// Results of one step, in the order of its rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepResults {
    /// Which step.
    pub step: StepId,
    /// How long the worker computed, in microseconds; 0 if nobody measured it.
    pub took_us: u32,
    /// One entry per row, and one more for each of its drafts, in the order of the tokens that are drawn; `None` where the
    /// row does not sample, or where its mask did not come in time.
    pub draws: Vec<Option<RowResult>>,
    /// The vectors of the rows that pool, in their order.
    pub vectors: Vec<Box<[f32]>>,
    /// What rows scored, in the order of rows and tokens.
    pub scores: Vec<crate::TokenScore>,
}

/// What was drawn after one token.
#[derive(Debug, Clone, PartialEq)]
pub struct RowResult {
    /// The token.
    pub token: TokenId,
    /// Its log-probability and the likeliest ones', if the request asked.
    pub logprobs: Option<Box<crate::TokenLogprobs>>,
}
