//! Between the core's values and a frame's records: a plan is flattened, results are put back in the order of rows.

use pelton_core::{Limits, Plan, RowResult, StepId, StepResults, TokenId, TokenLogprobs, accepted};
use pelton_frame as frame;

use crate::BadFrames;

/// The frames of a ring: one that runs, one queued ahead, one being written, one whose results are being read.
const FRAMES: u32 = 4;

/// Bytes that one step saves, about: at 10 GB/s 3 ms, on top of a step that takes tens.
const SAVE_BYTES: u64 = 32 << 20;
/// Bytes that one step loads, about. More, since a request waits for them, and computing them would take far longer.
const LOAD_BYTES: u64 = 128 << 20;
/// Blocks that a step saves or loads, however large they are: less would never get done.
const MOVES_MIN: u32 = 4;
/// However small they are.
const MOVES_MAX: u32 = 1024;

/// Prompt and output of one request at most.
pub(crate) const CONTEXT_MAX: u32 = 1 << 20;

/// Capacities for so many slots: of the requests that may run at once, and of drafts. Arrays that are not used cost address space only.
pub(crate) fn capacities(slots: u32, token_budget: u32) -> frame::Capacities {
    frame::Capacities {
        frames: FRAMES,
        slots,
        tokens: token_budget,
        // The longest context in blocks of 16, found in the cache at once.
        appends: CONTEXT_MAX / 16,
        copies: slots,
        // Eight requests with the most biases that the API allows may be admitted in one step.
        biases: 8 * 1024,
        suppressed: 32 * 128,
        // The longest context, with penalties.
        history: CONTEXT_MAX,
        top_logprobs: 20,
        pooled_width: 0, // the link makes it that of the model
        saves: MOVES_MAX,
        loads: MOVES_MAX,
    }
}

/// The same bounds as the core knows them.
pub(crate) fn limits(capacities: &frame::Capacities, block_bytes: u64) -> Limits {
    let moves = |bytes: u64, most: u32| {
        let blocks = bytes.checked_div(block_bytes).unwrap_or(u64::MAX);
        u32::try_from(blocks).unwrap_or(u32::MAX).clamp(MOVES_MIN, MOVES_MAX).min(most)
    };
    Limits {
        slots: capacities.slots,
        tokens: capacities.tokens,
        appends: capacities.appends,
        saves: moves(SAVE_BYTES, capacities.saves),
        loads: moves(LOAD_BYTES, capacities.loads),
        copies: capacities.copies,
        states: 0, // frames carry none: no worker has layers with a state yet
        biases: capacities.biases,
        suppressed: capacities.suppressed,
        history: capacities.history,
    }
}

/// Room for one flattened plan, used again for every step.
#[derive(Default)]
pub(crate) struct Flattened {
    drops: Vec<u32>,
    admits: Vec<frame::Admit>,
    biases: Vec<frame::Bias>,
    suppressed: Vec<u32>,
    history: Vec<u32>,
    appends: Vec<frame::Append>,
    saves: Vec<frame::Save>,
    loads: Vec<frame::Load>,
    copies: Vec<frame::Copy>,
    rows: Vec<frame::Row>,
}

impl Flattened {
    /// Lays the plan out as records. The view borrows from both.
    pub(crate) fn fill<'a>(&'a mut self, plan: &'a Plan) -> frame::PlanView<'a> {
        self.clear();
        self.drops.extend(plan.drops.iter().map(|slot| slot.0));
        for admit in &plan.admits {
            let record = self.admit(admit);
            self.admits.push(record);
        }
        self.appends.extend(plan.appends.iter().map(|append| frame::Append {
            slot: append.slot.0,
            kind: append.kind,
            at: append.at,
            block: append.block.0,
        }));
        self.saves.extend(plan.saves.iter().map(|save| frame::Save { block: save.from.0, host_block: save.to.0 }));
        self.loads.extend(plan.loads.iter().map(|load| frame::Load { host_block: load.from.0, block: load.to.0 }));
        self.copies.extend(plan.copies.iter().map(|copy| frame::Copy {
            from: copy.from.0,
            to: copy.to.0,
            tokens: copy.tokens,
            zero: 0,
        }));
        let (mut token_offset, mut row_offset) = (0, 0);
        for row in &plan.rows {
            self.rows.push(frame::Row {
                slot: row.slot.0,
                start: row.start,
                count: row.count,
                known: row.known,
                token_offset,
                flags: u32::from(row.samples) * frame::ROW_SAMPLES
                    + u32::from(row.masked) * frame::ROW_MASKED
                    + u32::from(row.pools) * frame::ROW_POOLS,
                row_offset,
                drafts: row.drafts,
            });
            token_offset += row.known;
            row_offset += row.count;
        }
        frame::PlanView {
            step: plan.step.0,
            drops: &self.drops,
            admits: &self.admits,
            biases: &self.biases,
            suppressed: &self.suppressed,
            history: &self.history,
            appends: &self.appends,
            saves: &self.saves,
            loads: &self.loads,
            copies: &self.copies,
            rows: &self.rows,
            tokens: &plan.tokens,
        }
    }

