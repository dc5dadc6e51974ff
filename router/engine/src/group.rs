//! One worker group as the engine sees it: its port while it lives, its steps in flight, who holds its slots.
//!
//! Invariant: `in_flight` holds exactly the steps that were submitted to the port and whose results were not read.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use pelton_core::{GroupId, Plan, RequestId, Row, SlotId, StepResults};
use pelton_frame::{MaskWriter, RouterEnd};
use pelton_link::{LinkEvent, LinkHandle};

use crate::{
    Deadlines, Embeds,
    patience::{Due, Patience},
    results::{self, Garbage, InFlight, InFlightRow, RowMask},
    step::Flattened,
    work_time::WorkTime,
};

/// No step is believed to be on its way for longer: what took longer was something else.
const TRIP_MAX: Duration = Duration::from_millis(200);

/// The request that holds a slot, and the log-probabilities that it asked for.
#[derive(Clone, Copy)]
struct Holder {
    request: RequestId,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
}

pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) link: LinkHandle,
    pub(crate) events: Receiver<LinkEvent>,
    /// `None` while the worker starts, loads or is replaced.
    port: Option<RouterEnd>,
    /// Where its masks go; as long as `port` is.
    masks: Option<Arc<MaskWriter>>,
    in_flight: VecDeque<InFlight>,
    /// The step whose results were read last: if they are not believed, it was not read.
    judged: Option<InFlight>,
    /// Who holds each slot.
    slots: Vec<Option<Holder>>,
    flattened: Flattened,
    patience: Patience,
    work_time: WorkTime,
    deadlines: Deadlines,
    /// Whether the worker maps the core's host memory.
    reaches_host: bool,
    /// Why the worker is being replaced, while it may still touch host memory.
    condemned: Option<String>,
    /// The requests for whose sake it is, if it is known.
    blamed: Option<BTreeSet<RequestId>>,
    /// When a worker was last replaced because what it computed was not finite, or when the one after it came.
    last_not_finite: Option<Instant>,
    /// Whether the worker has drawn a token, or given a vector, that is finite.
    has_been_sound: bool,
    /// Tokens in a block; 0 before the first worker.
    pub(crate) block_size: u32,
    /// Of the latest worker; 0: none has come, or none will come any more.
    pub(crate) blocks: u32,
    /// When its next step is to be planned, if it was too early when that was looked at.
    pub(crate) plan_at: Option<Instant>,
    /// How long a step and its results are on their way to the worker and back, by the latest ones that found it idle. None: there were none.
    trip: Option<Duration>,
}

/// What became of results that were looked for.
pub(crate) enum Polled {
    Nothing,
    Step {
        results: StepResults,
        /// Parts of prompts: whose, and how many of its tokens are computed now.
        computed: Vec<(RequestId, u32)>,
        /// Slots whose logits or vectors are not finite, and their requests.
        not_finite: Vec<(SlotId, RequestId)>,
        rows: usize,
        took: Duration,
    },
    /// The worker answers what it should not: it has to be replaced.
    Garbage(Garbage),
}

impl Group {
    pub(crate) fn new(
        id: GroupId,
        link: LinkHandle,
        events: Receiver<LinkEvent>,
        slots: u32,
        deadlines: Deadlines,
    ) -> Self {
        Self {
            id,
            link,
            events,
            port: None,
            masks: None,
            in_flight: VecDeque::new(),
            judged: None,
            slots: vec![None; slots as usize],
            flattened: Flattened::default(),
            patience: Patience::default(),
            work_time: WorkTime::default(),
            deadlines,
            reaches_host: false,
            condemned: None,
            blamed: None,
            last_not_finite: None,
            has_been_sound: false,
            block_size: 0,
            blocks: 0,
            plan_at: None,
            trip: None,
        }
    }

    pub(crate) fn attach(
        &mut self,
        port: RouterEnd,
        masks: Arc<MaskWriter>,
        block_size: u32,
        blocks: u32,
        reaches_host: bool,
    ) {
        assert!(self.in_flight.is_empty(), "a new worker has no step in flight");
        (self.block_size, self.blocks, self.reaches_host) = (block_size, blocks, reaches_host);
        (self.port, self.masks) = (Some(port), Some(masks));
        self.last_not_finite = self.last_not_finite.map(|_| Instant::now());
        (self.has_been_sound, self.trip) = (false, None);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.port.is_some()
    }

    /// Whether there is a worker whose loss the core has not been told.
    pub(crate) fn has_worker(&self) -> bool {
        self.is_attached() || self.condemned.is_some()
    }

    /// Whether the worker maps host memory, so that its loss is told only when it touches it no more.
    pub(crate) fn reaches_host(&self) -> bool {
        self.reaches_host
    }

