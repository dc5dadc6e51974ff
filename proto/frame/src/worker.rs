//! The worker's end of a memory: takes plans, checks them, publishes results. Used by one thread at a time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{
    Bell, Bounds, FrameError, FrameHeader, Layout, Memory, PlanView, Region, ResultHeader,
    checksum::{agree, whole},
    plan::{PARTS, PLAN_REGIONS, plan_checksum},
    router::{result_regions, sign},
};

/// While the worker waits its heartbeat moves this often: two wake-ups a second cost about 0.1 ms of CPU time.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// A checked plan lies in this frame.
    Step(u32),
    /// Nothing came in time.
    Idle,
    /// The router has gone or will submit no more.
    Detached,
}

/// A frame that was taken.
struct Taken {
    header: FrameHeader,
    pools: bool,
}

/// Plans come out in order, results go in, in the same order.
pub struct WorkerEnd {
    memory: Memory,
    bell: Option<Bell>, // none: frames travel inline, and `Inline` carries the results away
    bounds: Bounds,
    taken: u32,
    published: u32,
    step: u64,                // the last one taken
    headers: VecDeque<Taken>, // not yet published, oldest first
    scratch: Vec<u32>,
    holds_plan: bool, // `scratch` is the copy of the plan that was taken last
}

impl WorkerEnd {
    /// The worker's end of a memory that no other has used.
    pub fn new(memory: Memory, bell: Option<Bell>) -> Self {
        Self {
            memory,
            bell,
            bounds: Bounds::ANY,
            taken: 0,
            published: 0,
            step: 0,
            headers: VecDeque::new(),
            scratch: Vec::new(),
            holds_plan: false,
        }
    }

    /// What ids may be from now on: known once the model is loaded.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The memory beneath.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Waits for the next plan, and beats while it waits.
    pub fn wait(&mut self, timeout: Duration) -> Result<Waited, FrameError> {
        let begin = Instant::now();
        loop {
            let waited = self.take()?;
            let left = timeout.saturating_sub(begin.elapsed());
            if waited != Waited::Idle || left.is_zero() {
                return Ok(waited);
            }
            wait_for_submission(&self.memory, self.taken, left);
        }
    }

    /// The next plan, if it is there. Split from `wait` for a caller that must not hold this end while it sleeps.
    pub fn take(&mut self) -> Result<Waited, FrameError> {
        let submitted = self.memory.submitted();
        if self.memory.is_detached() {
            return Ok(Waited::Detached); // looked at second: `detach` counts as a submission
        }
        let frames = self.memory.layout().capacities().frames;
        let most = frames - self.taken.wrapping_sub(self.published);
        match submitted.wrapping_sub(self.taken) {
            0 => return Ok(Waited::Idle),
            got if got > most => {
                return Err(FrameError::Counter { counter: "submitted", got, most });
            }
            _ => {}
        }
        let frame = self.taken % frames;
        self.holds_plan = false;
        let taken = self.check(frame)?;
        self.holds_plan = true;
        self.step = taken.header.step();
        self.taken = self.taken.wrapping_add(1);
        self.headers.push_back(taken);
        self.memory.beat();
        Ok(Waited::Step(frame))
    }

    /// Frames taken so far, wrapping: what `wait_for_submission` compares with.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// The checked header of a frame that was taken and not yet published.
    pub fn header(&self, frame: u32) -> Result<&FrameHeader, FrameError> {
        let frames = self.memory.layout().capacities().frames;
        let mut frames_taken = (0..frames).map(|ahead| self.published.wrapping_add(ahead) % frames);
        let position = frames_taken.position(|taken| taken == frame);
        let taken = position.and_then(|ahead| self.headers.get(ahead));
        taken.map(|taken| &taken.header).ok_or(FrameError::NotDue { frame })
    }