    fn clear(&mut self) {
        self.drops.clear();
        self.admits.clear();
        self.biases.clear();
        self.suppressed.clear();
        self.history.clear();
        self.appends.clear();
        self.saves.clear();
        self.loads.clear();
        self.copies.clear();
        self.rows.clear();
    }

    fn admit(&mut self, admit: &pelton_core::Admit) -> frame::Admit {
        let sampling = &admit.sampling;
        let (bias_offset, suppress_offset, history_offset) =
            (self.biases.len(), self.suppressed.len(), self.history.len());
        self.biases.extend(sampling.logit_bias.iter().map(|&(token, value)| frame::Bias { token, value }));
        self.suppressed.extend_from_slice(&admit.suppressed);
        self.history.extend_from_slice(&admit.history);
        let mut flags = 0;
        if sampling.has_penalties() {
            flags |= frame::ADMIT_PENALTIES;
        }
        if sampling.logprobs.is_some() {
            flags |= frame::ADMIT_LOGPROBS;
        }
        frame::Admit {
            slot: admit.slot.0,
            flags,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            seed_lo: low(sampling.seed),
            seed_hi: low(sampling.seed >> 32),
            top_logprobs: sampling.logprobs.unwrap_or(0),
            prompt_len: admit.prompt_len,
            suppress_until: admit.suppress_until,
            bias_offset: word(bias_offset),
            bias_count: word(sampling.logit_bias.len()),
            suppress_offset: word(suppress_offset),
            suppress_count: word(admit.suppressed.len()),
            history_offset: word(history_offset),
            history_count: word(admit.history.len()),
            zero: [0; 4],
        }
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("masked to 32 bits")
}

fn word(value: usize) -> u32 {
    u32::try_from(value).expect("the core keeps plans within a frame's capacities, which are u32")
}

/// What the engine remembers of a step in flight: how to read its results.
pub(crate) struct InFlight {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<InFlightRow>,
    pub(crate) drafts: Vec<TokenId>, // of all rows, one row after the other
    pub(crate) tokens: u32,
    pub(crate) submitted: std::time::Instant,
}

/// One row of a step in flight.
#[derive(Clone, Copy)]
pub(crate) struct InFlightRow {
    pub(crate) request: pelton_core::RequestId,
    pub(crate) slot: u32,
    pub(crate) samples: bool,
    pub(crate) drafts: u32,
    pub(crate) pools: bool,
    pub(crate) mask: RowMask,
    pub(crate) logprobs: Option<u32>,
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// What became of a row's mask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowMask {
    /// It has none, or it was asked for.
    Settled,
    /// It can be asked for now: all tokens before the draw were known when the step was planned.
    Due,
    /// It can be asked for when the step before has come back.
    Later,
    /// The row before it drew nothing: this one counts for nothing.
    Void,
}

impl InFlight {
    /// KV blocks that the step's requests fill, those that they share counted for each.
    pub(crate) fn blocks(&self, block_size: u32) -> u32 {
        self.rows.iter().map(|row| (row.start + row.count).div_ceil(block_size)).sum()
    }

