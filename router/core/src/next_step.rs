//! A step while it is being planned: what stands in it, and what still fits.
//!
//! Never here: who gets into it, and where blocks come from.

use crate::epoch::{Running, Sent, SentRow};
use crate::live::LiveRequest;
use crate::{Admit, Append, BlockId, Copy, CoreConfig, Limits, Plan, Row, SlotId, StepId};

/// See the top of the file.
pub(crate) struct NextStep {
    step: StepId,
    block_size: u32,
    left: Limits,
    plan: Plan,
    rows: Vec<SentRow>,
    sources: Vec<BlockId>,
}

impl NextStep {
    pub(crate) fn new(step: StepId, config: &CoreConfig) -> Self {
        let left = Limits { tokens: config.token_budget.min(config.limits.tokens), ..config.limits };
        Self { step, block_size: config.block_size, left, plan: Plan::default(), rows: Vec::new(), sources: Vec::new() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.left.tokens == 0
    }

    pub(crate) fn takes_copy(&self) -> bool {
        self.left.copies > 0
    }

    /// Whether the frame has room for what a request brings along when it is admitted.
    pub(crate) fn takes_admit(&self, request: &LiveRequest) -> bool {
        let cost = AdmitCost::of(request);
        cost.biases <= self.left.biases && cost.suppressed <= self.left.suppressed && cost.history <= self.left.history
    }

    /// How many tokens a row can have, at most `ahead`, that begins at token `planned` of a slot whose worker knows
    /// `appended` blocks. Leaves one token to each of `behind` others if it can: a long prompt never holds up those
    /// that already draw.
    pub(crate) fn row_max(&self, ahead: u32, planned: u32, appended: usize, behind: usize) -> u32 {
        let behind = u32::try_from(behind).expect("slots are counted by u32");
        let tokens = self.left.tokens.saturating_sub(behind).max(self.left.tokens.min(1));
        let appended = u32::try_from(appended).expect("blocks are counted by u32");
        let reach = (appended.saturating_add(self.left.appends)).saturating_mul(self.block_size);
        ahead.min(tokens).min(reach.saturating_sub(planned))
    }

    /// Tells the worker of a request that enters `slot`.
    pub(crate) fn admit(&mut self, slot: SlotId, request: &LiveRequest) {
        let cost = AdmitCost::of(request);
        self.left.biases -= cost.biases;
        self.left.suppressed -= cost.suppressed;
        self.left.history -= cost.history;
        self.plan.admits.push(Admit {
            slot,
            request: request.place.id,
            prompt_len: request.prompt_len,
            suppress_until: request.suppress_until(),
            suppressed: if cost.suppressed > 0 { request.stop.stop_ids.clone() } else { [].into() },
            sampling: request.sampling.clone(),
            history: if cost.history > 0 { request.tokens.clone() } else { Vec::new() },
        });
    }

    /// Has the start of a block copied. The caller holds the source, until the step has committed.
    pub(crate) fn copy(&mut self, copy: Copy) {
        self.left.copies -= 1;
        self.plan.copies.push(copy);
        self.sources.push(copy.from);
    }

    /// Gives a slot its row, of `count` tokens, and tells the worker of the blocks that it fills.
    pub(crate) fn row(&mut self, slot: SlotId, running: &mut Running, request: &LiveRequest, count: u32) {
        assert!(count > 0 && count <= self.left.tokens);
        let (start, known) = (running.planned, request.known());
        let end = start + count;
        let samples = end == known + running.draws;
        let blocks = end.div_ceil(self.block_size) as usize;
        let appends = &running.table[running.appended..blocks];
        self.plan.appends.extend(appends.iter().map(|&block| Append { slot, block }));
        self.left.appends -= u32::try_from(appends.len()).expect("blocks are counted by u32");
        self.left.tokens -= count;

        let tokens = &request.tokens[start as usize..end.min(known) as usize];
        self.plan.tokens.extend_from_slice(tokens);
        let known = u32::try_from(tokens.len()).expect("at most `count`");
        self.plan.rows.push(Row { slot, start, count, known, samples });
        self.rows.push(SentRow { slot, end, samples });

        running.appended = blocks;
        running.planned = end;
        running.draws += u32::from(samples);
        running.last_step = self.step;
    }

    /// The plan, if there is anything to do, and what the core must remember of it.
    pub(crate) fn finish(mut self, drops: &mut Vec<SlotId>) -> Option<(Plan, Sent)> {
        if self.plan.rows.is_empty() {
            return None; // drops alone can wait for the next step that does something
        }
        self.plan.step = self.step;
        self.plan.drops = std::mem::take(drops);
        Some((self.plan, Sent { step: self.step, rows: self.rows, sources: self.sources }))
    }
}

/// What a request takes from a frame's lists when it is admitted.
struct AdmitCost {
    biases: u32,
    suppressed: u32,
    history: u32,
}

impl AdmitCost {
    fn of(request: &LiveRequest) -> Self {
        let count = |len: usize| u32::try_from(len).expect("refused at submit() otherwise");
        let min_tokens_reached = request.known() >= request.suppress_until();
        Self {
            biases: count(request.sampling.logit_bias.len()),
            suppressed: if min_tokens_reached { 0 } else { count(request.stop.stop_ids.len()) },
            history: if request.sampling.has_penalties() { request.known() } else { 0 },
        }
    }
}
