//! A virtual worker: does what a plan says to a KV store, and believes nothing.

use std::collections::VecDeque;

use pelton_core::{Admit, BlockId, Limits, Plan, Row, RowResult, SlotId, StepId, StepResults, TokenId, TokenLogprobs};

use super::model::{self, Draw};
use super::random::Random;

/// See the top of the file.
pub(crate) struct Worker {
    limits: Limits,
    block_size: u32,
    kv: Vec<Vec<Option<u64>>>, // by block, by offset; stale contents stay until something is written
    copy_us: u32,
    slots: Vec<Option<Slot>>,
    plans: VecDeque<Plan>,
    last_step: StepId,
    /// Results that nobody has read yet.
    pub(crate) results: VecDeque<StepResults>,
}

/// What the workers of a host share: by block, by offset.
pub(crate) type HostMemory = Vec<Vec<Option<u64>>>;

struct Slot {
    admit: Admit,
    table: Vec<BlockId>,
    tally: u64,
    drawn: Option<TokenId>, // by the latest sampling row
}

impl Worker {
    pub(crate) fn new(blocks: u32, block_size: u32, limits: Limits, copy_us: u32) -> Self {
        Self {
            limits,
            block_size,
            kv: vec![vec![None; block_size as usize]; blocks as usize],
            copy_us,
            slots: (0..limits.slots).map(|_| None).collect(),
            plans: VecDeque::new(),
            last_step: StepId(0),
            results: VecDeque::new(),
        }
    }

    /// A step enters the frames.
    pub(crate) fn receive(&mut self, plan: Plan) {
        self.check_limits(&plan);
        assert_eq!(plan.step, self.last_step.next(), "steps come without gaps");
        self.last_step = plan.step;
        self.plans.push_back(plan);
        assert!(self.plans.len() + self.results.len() <= 2, "at most two steps are in flight");
    }

    /// Does the oldest step that waits. Rows run in any order: none may depend on another one.
    pub(crate) fn work(&mut self, random: &mut Random, host: &mut HostMemory) {
        let Some(plan) = self.plans.pop_front() else { return };
        for slot in &plan.drops {
            assert!(self.slots[slot.index()].take().is_some(), "{slot:?} is dropped while in use");
        }
        for admit in &plan.admits {
            self.admit(admit.clone());
        }
        for append in &plan.appends {
            self.slot(append.slot).table.push(append.block);
        }
        for save in &plan.saves {
            let kv = &self.kv[save.from.index()];
            assert!(kv.iter().all(Option::is_some), "{:?} is saved full", save.from);
            host[save.to.index()].clone_from(kv);
        }
        for load in &plan.loads {
            let kv = &host[load.from.index()];
            assert!(kv.iter().all(Option::is_some), "{:?} is loaded full", load.from);
            self.kv[load.to.index()].clone_from(kv);
        }
        for copy in &plan.copies {
            let source = self.kv[copy.from.index()].clone();
            assert_ne!(copy.from, copy.to);
            let target = &mut self.kv[copy.to.index()];
            target.fill(None);
            target[..copy.tokens as usize].copy_from_slice(&source[..copy.tokens as usize]);
        }
        let mut results = vec![None; plan.rows.len()];
        let mut offset = 0;
        let mut rows: Vec<(usize, Row, &[TokenId])> = Vec::new();
        for (at, &row) in plan.rows.iter().enumerate() {
            rows.push((at, row, &plan.tokens[offset..][..row.known as usize]));
            offset += row.known as usize;
        }
        assert_eq!(offset, plan.tokens.len(), "rows and tokens agree");
        random.shuffle(&mut rows);
        for (at, row, tokens) in rows {
            results[at] = self.compute(row, tokens);
        }
        self.results.push_back(StepResults { step: plan.step, took_us: took(&plan, self.copy_us), rows: results });
    }

    /// The worker dies: what it was saving is half there.
    pub(crate) fn die(self, host: &mut HostMemory) {
        for save in self.plans.iter().flat_map(|plan| &plan.saves) {
            host[save.to.index()].fill(None);
        }
    }

    /// What steps in flight are about to read of the host's memory.
    pub(crate) fn sources(&self) -> impl Iterator<Item = usize> {
        self.plans.iter().flat_map(|plan| &plan.loads).map(|load| load.from.index())
    }

