//! The records of a frame. Every field is 4 bytes wide, so Python sees each region as a matrix of int32 or float32.
//!
//! A change here changes `RECORDS_CHECKSUM`, and peers of other builds refuse each other at the handshake.

use std::mem::{offset_of, size_of};

use bytemuck::{Pod, Zeroable};

use crate::checksum::Checksum;

/// First word of a memory: "PLTN" in bytes.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"PLTN");
/// Counts meanings that the layout alone does not show.
pub const FRAME_VERSION: u32 = 5;

/// `Admit::flags`: the request has penalties, and `history` counts.
pub const ADMIT_PENALTIES: u32 = 1;
/// `Admit::flags`: log-probabilities of drawn tokens are wanted.
pub const ADMIT_LOGPROBS: u32 = 1 << 1;
/// `Row::flags`: a token is drawn after the row's last token, and after those before it that `drafts` says.
pub const ROW_SAMPLES: u32 = 1;
/// `Row::flags`, with `ROW_SAMPLES`: it is drawn within its slot's mask of this step, or not at all.
pub const ROW_MASKED: u32 = 1 << 1;
/// `Row::flags`, alone: the request's tokens end with this row, and become one vector.
pub const ROW_POOLS: u32 = 1 << 2;
/// Result flags: the row's logits, or its vector, were not finite.
pub const RESULT_NOT_FINITE: u32 = 1;
/// Result flags: nothing was drawn, since the row's mask did not come in time or said so.
pub const RESULT_UNSAMPLED: u32 = 1 << 1;
/// `ResultHeader::status`: the results count.
pub const STATUS_OK: u32 = 0;
/// `ResultHeader::status`: the worker could not compute the step.
pub const STATUS_FAILED: u32 = 1;

/// Declares a record and gives its shape (bytes, then the offset of every field) to the checksum.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident = $words:literal words { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == 4 * $words && align_of::<$name>() == 4);

        impl $name {
            /// Words of 4 bytes in one record.
            pub const WORDS: usize = $words;
            const SHAPE: &[u32] = &[size_of::<Self>() as u32, $(offset_of!(Self, $field) as u32,)*];
        }
    };
}

record! {
    /// What a memory is: the first two lines of the preamble. The counters follow on lines of their own.
    Preamble = 22 words {
        /// `MAGIC`.
        magic: u32,
        /// `FRAME_VERSION`.
        version: u32,
        /// `RECORDS_CHECKSUM`, lower half.
        records_checksum_lo: u32,
        /// Upper half.
        records_checksum_hi: u32,
        /// `Layout::checksum`, lower half.
        layout_checksum_lo: u32,
        /// Upper half.
        layout_checksum_hi: u32,
        /// Counts the lives of the worker.
        epoch: u32,
        /// Frames.
        frames: u32,
        /// Slots, and rows of a step.
        slots: u32,
        /// Tokens of a step.
        tokens: u32,
        /// Block appends of a step.
        appends: u32,
        /// Block copies of a step.
        copies: u32,
        /// Biases of all admits of a step.
        biases: u32,
        /// Suppressed ids of all admits of a step.
        suppressed: u32,
        /// History tokens of all admits of a step.
        history: u32,
        /// Likeliest tokens that are reported per row.
        top_logprobs: u32,
        /// Blocks that a step saves to host memory.
        saves: u32,
        /// Blocks that a step loads from there.
        loads: u32,
        /// Dimensions of a pooled vector.
        pooled_width: u32,
        /// Prompt tokens that a step scores.
        scores: u32,
        /// Prompt tokens of a step that are given as embeddings.
        embeds: u32,
        /// Dimensions of one.
        embed_width: u32,
    }
}

record! {
    /// How many records the plan's regions hold, and their checksum.
    FrameHeader = 19 words {
        /// The step, counted from 1 within an epoch: lower half.
        step_lo: u32,
        /// Upper half.
        step_hi: u32,
        /// The epoch, as in the preamble.
        epoch: u32,
        /// Records in `drops`.
        drops: u32,
        /// Records in `admits`.
        admits: u32,
        /// Records in `appends`.
        appends: u32,
        /// Records in `copies`.
        copies: u32,
        /// Records in `biases`.
        biases: u32,
        /// Ids in `suppressed`.
        suppressed: u32,
        /// Tokens in `history`.
        history: u32,
        /// Records in `rows`.
        rows: u32,
        /// Tokens in `tokens`.
        tokens: u32,
        /// Over this header with both halves zero, then over the used words of each region in order: lower half.
        checksum_lo: u32,
        /// Upper half.
        checksum_hi: u32,
        /// 1: some row's request asked for likeliest tokens, and the result carries them; else 0.
        top: u32,
        /// Records in `saves`.
        saves: u32,
        /// Records in `loads`.
        loads: u32,
        /// Records of each region of the result: one for each row, and one more for each of its drafts and scores.
        draws: u32,
        /// Records in `embeds`: those of all rows.
        embeds: u32,
    }
}

