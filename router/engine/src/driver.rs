//! The engine thread's loop: take in events, results and requests; plan; sleep on the bell.
//!
//! One turn, in this order, so that a token reaches its client before the next step is planned:
//!   1. what supervisors say      attached, lost, progress
//!   2. results                   check, commit, tell
//!   3. commands                  submit, abort, finish, drain
//!   4. plans                     one step ahead of the one that runs, for each group
//!
//! An assertion that fires in a turn is a bug of ours: the thread unwinds to `run`, replaces the workers, starts a new
//! core from the journal and goes on; twice within a minute ends the engine.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use pelton_core::{Core, CoreConfig, Event, GroupId, Micros, RequestId};
use pelton_frame::{Bell, Capacities};
use pelton_link::{LinkEvent, LinkOptions};
use pelton_record::{RecordOptions, RecordedCore, Recorder};
use tokio::sync::oneshot;

use crate::{
    EngineConfig, Failure, ModelReport, Phase, Stats,
    engine::Shared,
    group::{Group, Polled},
    inbox::Command,
    journal::Journal,
    step,
};

/// With nothing in flight the thread still wakes so often, so that no wait is without a bound.
const IDLE_WAIT: Duration = Duration::from_secs(60);
/// Two bugs of ours within this time end the engine.
const BUG_INTERVAL: Duration = Duration::from_secs(60);
/// Workers that die with the same request in a step, without a token between: then the request is to blame.
const DEATHS_MAX: u32 = 5;
/// How long a worker may take to end by itself.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

pub(crate) struct Driver {
    config: EngineConfig,
    capacities: Capacities,
    bell: Arc<Bell>,
    shared: Arc<Shared>,
    started: Instant,
    groups: Vec<Group>,
    /// Made when the first worker has told the model's shape.
    core: Option<RecordedCore>,
    recorder: Option<Recorder>,
    hash_key: [u64; 2],
    journal: Journal,
    drained: Option<oneshot::Sender<()>>,
    stats: Stats,
    last_admission: Option<Instant>,
    last_bug: Option<Instant>,
}

/// How a turn ended.
enum Turn {
    /// Something was done: look again before sleeping.
    Busy,
    /// Nothing to do before the bell rings or this time has passed.
    Idle(Duration),
    /// The thread ends.
    Over(Phase),
}

/// The engine thread.
pub(crate) fn run(mut driver: Driver, commands: &Receiver<Command>) {
    let last = loop {
        let seen = driver.bell.read();
        // The driver's state after a panic is thrown away but for the journal, whose methods leave no half-done entry.
        match catch_unwind(AssertUnwindSafe(|| driver.turn(commands))) {
            Ok(Turn::Busy) => {}
            Ok(Turn::Idle(timeout)) => {
                driver.bell.wait(seen, timeout);
            }
            Ok(Turn::Over(phase)) => break phase,
            Err(_) => {
                if let Err(phase) = driver.recover_from_bug() {
                    break phase;
                }
            }
        }
    };
    let reason = match &last {
        Phase::Failed { reason } => Failure::Internal(reason.clone()),
        _ => Failure::Unavailable("the server is shutting down".to_owned()),
    };
    driver.journal.fail_all(&reason);
    for group in &driver.groups {
        group.link.shutdown(SHUTDOWN_DEADLINE);
    }
    driver.end_recording();
    driver.set_phase(last);
}

