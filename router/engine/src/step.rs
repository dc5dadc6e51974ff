//! From the core's values to a frame's records: a plan is flattened. The way back is in `results.rs`.

use std::sync::Arc;

use pelton_core::{Limits, Plan, SlotId};
use pelton_frame as frame;

use crate::Embeds;

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

/// Prompt tokens that a step scores at most: its logits are then 128 × 152k × 4 B = 78 MB for a large vocabulary, beside those of its
/// draws, however long prompts and steps are.
pub const SCORES_MAX: u32 = 128;

/// Embeddings that a step takes at most: a frame's room for them is then 256 × 8192 × 4 B = 8 MiB for a wide model, and what is not
/// used of it costs address space only.
const EMBEDS_MAX: u32 = 256;

/// Prompt and output of one request at most.
pub(crate) const CONTEXT_MAX: u32 = 1 << 20;

/// Capacities for so many slots: of the requests that may run at once, and of drafts. Arrays that are not used cost address space only.
pub(crate) fn capacities(slots: u32, token_budget: u32, prompt_embeds: bool) -> frame::Capacities {
    let embeds = if prompt_embeds { EMBEDS_MAX.min(token_budget) } else { 0 };
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
        scores: SCORES_MAX.min(token_budget),
        embeds,
        embed_width: embeds.min(1), // the link makes it that of the model
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
        scores: capacities.scores,
        embeds: capacities.embeds,
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
    embeds: Vec<f32>,
}

impl Flattened {
    /// Lays the plan out as records. The view borrows from both. `embeds`: of the request in a slot.
    pub(crate) fn fill<'a>(
        &'a mut self,
        plan: &'a Plan,
        embeds: impl Fn(SlotId) -> Arc<Embeds>,
    ) -> frame::PlanView<'a> {
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
                scores: row.scores,
                next: row.next.unwrap_or(0),
                embeds: row.embeds,
            });
            if row.embeds > 0 {
                self.embeds.extend_from_slice(embeds(row.slot).of(row.start..row.start + row.embeds));
            }
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
            embeds: &self.embeds,
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
        self.embeds.clear();
    }

    fn admit(&mut self, admit: &pelton_core::Admit) -> frame::Admit {
        let sampling = &admit.sampling;
        let (bias_offset, suppress_offset, history_offset) =
            (self.biases.len(), self.suppressed.len(), self.history.len());
        self.biases.extend(sampling.logit_bias.iter().map(|&(token, value)| frame::Bias { token, value }));
        self.suppressed.extend_from_slice(&admit.suppressed);
        self.suppressed.extend_from_slice(&sampling.told);
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
            score_top: sampling.prompt_logprobs.unwrap_or(0),
            prompt_len: admit.prompt_len,
            suppress_until: admit.suppress_until,
            bias_offset: word(bias_offset),
            bias_count: word(sampling.logit_bias.len()),
            suppress_offset: word(suppress_offset),
            suppress_count: word(admit.suppressed.len()),
            history_offset: word(history_offset),
            history_count: word(admit.history.len()),
            told_count: word(sampling.told.len()),
            zero: [0; 2],
        }
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("masked to 32 bits")
}

fn word(value: usize) -> u32 {
    u32::try_from(value).expect("the core keeps plans within a frame's capacities, which are u32")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pelton_core::{Admit, Append, BlockId, HostBlockId, Load, RequestId, Row, Sampling, Save, SlotId, StepId};

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
        Row {
            slot,
            start,
            count,
            known,
            drafts: 0,
            samples: false,
            masked: false,
            pools: false,
            scores: 0,
            next: None,
            embeds: 0,
        }
    }

    fn none(slot: SlotId) -> Arc<Embeds> {
        panic!("{slot:?} has no embeddings")
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
        let view = flattened.fill(&plan, none);
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
    fn embeddings_of_rows_lie_one_behind_the_other() {
        let of = |slot: SlotId| {
            let values = (0..10).map(|at| (slot.0 * 100 + at) as f32).collect();
            Arc::new(Embeds::new(2, values, None))
        };
        let rows = vec![
            Row { embeds: 2, ..plain(1, 1, 3, 3) },
            plain(2, 0, 2, 2),
            Row { embeds: 1, samples: true, ..plain(3, 4, 1, 1) },
        ];
        let plan = Plan { step: StepId(1), rows, tokens: vec![0, 0, 7, 8, 9, 0], ..Plan::default() };
        let mut flattened = Flattened::default();
        let view = flattened.fill(&plan, of);
        assert_eq!(view.embeds, [102.0, 103.0, 104.0, 105.0, 308.0, 309.0]);
        assert_eq!(view.rows.iter().map(|row| row.embeds).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(flattened.fill(&Plan::default(), none), frame::PlanView::default());
    }

    #[test]
    fn a_plan_leaves_nothing_of_the_plan_before() {
        let first = Plan { admits: vec![admit(0, &[(1, 1.0)], &[2], &[3])], drops: vec![SlotId(1)], ..Plan::default() };
        let mut flattened = Flattened::default();
        flattened.fill(&first, none);
        let empty = Plan::default();
        assert_eq!(flattened.fill(&empty, none), frame::PlanView::default());
    }

    #[test]
    fn a_step_moves_blocks_by_bytes_and_always_some() {
        let limits = |block_bytes| {
            let limits = limits(&capacities(8, 100, false), block_bytes);
            (limits.saves, limits.loads)
        };
        assert_eq!(limits(4 << 20), (8, 32));
        assert_eq!(limits(1 << 30), (4, 4));
        assert_eq!(limits(100), (1024, 1024));
        assert_eq!(limits(0), (1024, 1024)); // unknown
    }
}