    /// The plan that was taken last: the copy that was checked, whatever its frame says by now. None once it is published.
    pub fn plan(&self) -> Option<PlanView<'_>> {
        let Taken { header, .. } = self.headers.back().filter(|_| self.holds_plan)?;
        let parts = plan_parts(header, &self.scratch, self.memory.layout());
        Some(plan_view(header.step(), parts))
    }

    /// Signs the result part of the oldest frame taken, publishes it and rings the router.
    pub fn publish(&mut self, frame: u32, status: u32, duration: Duration) -> Result<(), FrameError> {
        let capacities = *self.memory.layout().capacities();
        let due = (frame == self.published % capacities.frames).then(|| self.headers.pop_front()).flatten();
        let Taken { header: plan, pools } = due.ok_or(FrameError::NotDue { frame })?;
        let mut header = ResultHeader {
            step_lo: plan.step_lo,
            step_hi: plan.step_hi,
            epoch: plan.epoch,
            rows: plan.rows,
            status,
            duration_us: u32::try_from(duration.as_micros()).unwrap_or(u32::MAX),
            top: plan.top,
            draws: plan.draws,
            pooled: u32::from(pools),
            ..ResultHeader::default()
        };
        self.holds_plan = false;
        let draws = plan.draws as usize;
        let top = if plan.top == 1 { draws * capacities.top_logprobs as usize } else { 0 };
        let pooled = if pools { draws * capacities.pooled_width as usize } else { 0 };
        self.scratch.clear();
        for (region, words) in result_regions(draws, top, pooled) {
            self.memory.read(frame, region, words, &mut self.scratch);
        }
        sign(&mut header, &self.scratch);
        self.memory.write(frame, Region::ResultHeader, bytemuck::cast_slice(&[header]));
        self.published = self.published.wrapping_add(1);
        self.memory.beat();
        self.memory.complete();
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        Ok(())
    }

    /// Copies the used words of a frame out and believes nothing: counts before they are used, the checksum, the order
    /// of steps, then every record.
    fn check(&mut self, frame: u32) -> Result<Taken, FrameError> {
        self.scratch.clear();
        self.memory.read(frame, Region::Header, FrameHeader::WORDS, &mut self.scratch);
        let header: FrameHeader = *bytemuck::from_bytes(bytemuck::cast_slice(&self.scratch));
        let step = header.step();
        for (region, count) in PLAN_REGIONS.into_iter().zip(header.counts()) {
            let place = self.memory.layout().place(region);
            if count > place.capacity {
                return Err(FrameError::TooMany { step, region, got: count.into(), capacity: place.capacity });
            }
            self.memory.read(frame, region, count as usize * place.words, &mut self.scratch);
        }
        let parts = plan_parts(&header, &self.scratch, self.memory.layout());
        if !agree(plan_checksum(&header, parts), whole(header.checksum_lo, header.checksum_hi)) {
            return Err(FrameError::Checksum { step, part: "plan" });
        }
        let fields = [
            ("epoch", header.epoch.into(), self.memory.epoch().into()),
            ("step", step, self.step + 1),
            ("top", header.top.into(), u64::from(header.top.min(1))),
        ];
        for (field, got, expected) in fields {
            if got != expected {
                return Err(FrameError::Header { part: "plan", field, got, expected });
            }
        }
        let plan = plan_view(step, parts);
        plan.check(self.memory.layout(), &self.bounds)?;
        // Counted by nobody before the rows were checked.
        let (got, expected) = (header.draws.into(), plan.draws().into());
        if got != expected {
            return Err(FrameError::Header { part: "plan", field: "draws", got, expected });
        }
        let pools = plan.pools();
        Ok(Taken { header, pools })
    }
}

/// Cuts a copied plan, header first, into its regions.
fn plan_parts<'a>(header: &FrameHeader, words: &'a [u32], layout: &Layout) -> [&'a [u32]; PARTS] {
    let mut rest = &words[FrameHeader::WORDS..];
    let counts = header.counts();
    std::array::from_fn(|at| {
        let (part, behind) = rest.split_at(counts[at] as usize * layout.place(PLAN_REGIONS[at]).words);
        rest = behind;
        part
    })
}

/// Words as records.
fn plan_view(step: u64, parts: [&[u32]; PARTS]) -> PlanView<'_> {
    let [drops, admits, biases, suppressed, history, appends, saves, loads, copies, rows, tokens, embeds] = parts;
    PlanView {
        step,
        drops,
        admits: bytemuck::cast_slice(admits),
        biases: bytemuck::cast_slice(biases),
        suppressed,
        history,
        appends: bytemuck::cast_slice(appends),
        saves: bytemuck::cast_slice(saves),
        loads: bytemuck::cast_slice(loads),
        copies: bytemuck::cast_slice(copies),
        rows: bytemuck::cast_slice(rows),
        tokens,
        embeds: bytemuck::cast_slice(embeds),
    }
}

/// Sleeps until more than `taken` frames are submitted or `timeout` has passed, but no longer than to the next heartbeat.
pub(crate) fn wait_for_submission(memory: &Memory, taken: u32, timeout: Duration) {
    memory.submissions().wait(taken, timeout.min(HEARTBEAT_INTERVAL));
    memory.beat();
}

impl Memory {
    /// What `WorkerEnd::wait` does between two `take`s, for a caller that lets go of the end meanwhile.
    pub fn wait_for_submission(&self, taken: u32, timeout: Duration) {
        wait_for_submission(self, taken, timeout);
    }
}