    fn admit(&mut self, admit: Admit) {
        let has_penalties = admit.sampling.has_penalties();
        assert!(has_penalties || admit.history.is_empty());
        let tally = admit.history.iter().fold(0, |sum: u64, &token| sum.wrapping_add(model::tally(token)));
        let place = &mut self.slots[admit.slot.index()];
        assert!(place.is_none(), "{:?} is admitted to while in use", admit.slot);
        *place = Some(Slot { admit, table: Vec::new(), tally, drawn: None });
    }

    fn compute(&mut self, row: Row, tokens: &[TokenId]) -> Option<RowResult> {
        assert!(row.count >= 1 && row.count - row.known <= 1);
        let block_size = self.block_size;
        let slot = self.slots[row.slot.index()].as_mut().expect("rows name slots in use");
        let place =
            |position: u32| (slot.table[(position / block_size) as usize].index(), (position % block_size) as usize);
        let unknown = (row.known < row.count).then(|| slot.drawn.expect("an unknown token was drawn before"));
        let mut last = match row.start {
            0 => model::EMPTY,
            start => {
                let (block, offset) = place(start - 1);
                self.kv[block][offset].expect("a row reads KV that somebody has written")
            }
        };
        for (position, &token) in (row.start..).zip(tokens.iter().chain(&unknown)) {
            let (block, offset) = place(position);
            last = model::kv(last, token);
            self.kv[block][offset] = Some(last);
        }
        if !row.samples {
            return None;
        }
        let end = row.start + row.count;
        let read = |position| {
            let (block, offset) = place(position);
            self.kv[block][offset].expect("a draw reads KV that somebody has written")
        };
        let context = (0..end).fold(0, |context, position| model::mix(context, read(position)));
        let token = Draw {
            context,
            position: end,
            tally: slot.tally,
            prompt_len: slot.admit.prompt_len,
            sampling: &slot.admit.sampling,
            suppressed: &slot.admit.suppressed,
            suppress_until: slot.admit.suppress_until,
        }
        .token();
        slot.drawn = Some(token);
        if slot.admit.sampling.has_penalties() {
            slot.tally = slot.tally.wrapping_add(model::tally(token));
        }
        let logprobs = slot.admit.sampling.logprobs.map(|_| Box::new(logprobs(token)));
        Some(RowResult { token, logprobs })
    }

    fn slot(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.index()].as_mut().expect("a plan names slots in use")
    }

    fn check_limits(&self, plan: &Plan) {
        let total = |lens: &mut dyn Iterator<Item = usize>| lens.sum::<usize>();
        let limits = &self.limits;
        for (what, got, limit) in [
            ("drops", plan.drops.len(), limits.slots),
            ("admits", plan.admits.len(), limits.slots),
            ("rows", plan.rows.len(), limits.slots),
            ("appends", plan.appends.len(), limits.appends),
            ("saves", plan.saves.len(), limits.saves),
            ("loads", plan.loads.len(), limits.loads),
            ("copies", plan.copies.len(), limits.copies),
            ("tokens", total(&mut plan.rows.iter().map(|row| row.count as usize)), limits.tokens),
            ("biases", total(&mut plan.admits.iter().map(|admit| admit.sampling.logit_bias.len())), limits.biases),
            ("suppressed", total(&mut plan.admits.iter().map(|admit| admit.suppressed.len())), limits.suppressed),
            ("history", total(&mut plan.admits.iter().map(|admit| admit.history.len())), limits.history),
        ] {
            assert!(got <= limit as usize, "{got} {what} in a step that holds {limit}");
        }
        let has_transfers = !plan.saves.is_empty() || !plan.loads.is_empty();
        assert!(!plan.rows.is_empty() || has_transfers, "a step does something");
        let mut slots: Vec<_> = plan.rows.iter().map(|row| row.slot).collect();
        slots.sort();
        assert!(slots.is_sorted_by(|one, next| one < next), "a slot has one row in a step");
    }
}

/// How long a step takes here: the core does not know it.
fn took(plan: &Plan, copy_us: u32) -> u32 {
    let copied = (plan.saves.len() + plan.loads.len()) as u32;
    100 + copied * copy_us + plan.rows.iter().map(|row| 3 + row.count * 7 + row.count * row.start / 4).sum::<u32>()
}

/// What goes with a token, so that a mix-up is seen.
pub(crate) fn logprobs(token: TokenId) -> TokenLogprobs {
    TokenLogprobs { chosen: -(token as f32), top: vec![(token, 0.5)] }
}
