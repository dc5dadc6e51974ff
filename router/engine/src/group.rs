//! One worker group as the engine sees it: its port while it lives, its steps in flight, who holds its slots.
//!
//! Invariant: `in_flight` holds exactly the steps that were submitted to the port and whose results were not read.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use pelton_core::{GroupId, Plan, RequestId, StepResults};
use pelton_frame::RouterEnd;
use pelton_link::{LinkEvent, LinkHandle};

use crate::step::{self, Flattened, InFlight, InFlightRow};

/// The first steps of a worker on a GPU compile kernels.
const FIRST_STEP_DEADLINE: Duration = Duration::from_secs(600);
/// Later, no step takes longer than this on a machine that works, whatever its size.
const STEP_DEADLINE_MIN: Duration = Duration::from_secs(60);
/// A step may take so many times what the slowest token so far has taken.
const STEP_DEADLINE_FACTOR: u32 = 20;

pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) link: LinkHandle,
    pub(crate) events: Receiver<LinkEvent>,
    /// `None` while the worker starts, loads or is replaced.
    port: Option<RouterEnd>,
    in_flight: VecDeque<InFlight>,
    /// Who holds each slot, and the log-probabilities it asked for.
    slots: Vec<Option<(RequestId, Option<u32>)>>,
    flattened: Flattened,
    /// The longest time per token of any step.
    slowest_token: Duration,
}

/// What became of results that were looked for.
pub(crate) enum Polled {
    Nothing,
    Step {
        results: StepResults,
        not_finite: Vec<RequestId>,
        rows: usize,
        took: Duration,
    },
    /// The worker answers what it should not: it has to be replaced.
    Garbage(String),
}

impl Group {
    pub(crate) fn new(id: GroupId, link: LinkHandle, events: Receiver<LinkEvent>, slots: u32) -> Self {
        Self {
            id,
            link,
            events,
            port: None,
            in_flight: VecDeque::new(),
            slots: vec![None; slots as usize],
            flattened: Flattened::default(),
            slowest_token: Duration::ZERO,
        }
    }

    pub(crate) fn attach(&mut self, port: RouterEnd) {
        assert!(self.in_flight.is_empty(), "a new worker has no step in flight");
        self.port = Some(port);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.port.is_some()
    }

    /// Forgets the worker. Returns the requests that were in its steps.
    pub(crate) fn detach(&mut self) -> Vec<RequestId> {
        self.port = None;
        self.slowest_token = Duration::ZERO;
        let mut suspects: Vec<RequestId> =
            self.in_flight.drain(..).flat_map(|step| step.rows).map(|row| row.request).collect();
        suspects.sort_unstable();
        suspects.dedup();
        self.slots.fill(None);
        suspects
    }

    pub(crate) fn has_free_frame(&self) -> bool {
        self.port.as_ref().is_some_and(RouterEnd::free_frame)
    }

    /// Writes the plan into a free frame and rings the worker.
    pub(crate) fn submit(&mut self, plan: &Plan) -> Result<(), pelton_frame::FrameError> {
        for &slot in &plan.drops {
            self.slots[slot.index()] = None;
        }
        for admit in &plan.admits {
            self.slots[admit.slot.index()] = Some((admit.request, admit.sampling.logprobs));
        }
        let rows = plan
            .rows
            .iter()
            .map(|row| {
                let (request, logprobs) =
                    self.slots[row.slot.index()].expect("the core plans rows for admitted slots only");
                InFlightRow { request, samples: row.samples, logprobs }
            })
            .collect();
        let port = self.port.as_mut().expect("the caller saw a free frame");
        port.submit(&self.flattened.fill(plan))?;
        self.in_flight.push_back(InFlight {
            step: plan.step,
            rows,
            tokens: plan.rows.iter().map(|row| row.count).sum(),
            submitted: Instant::now(),
        });
        Ok(())
    }

    /// Looks for the results of the oldest step in flight.
    pub(crate) fn poll(&mut self, vocab_size: u32) -> Polled {
        let Some(port) = self.port.as_mut() else { return Polled::Nothing };
        let results = match port.poll() {
            None => return Polled::Nothing,
            Some(Err(error)) => return Polled::Garbage(error.to_string()),
            Some(Ok(results)) => results,
        };
        let Some(step) = self.in_flight.pop_front() else {
            return Polled::Garbage("the worker answered a step that it was not given".to_owned());
        };
        let took = Duration::from_micros(u64::from(results.duration_us));
        self.slowest_token = self.slowest_token.max(took / step.tokens.max(1));
        match step::read(&step, &results, vocab_size) {
            Ok((results, not_finite)) => Polled::Step { results, not_finite, rows: step.rows.len(), took },
            Err(garbage) => Polled::Garbage(garbage.to_string()),
        }
    }

    /// When the oldest step in flight is overdue, and by which bound.
    pub(crate) fn step_deadline(&self) -> Option<(Instant, Duration)> {
        let oldest = self.in_flight.front()?;
        let tokens: u32 = self.in_flight.iter().map(|step| step.tokens).sum();
        let floor = if self.slowest_token.is_zero() { FIRST_STEP_DEADLINE } else { STEP_DEADLINE_MIN };
        let bound = (self.slowest_token * tokens.saturating_mul(STEP_DEADLINE_FACTOR)).max(floor);
        Some((oldest.submitted + bound, bound))
    }

    /// What runs now, for the log of a worker that is replaced.
    pub(crate) fn describe_in_flight(&self) -> String {
        let step = |step: &InFlight| {
            format!(
                "step {} ({} rows, {} tokens, {} ms old)",
                step.step.0,
                step.rows.len(),
                step.tokens,
                step.submitted.elapsed().as_millis()
            )
        };
        self.in_flight.iter().map(step).collect::<Vec<_>>().join(", ")
    }
}
