//! The engine thread's loop: take in events, results and requests; plan; sleep on the bell.
//!
//! One turn, in this order, so that a token reaches its client before the next step is planned:
//!   1. what supervisors say      attached, lost, progress
//!   2. results                   check, commit, tell
//!   3. the disk                  what it has done
//!   4. commands                  submit, abort, finish, drain
//!   5. plans                     one step ahead of the one that runs, for each group (`plans.rs`)
//!
//! What a lost worker means is in `losses.rs`. An assertion that fires in a turn is a bug of ours: the thread unwinds to
//! `run`, and `bugs.rs` starts again from the journal; twice within a minute ends the engine.

mod begin;
mod bugs;
mod counts;
mod keeping;
mod losses;
mod not_finite;
mod plans;
mod requests;
mod tiers;

pub use tiers::TierOptions;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use pelton_core::{Counts, Event, GroupId, Micros, RequestId};
use pelton_frame::{Bell, Capacities};
use pelton_kv_store::Folder;
use pelton_link::{LinkEvent, LinkOptions};
use pelton_record::{RecordOptions, RecordedCore, Recorder};
use tokio::sync::oneshot;

pub use begin::goal;
pub(crate) use begin::kinds;
use begin::{new_core, unfit};
use keeping::Keeping;
use tiers::{Arrival, Tiers};

use crate::{
    EngineConfig, Failure, Phase, Stats,
    cache_events::CacheEvents,
    engine::Shared,
    group::{Group, Polled},
    inbox::Command,
    journal::Journal,
    masks::Masks,
    names::HashKey,
    results::Garbage,
    step,
    suspects::Suspects,
};

/// With nothing in flight the thread still wakes so often, so that no wait is without a bound.
const IDLE_WAIT: Duration = Duration::from_secs(60);
/// How long a worker may take to end by itself.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

pub(crate) struct Driver {
    config: EngineConfig,
    capacities: Capacities,
    bell: Arc<Bell>,
    shared: Arc<Shared>,
    started: Instant,
    groups: Vec<Group>,
    /// By group; empty if nobody is told.
    cache_events: Vec<CacheEvents>,
    /// Made when the first worker has told the model's shape.
    core: Option<RecordedCore>,
    recorder: Option<Recorder>,
    tiers: Tiers,
    keeping: Keeping,
    hash_key: HashKey,
    journal: Journal,
    masks: Masks,
    suspects: Suspects,
    drained: Option<oneshot::Sender<()>>,
    stats: Stats,
    /// Of the core that there is now: a core after a bug counts from 0.
    counts_seen: Counts,
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
                if let Err(phase) = driver.recover() {
                    break phase;
                }
            }
        }
    };
    let reason = match &last {
        Phase::Failed { reason } => Failure::Internal(reason.clone()),
        _ => Failure::ShuttingDown,
    };
    driver.journal.fail_all(&reason);
    driver.journal.say_last_words();
    for group in &driver.groups {
        group.link.shutdown(SHUTDOWN_DEADLINE);
    }
    driver.tiers.finish(SHUTDOWN_DEADLINE);
    driver.publish_stats();
    driver.end_recording();
    driver.set_phase(last);
}

