//! The router's end of a memory: submits plans, takes results in. Used by one thread.

use std::collections::VecDeque;

use crate::{
    Bounds, FrameError, Memory, PlanView, Pulse, Region, ResultHeader, STATUS_OK,
    checksum::{Checksum, agree, halves, whole},
};

/// Results of one step, copied out and checked. All arrays by draw: one for each row, and one more for each
/// of its drafts and, before these, of its scores.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Results {
    /// Which step.
    pub step: u64,
    /// How long the worker took.
    pub duration_us: u32,
    /// The tokens drawn, and the ranks of those that were scored; means nothing where the row does not sample.
    pub sampled: Vec<u32>,
    /// `RESULT_*`.
    pub flags: Vec<u32>,
    /// Log-probability of the token; means nothing unless asked for.
    pub chosen: Vec<f32>,
    /// `top_logprobs` entries per draw, likeliest first. Empty if no row's request asked for any.
    pub top: Vec<(u32, f32)>,
    /// `pooled_width` numbers per row; they mean nothing where the row does not pool. Empty if no row does.
    pub pooled: Vec<f32>,
}

/// Plans go in, results come out in the same order. Dropping it tells the worker that no more frames will come.
pub struct RouterEnd {
    memory: Memory,
    submitted: u32, // our own count: the shared words are the peer's to spoil
    received: u32,
    in_flight: VecDeque<Due>,
    wants_top: Vec<[bool; 2]>, // by slot: of its draws, and of its scores
    scratch: Vec<u32>,
}

/// What a result must say to be believed.
struct Due {
    step: u64,
    rows: u32,
    draws: u32,
    top: bool,
    pools: bool,
}

impl RouterEnd {
    /// The first end of a fresh memory.
    pub fn new(memory: Memory) -> Self {
        let wants_top = vec![[false; 2]; memory.layout().capacities().slots as usize];
        let (in_flight, scratch) = (VecDeque::new(), Vec::new());
        Self { memory, submitted: 0, received: 0, in_flight, wants_top, scratch }
    }

    /// The memory beneath.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Counts the lives of the worker; steps of another one are void.
    pub fn epoch(&self) -> u32 {
        self.memory.epoch()
    }

    /// Steps submitted whose results have not been polled.
    pub fn in_flight(&self) -> u32 {
        self.submitted.wrapping_sub(self.received)
    }

    /// Whether `submit` has a frame to write.
    pub fn free_frame(&self) -> bool {
        self.in_flight() < self.memory.layout().capacities().frames
    }

    /// Moves while the worker waits, and when a step begins and ends.
    pub fn heartbeat(&self) -> u32 {
        self.memory.pulse().heartbeat
    }

    /// All counters.
    pub fn pulse(&self) -> Pulse {
        self.memory.pulse()
    }

    /// Writes the plan into the next frame, publishes it and wakes the worker. Nothing is written if it fails.
    pub fn submit(&mut self, plan: &PlanView<'_>) -> Result<(), FrameError> {
        if !self.free_frame() {
            return Err(FrameError::NoFreeFrame { frames: self.memory.layout().capacities().frames });
        }
        plan.check(self.memory.layout(), &Bounds::ANY)?;
        for admit in plan.admits {
            self.wants_top[admit.slot as usize] = [admit.top_logprobs > 0, admit.score_top > 0];
        }
        let top = plan.rows.iter().any(|row| {
            let [draws, scores] = self.wants_top[row.slot as usize];
            draws || scores && row.scores > 0
        });
        let frame = self.submitted % self.memory.layout().capacities().frames;
        for (region, words) in crate::plan::PLAN_REGIONS.into_iter().zip(plan.parts()) {
            self.memory.write(frame, region, words);
        }
        let header = plan.header(self.epoch(), top);
        self.memory.write(frame, Region::Header, bytemuck::cast_slice(&[header]));
        self.submitted = self.submitted.wrapping_add(1);
        let pools = plan.pools();
        self.in_flight.push_back(Due { step: plan.step, rows: header.rows, draws: header.draws, top, pools });
        self.memory.submissions().raise();
        Ok(())
    }