record! {
    /// A request that enters a slot.
    Admit = 24 words {
        /// The slot.
        slot: u32,
        /// `ADMIT_*`.
        flags: u32,
        /// 0: the likeliest token.
        temperature: f32,
        /// 0: all.
        top_k: u32,
        /// 1: all.
        top_p: f32,
        /// 0: all.
        min_p: f32,
        /// 1: none.
        repetition: f32,
        /// 0: none.
        presence: f32,
        /// 0: none.
        frequency: f32,
        /// Seed of the request's noise: lower half.
        seed_lo: u32,
        /// Upper half.
        seed_hi: u32,
        /// Tokens to report beside each that is drawn: the likeliest, or those that are told.
        top_logprobs: u32,
        /// Tokens of the prompt.
        prompt_len: u32,
        /// Below this many known tokens the suppressed ids cannot be drawn.
        suppress_until: u32,
        /// Its part of `biases`: first.
        bias_offset: u32,
        /// How many.
        bias_count: u32,
        /// Its part of `suppressed`: first.
        suppress_offset: u32,
        /// How many. Behind them stand those that are told.
        suppress_count: u32,
        /// Its part of `history`: first.
        history_offset: u32,
        /// How many.
        history_count: u32,
        /// Likeliest tokens to report in the place of each prompt token that is scored.
        score_top: u32,
        /// How many tokens of its own choice are reported, in this order, in the place of the likeliest: none or `top_logprobs`.
        told_count: u32,
        /// Zero.
        zero: [u32; 2],
    }
}

record! {
    /// One entry of a request's logit bias.
    Bias = 2 words {
        /// The token.
        token: u32,
        /// Added to its logit.
        value: f32,
    }
}

record! {
    /// A block put into one of a slot's tables, of which it has one for each kind of layers. What is not put is a hole.
    Append = 4 words {
        /// Whose table.
        slot: u32,
        /// Of which kind of layers.
        kind: u32,
        /// Where: the block is for the tokens from `at` times the block size on.
        at: u32,
        /// The block.
        block: u32,
    }
}

record! {
    /// A whole block, copied to host memory.
    Save = 2 words {
        /// Source, on the device.
        block: u32,
        /// Target, in host memory.
        host_block: u32,
    }
}

record! {
    /// A whole block, copied back from host memory.
    Load = 2 words {
        /// Source, in host memory.
        host_block: u32,
        /// Target, on the device.
        block: u32,
    }
}

record! {
    /// The first `tokens` tokens of one block, copied to another.
    Copy = 4 words {
        /// Source.
        from: u32,
        /// Target.
        to: u32,
        /// Tokens.
        tokens: u32,
        /// Zero.
        zero: u32,
    }
}

record! {
    /// Some tokens of one slot's request.
    Row = 11 words {
        /// The slot.
        slot: u32,
        /// Absolute position of the first token.
        start: u32,
        /// Tokens, at least 1.
        count: u32,
        /// Those that stand in `tokens`: `count`, or one less.
        known: u32,
        /// Where they begin in `tokens`: the running sum of `known`.
        token_offset: u32,
        /// `ROW_*`.
        flags: u32,
        /// First token of the row in the step's flat order: the running sum of `count`.
        row_offset: u32,
        /// Its last tokens that are drafts: a token is drawn after the last one before them, and after each of them. Only if
        /// it samples, has no mask, and all of its tokens are known.
        drafts: u32,
        /// Its last tokens that are scored, without the one that it draws behind: each says how likely the token that follows it was,
        /// by the raw logits. All of them are known, and the row neither pools nor has drafts. Its results begin with these: `sampled`
        /// is the rank of the token that follows, counted from 1, `chosen_logprob` its log-probability.
        scores: u32,
        /// What follows the row's last token if that is scored, so only if the row does not sample; else 0.
        next: u32,
        /// Its first tokens that only hold the places of embeddings: theirs stand in `embeds`, behind those of the rows before. All of
        /// them are known, and none is a draft; the row does not pool.
        embeds: u32,
    }
}

record! {
    /// Whose results these are, and their checksum.
    ResultHeader = 16 words {
        /// The step: lower half.
        step_lo: u32,
        /// Upper half.
        step_hi: u32,
        /// The epoch, as in the plan.
        epoch: u32,
        /// Rows, as in the plan.
        rows: u32,
        /// `STATUS_*`.
        status: u32,
        /// How long the worker took.
        duration_us: u32,
        /// Over this header with both halves zero, then over the used words of each region in order: lower half.
        checksum_lo: u32,
        /// Upper half.
        checksum_hi: u32,
        /// As in the plan: whether likeliest tokens are carried.
        top: u32,
        /// As in the plan: the first one of a row stands at its number, and as many places on as the rows before it have drafts and scores.
        draws: u32,
        /// 1: some row of the plan pools, and vectors are carried; else 0.
        pooled: u32,
        /// Zero.
        zero: [u32; 5],
    }
}

/// Names the shape of all records: equal in two builds exactly when their records are laid out alike.
pub const RECORDS_CHECKSUM: u64 = Checksum::new()
    .absorb(&[MAGIC, FRAME_VERSION])
    .absorb(Preamble::SHAPE)
    .absorb(FrameHeader::SHAPE)
    .absorb(Admit::SHAPE)
    .absorb(Bias::SHAPE)
    .absorb(Append::SHAPE)
    .absorb(Save::SHAPE)
    .absorb(Load::SHAPE)
    .absorb(Copy::SHAPE)
    .absorb(Row::SHAPE)
    .absorb(ResultHeader::SHAPE)
    .finish();

// What Python's columns rely on, asserted field by field where a number is written down on the other side.
const _: () = assert!(offset_of!(Admit, temperature) == 2 * 4 && offset_of!(Admit, seed_lo) == 9 * 4);
const _: () = assert!(offset_of!(Admit, prompt_len) == 12 * 4 && offset_of!(Admit, history_count) == 19 * 4);
const _: () = assert!(offset_of!(Row, token_offset) == 4 * 4 && offset_of!(Row, row_offset) == 6 * 4);
const _: () = assert!(offset_of!(FrameHeader, checksum_lo) == 12 * 4 && offset_of!(ResultHeader, checksum_lo) == 6 * 4);