impl Driver {
    pub(crate) fn start(
        config: EngineConfig,
        hash_key: HashKey,
        folder: Option<Folder>,
        bell: Arc<Bell>,
        shared: Arc<Shared>,
    ) -> Result<Self, Failure> {
        let capacities = step::capacities(config.slots(), config.token_budget, config.prompt_embeds);
        let recorder = config.record.clone().map(record).transpose()?;
        let mut cache_events = Vec::new();
        if let Some(options) = &config.cache_events {
            for index in 0..config.workers.len() {
                let bound = CacheEvents::bind(options, index, config.workers.len());
                cache_events.push(bound.map_err(|error| Failure::Internal(error.to_string()))?);
            }
        }
        let tiers = Tiers::start(&config, folder, &bell)?;
        let masks = Masks::new(Arc::clone(&bell));
        let mut groups = Vec::new();
        for (index, spec) in config.workers.iter().enumerate() {
            let mut options = LinkOptions::new(spec.clone(), config.load.clone(), capacities, Arc::clone(&bell));
            options.deadlines = config.deadlines.link;
            options.host = tiers.share.clone();
            let (link, events) = pelton_link::start(options).map_err(|error| Failure::Internal(error.to_string()))?;
            let id =
                GroupId(u16::try_from(index).map_err(|_| Failure::Internal("more than 65,535 workers".to_owned()))?);
            groups.push(Group::new(id, link, events, config.slots(), config.deadlines));
        }
        Ok(Self {
            config,
            capacities,
            bell,
            shared,
            started: Instant::now(),
            groups,
            cache_events,
            core: None,
            recorder,
            tiers,
            keeping: Keeping::default(),
            hash_key,
            journal: Journal::default(),
            masks,
            suspects: Suspects::default(),
            drained: None,
            stats: Stats::default(),
            counts_seen: Counts::default(),
            last_bug: None,
        })
    }

    fn now(&self) -> Micros {
        Micros(
            u64::try_from(self.started.elapsed().as_micros()).expect("an engine lives less than half a million years"),
        )
    }

    fn turn(&mut self, commands: &Receiver<Command>) -> Turn {
        let (mut is_busy, now) = (false, self.now());
        if let Some(core) = self.core.as_mut() {
            core.clock(now); // what has come while the thread slept did not come when it fell asleep
        }
        for index in 0..self.groups.len() {
            while let Ok(event) = self.groups[index].events.try_recv() {
                is_busy = true;
                if let Some(phase) = self.on_link_event(index, event) {
                    return Turn::Over(phase);
                }
            }
            is_busy |= self.read_results(index);
        }
        match self.hear_disk() {
            Ok(has_heard) => is_busy |= has_heard,
            Err(reason) => return Turn::Over(Phase::Failed { reason }),
        }
        while let Ok(command) = commands.try_recv() {
            is_busy = true;
            if let Some(phase) = self.on_command(command) {
                return Turn::Over(phase);
            }
        }
        self.tick();
        self.end_displaced();
        is_busy |= self.end_stuck();
        is_busy |= self.hear_runs();
        self.tell_cache_changes();
        is_busy |= self.release();
        for index in 0..self.groups.len() {
            is_busy |= self.plan(index);
        }
        self.order_disk();
        self.publish_stats();
        self.journal.say_last_words();
        self.tell_drained();
        if is_busy { Turn::Busy } else { Turn::Idle(self.sleep_bound()) }
    }

    fn on_link_event(&mut self, index: usize, event: LinkEvent) -> Option<Phase> {
        match event {
            LinkEvent::Progress { stage, done, total } => {
                self.tiers.will_read(index);
                // Several workers load the same on the same machine: the first one speaks for all.
                if self.core.is_none() && index == 0 {
                    self.set_phase(Phase::Loading { stage, done, total });
                }
            }
            LinkEvent::Budget(budget) => {
                self.tiers.will_read(index);
                self.shared.status.send_modify(|status| status.budget = Some(budget));
            }
            LinkEvent::Attached { epoch, port, report, host, masks } => {
                tracing::debug!(group = index, epoch, "worker attached");
                let files = self.tiers.were_read(index, host.as_ref());
                if let Err(reason) = self.arrive(Arrival { index, port, masks, report, host, files }) {
                    return Some(Phase::Failed { reason });
                }
            }
            LinkEvent::Lost { epoch, reason } => {
                tracing::debug!(group = index, epoch, "worker lost");
                self.tiers.left(index);
                self.read_results(index); // what it has published before its end counts
                self.lose(index, &reason);
            }
            LinkEvent::GaveUp { reason } => return self.gave_up(index, reason),
        }
        None
    }