    /// The next result, if it is there. After an error the worker's memory means nothing any more.
    pub fn poll(&mut self) -> Option<Result<Results, FrameError>> {
        let waiting = self.memory.completed().wrapping_sub(self.received);
        if waiting == 0 {
            return None;
        }
        let most = self.in_flight();
        let Some(due) = (if waiting <= most { self.in_flight.pop_front() } else { None }) else {
            return Some(Err(FrameError::Counter { counter: "completed", got: waiting, most }));
        };
        let frame = self.received % self.memory.layout().capacities().frames;
        let result = self.copy_out(frame, &due);
        self.received = self.received.wrapping_add(1);
        Some(result)
    }

    fn copy_out(&mut self, frame: u32, due: &Due) -> Result<Results, FrameError> {
        // First the copy, of as much as is due whatever the header claims; then the checks, on the copy alone.
        let draws = due.draws as usize;
        let capacities = self.memory.layout().capacities();
        let top = if due.top { draws * capacities.top_logprobs as usize } else { 0 };
        let pooled = if due.pools { draws * capacities.pooled_width as usize } else { 0 };
        self.scratch.clear();
        self.memory.read(frame, Region::ResultHeader, ResultHeader::WORDS, &mut self.scratch);
        for (region, words) in result_regions(draws, top, pooled) {
            self.memory.read(frame, region, words, &mut self.scratch);
        }
        let (header, arrays) = self.scratch.split_at(ResultHeader::WORDS);
        let header: ResultHeader = *bytemuck::from_bytes(bytemuck::cast_slice(header));
        self.check(&header, arrays, due)?;

        let floats = |words: &[u32]| words.iter().map(|word| f32::from_bits(*word)).collect::<Vec<_>>();
        let (sampled, arrays) = arrays.split_at(draws);
        let (flags, arrays) = arrays.split_at(draws);
        let (chosen, arrays) = arrays.split_at(draws);
        let (ids, arrays) = arrays.split_at(top);
        let (logprobs, vectors) = arrays.split_at(top);
        Ok(Results {
            step: due.step,
            duration_us: header.duration_us,
            sampled: sampled.to_vec(),
            flags: flags.to_vec(),
            chosen: floats(chosen),
            top: ids.iter().copied().zip(floats(logprobs)).collect(),
            pooled: floats(vectors),
        })
    }

    fn check(&self, header: &ResultHeader, arrays: &[u32], due: &Due) -> Result<(), FrameError> {
        let fields = [
            ("epoch", header.epoch.into(), self.epoch().into()),
            ("step", whole(header.step_lo, header.step_hi), due.step),
            ("rows", header.rows.into(), due.rows.into()),
            ("draws", header.draws.into(), due.draws.into()),
            ("top", header.top.into(), u64::from(due.top)),
            ("pooled", header.pooled.into(), u64::from(due.pools)),
        ];
        for (field, got, expected) in fields {
            if got != expected {
                return Err(FrameError::Header { part: "result", field, got, expected });
            }
        }
        if !agree(result_checksum(header, arrays), whole(header.checksum_lo, header.checksum_hi)) {
            return Err(FrameError::Checksum { step: due.step, part: "result" });
        }
        if header.status != STATUS_OK {
            return Err(FrameError::WorkerFailed { step: due.step, status: header.status });
        }
        Ok(())
    }
}

impl Drop for RouterEnd {
    fn drop(&mut self) {
        self.memory.detach();
    }
}

/// Used words of the result's regions, in order.
pub(crate) fn result_regions(draws: usize, top: usize, pooled: usize) -> [(Region, usize); 6] {
    [
        (Region::Sampled, draws),
        (Region::Flags, draws),
        (Region::ChosenLogprob, draws),
        (Region::TopIds, top),
        (Region::TopLogprobs, top),
        (Region::Pooled, pooled),
    ]
}

/// Over the header without its checksum, then the used words one after the other.
pub(crate) fn result_checksum(header: &ResultHeader, arrays: &[u32]) -> u64 {
    let unsigned = ResultHeader { checksum_lo: 0, checksum_hi: 0, ..*header };
    Checksum::new().absorb(bytemuck::cast_ref::<_, [u32; ResultHeader::WORDS]>(&unsigned)).absorb(arrays).finish()
}

/// Signs a result header over the words that it announces.
pub(crate) fn sign(header: &mut ResultHeader, arrays: &[u32]) {
    (header.checksum_lo, header.checksum_hi) = halves(result_checksum(header, arrays));
}