    /// Gives the worker up: no step more, and no result of it counts. `detach` follows when it is gone.
    pub(crate) fn condemn(&mut self, reason: &str) {
        (self.port, self.masks) = (None, None);
        self.condemned = Some(reason.to_owned());
    }

    /// Why the worker was given up, if it was.
    pub(crate) fn condemned(&self) -> Option<&str> {
        self.condemned.as_deref()
    }

    /// The worker is to be replaced because of what it computed for these requests.
    pub(crate) fn blame(&mut self, blamed: BTreeSet<RequestId>) {
        (self.blamed, self.last_not_finite) = (Some(blamed), Some(Instant::now()));
    }

    /// Who is to blame for the worker's end, if it is known.
    pub(crate) fn take_blamed(&mut self) -> Option<BTreeSet<RequestId>> {
        self.blamed.take()
    }

    /// Whether a worker was replaced within this time because what it computed was not finite.
    pub(crate) fn was_replaced_within(&self, time: Duration) -> bool {
        self.last_not_finite.is_some_and(|last| last.elapsed() < time)
    }

    /// Whether the worker has computed anything that is finite.
    pub(crate) fn has_been_sound(&self) -> bool {
        self.has_been_sound
    }

    /// Whether the step that was read last drew for others than these.
    pub(crate) fn computed_others_soundly(&self, blamed: &BTreeSet<RequestId>) -> bool {
        let is_sound = |row: &InFlightRow| (row.samples || row.pools) && !blamed.contains(&row.request);
        self.judged.as_ref().is_some_and(|step| step.rows.iter().any(is_sound))
    }

    /// Whether the step that was read last computed only one request.
    pub(crate) fn computed_one(&self) -> bool {
        self.judged.as_ref().is_some_and(|step| step.rows.len() == 1)
    }

    /// Forgets the worker. Returns the requests that were in its unread steps.
    pub(crate) fn detach(&mut self) -> BTreeSet<RequestId> {
        (self.port, self.masks, self.condemned, self.reaches_host) = (None, None, None, false);
        self.patience.begin_anew();
        self.work_time.pause();
        (self.judged, self.blamed) = (None, None);
        self.slots.fill(None);
        self.in_flight.drain(..).flat_map(|step| step.rows).map(|row| row.request).collect()
    }