    fn attach(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { index, port, masks, report, host, files } = arrival;
        let known = self.shared.status.borrow().model.clone();
        if let Some(known) = &known
            && (known.numerics_id != report.numerics_id
                || known.max_model_len != report.max_model_len
                || known.block_size != report.block_size
                || known.kinds != report.kinds
                || known.pooling != report.pooling
                || known.embed_width != report.embed_width)
        {
            return Err(format!(
                "worker {index} serves another model or computes otherwise than the first one: {report:?} against {known:?}"
            ));
        }
        if let Some(why) = unfit(&report, &self.capacities) {
            return Err(why);
        }
        let (id, blocks) = (self.groups[index].id, report.blocks);
        if self.core.is_none() {
            let (below, entries) = self.tiers.begin(&report);
            let core = new_core(&self.config, &self.capacities, self.hash_key.of_blocks(), &report, below);
            let now = self.now();
            let core = self.core.insert(RecordedCore::new(core, self.recorder.clone()));
            core.clock(now);
            if !entries.is_empty() {
                core.restore_disk(entries);
            }
        }
        let reaches_host = self.reaches_host(index, host.as_ref(), files);
        self.groups[index].attach(port, masks, report.block_size, blocks, reaches_host);
        let is_back = self.core.as_ref().is_some_and(|core| core.has_group(id));
        let core = self.core.as_mut().expect("made above");
        if is_back {
            core.worker_back(id, blocks, reaches_host);
        } else {
            core.add_group(id, blocks, reaches_host);
        }
        self.shared.status.send_modify(|status| {
            status.model.get_or_insert(report);
        });
        self.tell_blocks();
        self.tell_events(); // of those that fit no more
        self.set_phase(Phase::Ready);
        Ok(())
    }

    fn read_results(&mut self, index: usize) -> bool {
        let Some(vocab_size) = self.shared.status.borrow().model.as_ref().map(|model| model.vocab_size) else {
            return false;
        };
        let mut has_read = false;
        loop {
            match self.groups[index].poll(vocab_size) {
                Polled::Nothing => return has_read,
                Polled::Step { results, computed, not_finite, rows, took } => {
                    has_read = true;
                    tracing::trace!(group = index, step = results.step.0, rows, ?took, "step");
                    let id = self.groups[index].id;
                    let not_finite = self.not_finite(index, results.step, &not_finite);
                    if let Some(garbage) = &not_finite
                        && self.settle_blame(index, garbage)
                    {
                        return self.distrust(index, garbage);
                    }
                    let core = self.core.as_mut().expect("a worker was attached");
                    if let Err(error) = core.commit(id, results) {
                        self.groups[index].reject();
                        return self.distrust(index, &Garbage::Commit(error));
                    }
                    self.stats.steps += 1;
                    for (request, tokens) in computed {
                        if self.journal.contains(request) {
                            self.suspects.computed(request, tokens);
                        }
                    }
                    self.tell_events();
                    if let Some(garbage) = &not_finite {
                        self.compute_apart(index, garbage);
                    }
                    self.ask_for_masks(index);
                }
                Polled::Garbage(garbage) => return self.distrust(index, &garbage),
            }
        }
    }

    fn tell_events(&mut self) {
        let core = self.core.as_mut().expect("events come from the core");
        let (events, now): (Vec<Event>, _) = (core.events().collect(), Instant::now());
        for event in events {
            match event {
                Event::Admitted { request, cached } => {
                    if let Some(prompt) = self.journal.admitted(request, cached, now) {
                        self.stats.prompt_tokens += u64::from(prompt);
                        self.stats.cached_tokens += u64::from(cached);
                    }
                }
                Event::Token { request, token, logprobs } => {
                    self.stats.generated_tokens += 1;
                    self.journal.token(request, token, logprobs);
                    self.suspects.progressed(request);
                }
                Event::Scored { request, scores } => self.journal.scored(request, scores),
                Event::Vector { request, vector } => {
                    self.stats.vectors += 1;
                    self.journal.vector(request, vector);
                }
                Event::Finished { request, reason, explanation } => {
                    self.journal.finished(request, reason, explanation);
                    self.suspects.left(request);
                }
                Event::Expired { request, .. } => self.expire(request),
                Event::Refused { request, refusal } => self.refuse(request, refusal),
            }
        }
    }