impl Driver {
    pub(crate) fn start(config: EngineConfig, bell: Arc<Bell>, shared: Arc<Shared>) -> Result<Self, Failure> {
        let capacities = step::capacities(config.max_running, config.token_budget);
        let recorder = config.record.clone().map(record).transpose()?;
        let mut groups = Vec::new();
        for (index, spec) in config.workers.iter().enumerate() {
            let options = LinkOptions::new(spec.clone(), config.load.clone(), capacities, Arc::clone(&bell));
            let (link, events) = pelton_link::start(options).map_err(|error| Failure::Internal(error.to_string()))?;
            let id =
                GroupId(u16::try_from(index).map_err(|_| Failure::Internal("more than 65,535 workers".to_owned()))?);
            groups.push(Group::new(id, link, events, config.max_running));
        }
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| Failure::Internal(format!("no randomness: {error}")))?;
        let (low, high) = key.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("split at 8"));
        Ok(Self {
            config,
            capacities,
            bell,
            shared,
            started: Instant::now(),
            groups,
            core: None,
            recorder,
            hash_key: [half(low), half(high)],
            journal: Journal::default(),
            drained: None,
            stats: Stats::default(),
            last_admission: None,
            last_bug: None,
        })
    }

    fn now(&self) -> Micros {
        Micros(
            u64::try_from(self.started.elapsed().as_micros()).expect("an engine lives less than half a million years"),
        )
    }

    fn turn(&mut self, commands: &Receiver<Command>) -> Turn {
        let mut is_busy = false;
        for index in 0..self.groups.len() {
            while let Ok(event) = self.groups[index].events.try_recv() {
                is_busy = true;
                if let Some(phase) = self.on_link_event(index, event) {
                    return Turn::Over(phase);
                }
            }
            is_busy |= self.read_results(index);
        }
        while let Ok(command) = commands.try_recv() {
            is_busy = true;
            if let Some(phase) = self.on_command(command) {
                return Turn::Over(phase);
            }
        }
        self.tick();
        for index in 0..self.groups.len() {
            is_busy |= self.plan(index);
        }
        self.tell_drained();
        self.publish_stats();
        if is_busy { Turn::Busy } else { Turn::Idle(self.sleep_bound()) }
    }

    fn on_link_event(&mut self, index: usize, event: LinkEvent) -> Option<Phase> {
        match event {
            LinkEvent::Progress { stage, done, total } => {
                if self.core.is_none() {
                    self.set_phase(Phase::Loading { stage, done, total });
                }
            }
            LinkEvent::Budget(budget) => {
                self.shared.status.send_modify(|status| status.budget = Some(budget));
            }
            LinkEvent::Attached { epoch, port, report } => {
                tracing::debug!(group = index, epoch, "worker attached");
                if let Err(reason) = self.attach(index, report, port) {
                    return Some(Phase::Failed { reason });
                }
            }
            LinkEvent::Lost { epoch, reason } => {
                // The supervisor has said so already; what was under way is known here alone.
                let in_flight = self.groups[index].describe_in_flight();
                if !in_flight.is_empty() {
                    tracing::warn!(group = index, epoch, "the lost worker's steps will be computed again: {in_flight}");
                }
                self.lose(index, &reason);
            }
            LinkEvent::GaveUp { reason } => {
                self.lose(index, &reason);
                return Some(Phase::Failed { reason });
            }
        }
        None
    }

    fn attach(&mut self, index: usize, report: ModelReport, port: pelton_frame::RouterEnd) -> Result<(), String> {
        let known = self.shared.status.borrow().model.clone();
        if let Some(known) = &known
            && (known.numerics_id != report.numerics_id
                || known.max_model_len != report.max_model_len
                || known.block_size != report.block_size)
        {
            return Err(format!(
                "worker {index} serves another model or computes otherwise than the first one: {report:?} against {known:?}"
            ));
        }
        if report.max_model_len > step::CONTEXT_MAX {
            return Err(format!(
                "a context of {} tokens is more than a frame holds; allowed: --max-model-len {} at most",
                report.max_model_len,
                step::CONTEXT_MAX
            ));
        }
        self.groups[index].attach(port);
        let (id, blocks) = (self.groups[index].id, report.blocks);
        let is_back = self.core.as_ref().is_some_and(|core| core.has_group(id));
        let core = self.core.get_or_insert_with(|| {
            let core = new_core(&self.config, &self.capacities, self.hash_key, &report);
            RecordedCore::new(core, self.recorder.clone())
        });
        if is_back {
            core.worker_back(id, blocks);
        } else {
            core.add_group(id, blocks);
        }
        self.shared.status.send_modify(|status| {
            status.model.get_or_insert(report);
        });
        if !matches!(self.shared.status.borrow().phase, Phase::Draining) {
            self.set_phase(Phase::Ready);
        }
        Ok(())
    }

    /// A worker is gone: its requests wait for the next one, from their committed tokens.
    fn lose(&mut self, index: usize, reason: &str) {
        let was_attached = self.groups[index].is_attached();
        let suspects = self.groups[index].detach();
        if !was_attached {
            return;
        }
        self.stats.worker_restarts += 1;
        let id = self.groups[index].id;
        let core = self.core.as_mut().expect("a worker was attached");
        core.worker_lost(id);
        for request in suspects {
            if self.journal.count_death(request) >= DEATHS_MAX {
                core.abort(request);
                let message = format!(
                    "{DEATHS_MAX} workers in a row died while they computed this request; the last one: {reason}"
                );
                self.journal.failed(request, Failure::Internal(message));
            }
        }
        let is_served = self.groups.iter().any(Group::is_attached);
        if !is_served && !matches!(self.shared.status.borrow().phase, Phase::Draining) {
            self.set_phase(Phase::Recovering { reason: reason.to_owned() });
        }
    }

    fn read_results(&mut self, index: usize) -> bool {
        let Some(vocab_size) = self.shared.status.borrow().model.as_ref().map(|model| model.vocab_size) else {
            return false;
        };
        let mut has_read = false;
        loop {
            match self.groups[index].poll(vocab_size) {
                Polled::Nothing => return has_read,
                Polled::Step { results, not_finite, rows, took } => {
                    has_read = true;
                    tracing::trace!(group = index, step = results.step.0, rows, ?took, "step");
                    let id = self.groups[index].id;
                    let core = self.core.as_mut().expect("a worker was attached");
                    for request in not_finite {
                        // Nothing it draws from here on means anything; its neighbours are computed apart from it.
                        core.abort(request);
                        self.journal.failed(
                            request,
                            Failure::Internal("the model's logits are not finite for this request".to_owned()),
                        );
                    }
                    if let Err(error) = core.commit(id, results) {
                        return self.replace(index, &error.to_string());
                    }
                    self.stats.steps += 1;
                    self.tell_events();
                }
                Polled::Garbage(reason) => return self.replace(index, &reason),
            }
        }
    }

    /// The worker answered garbage or nothing: another one takes its place. Counted as work done.
    fn replace(&mut self, index: usize, reason: &str) -> bool {
        self.stats.bad_frames += 1;
        tracing::error!(group = index, in_flight = %self.groups[index].describe_in_flight(), "replacing the worker: {reason}");
        self.groups[index].link.replace(reason.to_owned());
        self.lose(index, reason);
        true
    }

    fn tell_events(&mut self) {
        let core = self.core.as_mut().expect("events come from the core");
        let events: Vec<Event> = core.events().collect();
        for event in events {
            match event {
                Event::Admitted { request, cached } => {
                    if self.journal.admitted(request, cached) {
                        self.shared.queued.fetch_sub(1, Ordering::Relaxed);
                        let interval =
                            self.last_admission.replace(Instant::now()).map_or(0, |last| last.elapsed().as_micros());
                        smooth(&self.shared.admission_interval_us, u64::try_from(interval).unwrap_or(u64::MAX));
                    }
                }
                Event::Token { request, token, logprobs } => {
                    self.stats.generated_tokens += 1;
                    self.journal.token(request, token, logprobs);
                }
                Event::Finished { request, reason, explanation } => {
                    self.journal.finished(request, reason, explanation);
                }
                Event::Expired { request, .. } => self.expire(request),
                Event::Refused { request, refusal } => self.refuse(request, &refusal.to_string()),
            }
        }
    }

    fn on_command(&mut self, command: Command) -> Option<Phase> {
        match command {
            Command::Submit(request, submission, outputs) => {
                self.journal.insert(request, submission, outputs, self.now());
                let new = self.journal.as_new(request).expect("inserted above");
                let core = self.core.as_mut().expect("the handle takes requests only once the model is known");
                if let Err(refusal) = core.submit(new) {
                    self.refuse(request, &refusal.to_string());
                }
            }
            Command::Abort(request) => {
                if self.journal.contains(request) {
                    self.stats.aborted += 1;
                    self.leave(request, RecordedCore::abort);
                }
            }
            Command::Explain(request) => {
                if let Some(explanation) = self.core.as_ref().and_then(|core| core.explain(request)) {
                    self.journal.explained(request, explanation);
                }
            }
            Command::Finish(request) => self.leave(request, RecordedCore::finish),
            Command::Drain(done) => {
                self.set_phase(Phase::Draining);
                self.drained = Some(done);
            }
            Command::Shutdown => return Some(Phase::Ended),
        }
        None
    }

    /// The schedule cannot hold a request that the handle let pass: the worker that came back has less memory.
    fn refuse(&mut self, request: RequestId, why: &str) {
        if self.journal.is_waiting(request) {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
        }
        self.journal.failed(request, Failure::Internal(why.to_owned()));
    }

    fn expire(&mut self, request: RequestId) {
        if self.journal.is_waiting(request) {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
        }
        self.journal.expired(request);
    }

    /// Ends the requests whose time is over. The core knows them.
    fn tick(&mut self) {
        let now = self.now();
        if let Some(core) = self.core.as_mut() {
            core.tick(now);
            self.tell_events();
        }
    }

    fn leave(&mut self, request: RequestId, how: fn(&mut RecordedCore, RequestId)) {
        if let Some(was_admitted) = self.journal.remove(request) {
            if !was_admitted.0 {
                self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            }
            how(self.core.as_mut().expect("a live request has a core"), request);
        }
    }

    fn plan(&mut self, index: usize) -> bool {
        let mut has_planned = false;
        while self.groups[index].has_free_frame() {
            let (id, now) = (self.groups[index].id, self.now());
            let Some(core) = self.core.as_mut() else { break };
            let Some(plan) = core.plan(id, now) else { break };
            has_planned = true;
            if let Err(error) = self.groups[index].submit(&plan) {
                return self.replace(index, &error.to_string());
            }
        }
        if has_planned {
            self.tell_events();
        }
        has_planned
    }

    fn tell_drained(&mut self) {
        if self.journal.is_empty()
            && let Some(done) = self.drained.take()
        {
            // The one who waited may have passed its deadline.
            let _ = done.send(());
        }
    }

    /// Until the nearest deadline of a step. A step that is overdue is dealt with here.
    fn sleep_bound(&mut self) -> Duration {
        let mut bound = IDLE_WAIT;
        if let Some(deadline) = self.core.as_ref().and_then(|core| core.next_deadline()) {
            bound = bound.min(Duration::from_micros(deadline.0.saturating_sub(self.now().0)));
        }
        for index in 0..self.groups.len() {
            let Some((deadline, allowed)) = self.groups[index].step_deadline() else { continue };
            match deadline.checked_duration_since(Instant::now()) {
                Some(left) => bound = bound.min(left),
                None => {
                    self.replace(
                        index,
                        &format!("a step has taken longer than its deadline of {} s", allowed.as_secs()),
                    );
                    return Duration::ZERO;
                }
            }
        }
        bound
    }

    fn recover_from_bug(&mut self) -> Result<(), Phase> {
        let is_second = self.last_bug.replace(Instant::now()).is_some_and(|last| last.elapsed() < BUG_INTERVAL);
        if is_second {
            return Err(Phase::Failed { reason: "two internal errors within a minute; see the log".to_owned() });
        }
        tracing::error!(
            requests = self.journal.len(),
            "an assertion failed on the engine thread; replacing the workers and replaying"
        );
        let mut core_groups = BTreeSet::new();
        for group in &mut self.groups {
            if group.is_attached() {
                group.link.replace("an internal error of the router".to_owned());
                core_groups.insert(group.id);
            }
            group.detach();
        }
        self.core = None;
        let model = self.shared.status.borrow().model.clone();
        if let Some(report) = model {
            let core = new_core(&self.config, &self.capacities, self.hash_key, &report);
            let mut core = RecordedCore::new(core, self.recorder.clone());
            for group in core_groups {
                core.add_group(group, report.blocks);
                core.worker_lost(group);
            }
            for request in self.journal.replayable() {
                let id = request.id;
                if let Err(refusal) = core.submit(request) {
                    tracing::error!(request = id.0, "not replayed: {refusal}");
                }
            }
            self.core = Some(core);
            self.set_phase(Phase::Recovering { reason: "an internal error; requests are replayed".to_owned() });
        }
        Ok(())
    }

    /// Writes what is not written yet.
    fn end_recording(&mut self) {
        (self.core, self.recorder) = (None, None);
    }

    fn set_phase(&self, phase: Phase) {
        self.shared.status.send_modify(|status| status.phase = phase);
    }

    fn publish_stats(&mut self) {
        if let Some(core) = &self.core {
            let counts = core.counts();
            self.stats.running = counts.running as u64;
            self.stats.blocks_held = counts.blocks_held as u64;
            self.stats.blocks = counts.blocks as u64;
            self.stats.preemptions = counts.preemptions;
            self.stats.replayed = counts.replayed;
            self.stats.prompt_tokens = counts.prompt_tokens;
            self.stats.cached_tokens = counts.cached_tokens;
        }
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
    }
}

fn record(options: RecordOptions) -> Result<Recorder, Failure> {
    let file = options.file.display().to_string();
    Recorder::start(options).map_err(|error| Failure::Internal(format!("cannot record to {file}: {error}")))
}

fn new_core(config: &EngineConfig, capacities: &Capacities, hash_key: [u64; 2], report: &ModelReport) -> Core {
    Core::new(CoreConfig {
        block_size: report.block_size,
        max_model_len: report.max_model_len,
        limits: step::limits(capacities),
        max_running: config.max_running,
        // The handle counts the queue, so that a refusal needs no turn of this thread.
        max_waiting: usize::MAX,
        token_budget: config.token_budget,
        itl_target_us: config.itl_target.map(|target| u32::try_from(target.as_micros()).unwrap_or(u32::MAX)),
        hash_key,
        prefix_caching: config.prefix_caching,
        tells_cache_changes: false,
    })
}

/// An average that follows: each new value counts an eighth.
fn smooth(average: &std::sync::atomic::AtomicU64, value: u64) {
    let old = average.load(Ordering::Relaxed);
    let new = if old == 0 { value } else { old - old / 8 + value / 8 };
    average.store(new, Ordering::Relaxed);
}