    /// The requests that hold a slot of the worker.
    pub(crate) fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.slots.iter().flatten().map(|holder| holder.request)
    }

    pub(crate) fn has_free_frame(&self) -> bool {
        self.port.as_ref().is_some_and(RouterEnd::free_frame)
    }

    /// Writes the plan into a free frame and rings the worker. `embeds`: of requests whose prompts have some.
    pub(crate) fn submit(
        &mut self,
        plan: &Plan,
        embeds: impl Fn(RequestId) -> Option<Arc<Embeds>>,
    ) -> Result<(), pelton_frame::FrameError> {
        for &slot in &plan.drops {
            self.slots[slot.index()] = None;
        }
        for admit in &plan.admits {
            let (logprobs, prompt_logprobs) = (admit.sampling.logprobs, admit.sampling.prompt_logprobs);
            self.slots[admit.slot.index()] = Some(Holder { request: admit.request, logprobs, prompt_logprobs });
        }
        let rows = plan
            .rows
            .iter()
            .map(|row| {
                let Holder { request, logprobs, prompt_logprobs } =
                    self.slots[row.slot.index()].expect("the core plans rows for admitted slots only");
                let mask = match row.masked {
                    false => RowMask::Settled,
                    true if row.known == row.count => RowMask::Due,
                    true => RowMask::Later,
                };
                let Row { samples, pools, drafts, scores, start, count, .. } = *row;
                let slot = row.slot.0;
                InFlightRow {
                    request,
                    slot,
                    samples,
                    pools,
                    drafts,
                    scores,
                    mask,
                    logprobs,
                    prompt_logprobs,
                    start,
                    count,
                }
            })
            .collect();
        let port = self.port.as_mut().expect("the caller saw a free frame");
        let slots = &self.slots;
        let embeds_in = |slot: SlotId| {
            let request = slots[slot.index()].map(|holder| holder.request);
            request.and_then(&embeds).expect("rows are of live requests, which have what their tokens stand for")
        };
        port.submit(&self.flattened.fill(plan, embeds_in))?;
        let now = Instant::now();
        self.work_time.begin(now);
        self.in_flight.push_back(InFlight {
            step: plan.step,
            rows,
            drafts: plan.drafts().collect(),
            tokens: plan.rows.iter().map(|row| row.count).sum(),
            submitted: now,
        });
        Ok(())
    }

    /// Every row whose mask can be asked for now, or that is to be passed over (`None`), each once: request, and where to.
    pub(crate) fn masks_due(&mut self, mut due: impl FnMut(Option<RequestId>, (&Arc<MaskWriter>, u64, u32))) {
        let Some(masks) = &self.masks else { return };
        for (at, step) in self.in_flight.iter_mut().enumerate() {
            for row in &mut step.rows {
                let request = match row.mask {
                    RowMask::Settled => continue,
                    RowMask::Later if at > 0 => continue,
                    RowMask::Due | RowMask::Later => Some(row.request),
                    RowMask::Void => None,
                };
                row.mask = RowMask::Settled;
                due(request, (masks, step.step.0, row.slot));
            }
        }
    }

    /// Looks for the results of the oldest step in flight.
    pub(crate) fn poll(&mut self, vocab_size: u32) -> Polled {
        let Some(port) = self.port.as_mut() else { return Polled::Nothing };
        let came = match port.poll() {
            None => return Polled::Nothing,
            Some(Err(error)) => return Polled::Garbage(Garbage::Frame(error)),
            Some(Ok(came)) => came,
        };
        let took = Duration::from_micros(u64::from(came.duration_us));
        let step = self.in_flight.front().expect("the port gives one result for each step that was submitted");
        match results::read(step, &came, vocab_size) {
            Ok((results, not_finite)) => {
                let step = self.in_flight.pop_front().expect("looked at above");
                self.void_rows_behind(&step, &results);
                let elapsed = step.submitted.elapsed();
                let took = took.min(elapsed); // whatever the worker's clock says
                if self.patience.begun(step.submitted) == step.submitted {
                    let trip = (elapsed - took).min(TRIP_MAX);
                    self.trip = Some(self.trip.map_or(trip, |before| (before * 3 + trip) / 4));
                }
                let now = Instant::now();
                self.patience.learn(took, step.tokens, now);
                self.work_time.done(took, now);
                let parts = step.rows.iter().filter(|row| !row.samples);
                let computed = parts.map(|row| (row.request, row.start + row.count)).collect();
                let rows = step.rows.len();
                let is_bad = |row: &InFlightRow| not_finite.iter().any(|&(slot, _)| slot == SlotId(row.slot));
                let gives = |row: &InFlightRow| row.samples || row.pools;
                self.has_been_sound |= step.rows.iter().any(|row| gives(row) && !is_bad(row));
                self.judged = Some(step);
                Polled::Step { results, computed, not_finite, rows, took }
            }
            Err(garbage) => Polled::Garbage(garbage),
        }
    }

    /// The results that were read last are not believed: their step is written down and suspected with those behind it.
    pub(crate) fn reject(&mut self) {
        if let Some(step) = self.judged.take() {
            self.in_flight.push_front(step);
        }
    }

    /// Rows that count on a token that was not drawn count for nothing.
    fn void_rows_behind(&mut self, step: &InFlight, results: &StepResults) {
        let mut draws = results.draws.iter();
        for row in &step.rows {
            let first = draws.next().expect("a result for each draw");
            draws.by_ref().take(row.drafts as usize).for_each(drop); // such a row has no mask
            if !row.samples || first.is_some() {
                continue;
            }
            let later = self.in_flight.iter_mut().flat_map(|later| &mut later.rows);
            later.filter(|later| later.slot == row.slot).for_each(|later| later.mask = RowMask::Void);
        }
    }

    /// What has become of the workers' time. `has_requests`: whether there are any in slots; asked if nothing is in flight.
    pub(crate) fn work_time(&mut self, has_requests: impl FnOnce(GroupId) -> bool) -> &WorkTime {
        if self.in_flight.is_empty() && !has_requests(self.id) {
            self.work_time.pause();
        }
        &self.work_time
    }

    /// Since when the worker computes the oldest step in flight: since that was handed over, or since the one before was done.
    pub(crate) fn step_begun(&self) -> Option<Instant> {
        self.in_flight.front().map(|oldest| self.patience.begun(oldest.submitted))
    }

    /// How long a step and its results are on their way.
    pub(crate) fn trip(&self) -> Duration {
        self.trip.unwrap_or_default()
    }

    /// When the oldest step in flight is overdue.
    pub(crate) fn step_due(&self) -> Option<Due> {
        let oldest = self.in_flight.front().filter(|_| self.is_attached())?;
        let tokens: u32 = self.in_flight.iter().map(|step| step.tokens).sum();
        Some(self.patience.due(oldest.submitted, tokens, &self.deadlines))
    }

    /// Writes down what the worker was doing when it was lost: a line for each step, oldest first.
    pub(crate) fn dump(&self, reason: &str) {
        for step in &self.in_flight {
            tracing::warn!(
                group = self.id.0,
                step = step.step.0,
                age_ms = u64::try_from(step.submitted.elapsed().as_millis()).unwrap_or(u64::MAX),
                rows = step.rows.len(),
                tokens = step.tokens,
                blocks = step.blocks(self.block_size),
                requests = %step.requests(),
                reason = reason.lines().next(), // the last words of a process have been logged line by line
                "a step is lost with its worker"
            );
        }
    }
}