    fn on_command(&mut self, command: Command) -> Option<Phase> {
        match command {
            Command::Submit(request, submission, place, outputs) => {
                self.journal.insert(request, *submission, place, outputs, self.now());
                self.submit(request);
                if self.suspects.is_inquiring() && self.journal.contains(request) {
                    self.core.as_mut().expect("it was submitted to it").hold(request);
                    self.suspects.withhold(request);
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
            #[cfg(feature = "plant-faults")]
            Command::PlantBug => panic!("a test has planted this"),
        }
        None
    }

    /// Ends the requests whose time is over. The core knows them.
    fn tick(&mut self) {
        let now = self.now();
        if let Some(core) = self.core.as_mut() {
            core.tick(now);
            self.tell_events();
        }
    }

    fn tell_cache_changes(&mut self) {
        let Some(core) = self.core.as_mut() else { return };
        for (group, events) in self.groups.iter().zip(&mut self.cache_events) {
            if core.has_group(group.id) {
                events.tell(core.cache_changes(group.id), group.block_size);
            }
        }
    }

    fn leave(&mut self, request: RequestId, how: fn(&mut RecordedCore, RequestId)) {
        if self.journal.remove(request) {
            how(self.core.as_mut().expect("a live request has a core"), request);
            self.suspects.left(request);
        }
    }

    /// Ends requests whose grammars cannot go on.
    fn end_stuck(&mut self) -> bool {
        let stuck: Vec<_> = self.masks.stuck().filter(|(request, _)| self.journal.contains(*request)).collect();
        for (request, why) in &stuck {
            self.core.as_mut().expect("who has a mask has run").abort(*request);
            self.fail(*request, Failure::stuck(why));
        }
        !stuck.is_empty()
    }

    /// Tells the core of tokens that are certain.
    fn hear_runs(&mut self) -> bool {
        let runs: Vec<_> = self.masks.runs().filter(|run| self.journal.contains(run.request)).collect();
        let has_heard = !runs.is_empty();
        for run in runs {
            let drawn = u32::try_from(run.drawn).expect("fewer than a context has");
            self.core.as_mut().expect("who has a mask has run").force(run.request, drawn, run.tokens);
        }
        has_heard
    }

    fn tell_drained(&mut self) {
        if self.journal.is_empty()
            && let Some(done) = self.drained.take()
        {
            // The one who waited may have passed its deadline.
            let _ = done.send(());
        }
    }

    /// Until the nearest deadline of a step, or the time to plan one. A step that is overdue is dealt with here.
    fn sleep_bound(&mut self) -> Duration {
        let mut bound = IDLE_WAIT;
        if let Some(deadline) = self.core.as_ref().and_then(|core| core.next_deadline()) {
            bound = bound.min(Duration::from_micros(deadline.0.saturating_sub(self.now().0)));
        }
        for index in 0..self.groups.len() {
            if let Some(at) = self.groups[index].plan_at {
                bound = bound.min(at.saturating_duration_since(Instant::now()));
            }
            let Some(due) = self.groups[index].step_due() else { continue };
            match due.at.checked_duration_since(Instant::now()) {
                Some(left) => bound = bound.min(left),
                None => {
                    self.overdue(index, due);
                    return Duration::ZERO;
                }
            }
        }
        bound
    }

    /// Writes what is not written yet.
    fn end_recording(&mut self) {
        (self.core, self.recorder) = (None, None);
    }

    /// Whoever drains goes on draining, whatever becomes of the workers meanwhile.
    fn set_phase(&self, phase: Phase) {
        let ends = matches!(phase, Phase::Draining | Phase::Ended | Phase::Failed { .. });
        self.shared.status.send_modify(|status| {
            if ends || !matches!(status.phase, Phase::Draining) {
                status.phase = phase;
            }
        });
    }
}

fn record(options: RecordOptions) -> Result<Recorder, Failure> {
    let file = options.file.display().to_string();
    Recorder::start(options).map_err(|error| Failure::Internal(format!("cannot record to {file}: {error}")))
}