    /// Who was computed, and which of its tokens: "7[30..31] 9[0..64]".
    pub(crate) fn requests(&self) -> String {
        let row = |row: &InFlightRow| format!("{}[{}..{}]", row.request.0, row.start, row.start + row.count);
        self.rows.iter().map(row).collect::<Vec<_>>().join(" ")
    }
}

/// What is wrong with what a worker has written: the worker is replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Garbage {
    #[error(transparent)]
    Frame(#[from] frame::FrameError),
    #[error(transparent)]
    Commit(#[from] pelton_core::CommitError),
    #[error("step {step}: the worker drew token {token}; the vocabulary ends at {vocab_size}")]
    Token { step: u64, token: u32, vocab_size: u32 },
    #[error("step {step}: the logits of request {} are not finite", request.0)]
    NotFinite { step: u64, request: pelton_core::RequestId },
}

impl Garbage {
    /// Adds one to the counter of its kind.
    pub(crate) fn count(&self, frames: &mut BadFrames) {
        use frame::FrameError::{Checksum, Counter, Header, WorkerFailed};
        let counter = match self {
            Self::Frame(Checksum { .. }) => &mut frames.checksum,
            Self::Frame(Header { field: "step" | "epoch", .. }) | Self::Commit(_) => &mut frames.stale,
            Self::Frame(Counter { .. }) => &mut frames.unasked,
            Self::Frame(WorkerFailed { .. }) => &mut frames.failed,
            Self::Frame(_) | Self::Token { .. } | Self::NotFinite { .. } => &mut frames.contents,
        };
        *counter += 1;
    }
}

/// Results in the order of rows and draws, and the requests whose logits were not finite where it counts.
pub(crate) fn read(
    step: &InFlight,
    results: &frame::Results,
    vocab_size: u32,
) -> Result<(StepResults, Vec<pelton_core::RequestId>), Garbage> {
    assert_eq!(results.step, step.step.0, "the port has checked it");
    let mut not_finite = Vec::new();
    let top_width = results.top.len() / results.sampled.len().max(1);
    let pooled_width = results.pooled.len() / results.sampled.len().max(1);
    let (mut draws, mut vectors) = (Vec::with_capacity(results.sampled.len()), Vec::new());
    let mut drafts = step.drafts.as_slice();
    for row in &step.rows {
        let first = draws.len();
        if row.pools {
            let vector = &results.pooled[first * pooled_width..][..pooled_width];
            // JSON has no word for a number that is none: it is not left to the flag alone.
            if results.flags[first] & frame::RESULT_NOT_FINITE != 0 || vector.iter().any(|number| !number.is_finite()) {
                not_finite.push(row.request);
            }
            vectors.push(vector.into());
        }
        let (its_drafts, others) = drafts.split_at(row.drafts as usize);
        drafts = others;
        // Behind a draft that was not drawn nothing means anything.
        let drawn = results.sampled[first..=first + its_drafts.len()].iter().copied();
        let counts = first..=first + accepted(its_drafts, drawn);
        for index in first..=first + its_drafts.len() {
            if !row.samples {
                draws.push(None);
                continue;
            }
            if results.flags[index] & frame::RESULT_UNSAMPLED != 0 {
                draws.push(None); // if it has no mask, the core does not believe it
                continue;
            }
            let token = results.sampled[index];
            if token >= vocab_size {
                return Err(Garbage::Token { step: results.step, token, vocab_size });
            }
            if results.flags[index] & frame::RESULT_NOT_FINITE != 0 && counts.contains(&index) {
                not_finite.push(row.request);
            }
            let logprobs = row.logprobs.map(|top| {
                let top = results.top[index * top_width..][..top_width].iter().take(top as usize).copied().collect();
                Box::new(TokenLogprobs { chosen: results.chosen[index], top })
            });
            draws.push(Some(RowResult { token, logprobs }));
        }
    }
    Ok((StepResults { step: step.step, took_us: results.duration_us, draws, vectors }, not_finite))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use pelton_core::{Admit, Append, BlockId, HostBlockId, Load, RequestId, Row, Sampling, Save, SlotId};

    use super::*;

    fn admit(slot: u32, bias: &[(u32, f32)], suppressed: &[u32], history: &[u32]) -> Admit {
        Admit {
            slot: SlotId(slot),
            request: RequestId(u64::from(slot)),
            prompt_len: 3,
            suppress_until: 5,
            suppressed: Arc::from(suppressed),
            sampling: Sampling { logit_bias: bias.to_vec(), seed: 0x1_0000_0002, ..Sampling::greedy() },
            history: history.to_vec(),
        }
    }

    fn plain(slot: u32, start: u32, count: u32, known: u32) -> Row {
        let slot = SlotId(slot);
        Row { slot, start, count, known, drafts: 0, samples: false, masked: false, pools: false }
    }

    #[test]
    fn ragged_parts_of_admits_lie_one_after_the_other() {
        let plan = Plan {
            step: StepId(7),
            admits: vec![admit(2, &[(5, 1.0), (6, -1.0)], &[1], &[]), admit(4, &[(9, 2.0)], &[1, 2], &[3, 3, 3])],
            appends: vec![Append { slot: SlotId(2), kind: 0, at: 0, block: BlockId(8) }],
            saves: vec![Save { from: BlockId(5), to: HostBlockId(6) }],
            loads: vec![Load { from: HostBlockId(7), to: BlockId(8) }],
            rows: vec![
                plain(2, 0, 3, 3),
                Row { samples: true, masked: true, ..plain(4, 9, 1, 0) },
                Row { samples: true, drafts: 1, ..plain(5, 1, 2, 2) },
                Row { pools: true, ..plain(6, 0, 1, 1) },
            ],
            tokens: vec![10, 11, 12, 20, 21, 30],
            ..Plan::default()
        };
        let mut flattened = Flattened::default();
        let view = flattened.fill(&plan);
        let parts: Vec<_> = view
            .admits
            .iter()
            .map(|a| {
                (a.bias_offset, a.bias_count, a.suppress_offset, a.suppress_count, a.history_offset, a.history_count)
            })
            .collect();
        assert_eq!(parts, [(0, 2, 0, 1, 0, 0), (2, 1, 1, 2, 0, 3)]);
        assert_eq!((view.admits[0].seed_lo, view.admits[0].seed_hi), (2, 1));
        assert_eq!(view.biases.len(), 3);
        assert_eq!(view.suppressed, [1, 1, 2]);
        let rows: Vec<_> = view.rows.iter().map(|r| (r.token_offset, r.row_offset, r.flags, r.drafts)).collect();
        let flags = [0, frame::ROW_SAMPLES | frame::ROW_MASKED, frame::ROW_SAMPLES, frame::ROW_POOLS];
        assert_eq!(rows, [(0, 0, flags[0], 0), (3, 3, flags[1], 0), (3, 4, flags[2], 1), (5, 6, flags[3], 0)]);
        assert_eq!(view.saves, [frame::Save { block: 5, host_block: 6 }]);
        assert_eq!(view.loads, [frame::Load { host_block: 7, block: 8 }]);
    }

    #[test]
    fn a_plan_leaves_nothing_of_the_plan_before() {
        let first = Plan { admits: vec![admit(0, &[(1, 1.0)], &[2], &[3])], drops: vec![SlotId(1)], ..Plan::default() };
        let mut flattened = Flattened::default();
        flattened.fill(&first);
        let empty = Plan::default();
        assert_eq!(flattened.fill(&empty), frame::PlanView::default());
    }

    #[test]
    fn a_step_moves_blocks_by_bytes_and_always_some() {
        let limits = |block_bytes| {
            let limits = limits(&capacities(8, 100), block_bytes);
            (limits.saves, limits.loads)
        };
        assert_eq!(limits(4 << 20), (8, 32));
        assert_eq!(limits(1 << 30), (4, 4));
        assert_eq!(limits(100), (1024, 1024));
        assert_eq!(limits(0), (1024, 1024)); // unknown
    }

    fn in_flight(rows: &[(u64, bool, Option<u32>)]) -> InFlight {
        let row = |&(id, samples, logprobs): &(u64, bool, Option<u32>)| InFlightRow {
            request: RequestId(id),
            slot: 0,
            samples,
            drafts: 0,
            pools: false,
            mask: RowMask::Settled,
            logprobs,
            start: 0,
            count: 1,
        };
        InFlight {
            step: StepId(3),
            rows: rows.iter().map(row).collect(),
            drafts: vec![],
            tokens: 1,
            submitted: Instant::now(),
        }
    }

    #[test]
    fn results_come_back_by_row_with_the_logprobs_that_were_asked_for() {
        let step = in_flight(&[(1, false, None), (2, true, None), (3, true, Some(1))]);
        let results = frame::Results {
            step: 3,
            duration_us: 1,
            sampled: vec![99, 5, 6],
            flags: vec![0, frame::RESULT_NOT_FINITE, 0],
            chosen: vec![0.0, 0.0, -0.5],
            top: vec![(0, 0.0), (0, 0.0), (0, 0.0), (0, 0.0), (6, -0.5), (7, -1.0)],
            pooled: Vec::new(),
        };
        let (read, not_finite) = read(&step, &results, 100).expect("valid");
        assert_eq!(not_finite, [RequestId(2)]);
        assert_eq!(read.draws[0], None);
        assert_eq!(read.draws[1], Some(RowResult { token: 5, logprobs: None }));
        let logprobs = read.draws[2].clone().and_then(|row| row.logprobs).expect("asked for");
        assert_eq!(*logprobs, TokenLogprobs { chosen: -0.5, top: vec![(6, -0.5)] });
    }

    #[test]
    fn vectors_come_back_by_row_and_what_is_not_finite_is_told_with_or_without_a_flag() {
        let mut step = in_flight(&[(1, false, None), (2, false, None), (3, false, None), (4, false, None)]);
        step.rows[1..].iter_mut().for_each(|row| row.pools = true);
        let results = frame::Results {
            step: 3,
            sampled: vec![0; 4],
            flags: vec![0, 0, frame::RESULT_NOT_FINITE, 0],
            chosen: vec![0.0; 4],
            pooled: vec![9.0, 9.0, 1.0, 2.0, 3.0, 4.0, f32::INFINITY, 5.0],
            ..frame::Results::default()
        };
        let (read, not_finite) = read(&step, &results, 100).expect("valid");
        assert_eq!(read.draws, vec![None; 4]);
        let vectors: Vec<&[f32]> = read.vectors.iter().map(|vector| &vector[..]).collect();
        assert_eq!(vectors, [&[1.0, 2.0][..], &[3.0, 4.0], &[f32::INFINITY, 5.0]]);
        assert_eq!(not_finite, [RequestId(3), RequestId(4)]);
    }

    #[test]
    fn a_row_that_was_not_drawn_has_no_result() {
        let results = frame::Results {
            step: 3,
            sampled: vec![999],
            flags: vec![frame::RESULT_UNSAMPLED],
            chosen: vec![0.0],
            ..frame::Results::default()
        };
        let (read, not_finite) = read(&in_flight(&[(1, true, None)]), &results, 100).expect("valid");
        assert_eq!((&read.draws[..], &not_finite[..]), (&[None][..], &[][..]));
    }

    #[test]
    fn a_row_with_drafts_has_a_result_for_each_and_what_is_drawn_behind_a_wrong_one_is_not_looked_at() {
        let mut step = in_flight(&[(1, false, None), (2, true, Some(1)), (3, true, None)]);
        (step.rows[1].drafts, step.drafts) = (2, vec![7, 8]);
        let results = |sampled: [u32; 3], flags: [u32; 3]| frame::Results {
            step: 3,
            sampled: [&[0][..], &sampled, &[6]].concat(),
            flags: [&[0][..], &flags, &[0]].concat(),
            chosen: vec![0.0, -1.0, -2.0, -3.0, -4.0],
            top: (0..5).map(|at| (at, -(at as f32))).collect(),
            ..frame::Results::default()
        };
        let (all, not_finite) = read(&step, &results([7, 9, 5], [0, 0, frame::RESULT_NOT_FINITE]), 100).expect("valid");
        assert_eq!(not_finite, [], "8 was not drawn");
        let drawn: Vec<_> = all.draws.iter().map(|draw| draw.as_ref().map(|draw| draw.token)).collect();
        assert_eq!(drawn, [None, Some(7), Some(9), Some(5), Some(6)]);
        let logprobs = all.draws[2].as_ref().and_then(|draw| draw.logprobs.as_deref()).expect("asked for");
        assert_eq!(*logprobs, TokenLogprobs { chosen: -2.0, top: vec![(2, -2.0)] });
        let (_, not_finite) = read(&step, &results([7, 8, 5], [0, 0, frame::RESULT_NOT_FINITE]), 100).expect("valid");
        assert_eq!(not_finite, [RequestId(2)]);
    }

    #[test]
    fn an_unknown_token_is_garbage() {
        let step = in_flight(&[(1, true, None)]);
        let results = |token| frame::Results {
            step: 3,
            sampled: vec![token],
            flags: vec![0],
            chosen: vec![0.0],
            ..frame::Results::default()
        };
        assert!(matches!(read(&step, &results(100), 100), Err(Garbage::Token { token: 100, .. })));
        assert!(read(&step, &results(99), 100).is_ok());
    }
}
