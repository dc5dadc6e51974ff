//! The handle that servers hold: submits requests, tells status and counters, ends the engine.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pelton_core::{CacheScope, Goal, RequestId, blocks_at};
use pelton_frame::Bell;
use pelton_kv_store::Folder;
use pelton_link::{LoadOptions, ModelReport, WorkerSpec};
use pelton_record::RecordOptions;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    Answer, CacheEventOptions, Embeds, Failure, Phase, QueueLimits, Stats, Status, Submission, TierOptions,
    driver::{self, Driver},
    inbox::{Command, Inbox},
    names::HashKey,
    queue::{Place, Queue},
};

/// What an engine is made of.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// One per worker group; at least one.
    pub workers: Vec<WorkerSpec>,
    /// What each worker loads, and within which bounds.
    pub load: LoadOptions,
    /// Requests in a batch at most. A worker has so many slots, and `drafts_max` for drafts.
    pub max_running: u32,
    /// Drafts of a request in a step at most; 0: none.
    pub drafts_max: u32,
    /// Tokens in a step at most.
    pub token_budget: u32,
    /// Whether prompts may be given as embeddings: frames have room for some then.
    pub prompt_embeds: bool,
    /// How long a step that draws tokens should take; prompts are cut so that it does.
    pub itl_target: Option<Duration>,
    /// What may wait.
    pub queue: QueueLimits,
    /// Whether blocks of finished requests are found again by their tokens.
    pub prefix_caching: bool,
    /// How many percent of a worker's blocks prompts may take that clients want to be kept.
    pub pin_share: u32,
    /// How many percent of a worker's blocks a tenant's requests may leave in the prefix cache; 100: no bound.
    pub tenant_cache_share: u32,
    /// What is kept of blocks that leave the devices.
    pub tiers: TierOptions,
    /// Where readers hear what the prefix caches hold. None: nobody is told.
    pub cache_events: Option<CacheEventOptions>,
    /// Where to record what the core is told, if anywhere.
    pub record: Option<RecordOptions>,
    /// Bounds of all waits for workers.
    pub deadlines: Deadlines,
}

impl EngineConfig {
    /// The slots of a worker, which are also the draws of a step.
    pub fn slots(&self) -> u32 {
        slots(self.max_running, self.drafts_max)
    }
}

/// The slots of a worker that computes so many requests at once, and so many drafts for each at most: one has room for all of
/// its drafts when all run.
pub fn slots(max_running: u32, drafts_max: u32) -> u32 {
    max_running + drafts_max
}

/// How long workers may take. The one that passes its bound is replaced, and the log names the bound.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// `first-step`: a worker's first step, which may compile kernels. Once a worker has done its first step, 20 times
    /// what that took or `step`, whichever is more, is enough for those after it.
    pub first_step: Duration,
    /// `step`: any later one, if 20 times what its tokens took at worst so far is not more.
    pub step: Duration,
    /// Starting, loading, and signs of life.
    pub link: pelton_link::Deadlines,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            first_step: Duration::from_secs(600),
            // No step takes longer than this on a machine that works, whatever its size.
            step: Duration::from_secs(60),
            link: pelton_link::Deadlines::default(),
        }
    }
}

/// A running engine. Clones are handles to the same one.
#[derive(Clone)]
pub struct Engine {
    inbox: Inbox,
    hash_key: HashKey,
    shared: Arc<Shared>,
}

/// What handles and the engine thread both see.
pub(crate) struct Shared {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) stats: Mutex<Stats>,
    /// Requests submitted and not yet admitted to a batch: the queue as submitters see it.
    pub(crate) queue: Arc<Queue>,
    next_request: AtomicU64,
    /// How many [`GoingOn`]s there are.
    going_on: watch::Sender<usize>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts workers and the engine thread, and returns at once: loading goes on behind it (see [`Engine::status`]).
    pub fn start(config: EngineConfig) -> Result<Self, Failure> {
        let internal = |what: &str, error: &dyn std::fmt::Display| Failure::Internal(format!("{what}: {error}"));
        // First of all, so that a second server with the same folder hears at once that it is taken.
        let folder = config.tiers.disk.as_ref().map(|disk| Folder::claim(&disk.folder)).transpose();
        let folder = folder.map_err(|error| Failure::Internal(format!("--kv-disk: {error}")))?;
        let hash_key = HashKey::of(folder.as_ref())?;
        let bell = Arc::new(Bell::create().map_err(|error| internal("cannot create shared memory", &error))?);
        let (commands, incoming) = crossbeam_channel::unbounded();
        let inbox = Inbox::new(commands, Arc::clone(&bell));
        let loading = Phase::Loading { stage: "starting the worker".to_owned(), done: 0, total: 0 };
        let shared = Arc::new(Shared {
            status: watch::Sender::new(Status { phase: loading, budget: None, model: None }),
            stats: Mutex::new(Stats::default()),
            queue: Queue::new(config.queue),
            next_request: AtomicU64::new(1),
            going_on: watch::Sender::new(0),
            thread: Mutex::new(None),
        });
        let driver = Driver::start(config, hash_key, folder, bell, Arc::clone(&shared))
            .map_err(|error| internal("cannot start a worker", &error))?;
        let thread = thread::Builder::new()
            .name("pelton-engine".to_owned())
            .spawn(move || driver::run(driver, &incoming))
            .map_err(|error| internal("cannot start the engine thread", &error))?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Self { inbox, hash_key, shared })
    }

    /// Takes requests that belong together, all of them, or says why not. Never waits.
    pub fn submit(&self, submissions: Vec<Submission>) -> Result<Vec<Answer>, Failure> {
        if matches!(self.shared.status.borrow().phase, Phase::Draining) {
            return Err(Failure::ShuttingDown);
        }
        self.submit_by(submissions, |tenant, requests| self.shared.queue.enter(tenant, requests, Instant::now()))
    }

    /// For somebody whose answer takes requests after requests, from the first one on.
    pub fn go_on(&self) -> GoingOn {
        self.shared.going_on.send_modify(|count| *count += 1);
        GoingOn(self.clone())
    }

    fn submit_by(
        &self,
        submissions: Vec<Submission>,
        enter: impl FnOnce(u64, &[(RequestId, u64)]) -> Result<Vec<Place>, Failure>,
    ) -> Result<Vec<Answer>, Failure> {
        submissions.iter().try_for_each(|submission| self.check(submission))?;
        let Some(first) = submissions.first() else { return Ok(Vec::new()) };
        let tenant = first.party.tenant;
        let first = self.shared.next_request.fetch_add(submissions.len() as u64, Ordering::Relaxed);
        let tokens = submissions.iter().map(|submission| submission.prompt.len() as u64);
        let requests: Vec<_> = (first..).map(RequestId).zip(tokens).collect();
        let places = enter(tenant, &requests)?;
        Ok(submissions.into_iter().zip(places).map(|(submission, place)| self.send(submission, place)).collect())
    }

    fn send(&self, submission: Submission, place: Place) -> Answer {
        let request = place.request();
        let (outputs, receiver) = mpsc::unbounded_channel();
        self.inbox.send(Command::Submit(request, Box::new(submission), place, outputs));
        Answer::new(request, receiver, self.inbox.clone())
    }

    /// The number of a text that a client chose, a salt or a user: the same as long as blocks can be found, on disk over
    /// restarts. Never 0.
    pub fn number(&self, text: &str) -> u64 {
        self.hash_key.number(text)
    }

    /// The scope of a prompt that begins with these embeddings: equal ones share blocks. Goes through all of them.
    pub fn scope_of(&self, embeds: &Embeds, model: &ModelReport) -> CacheScope {
        embeds.scope(model.block_size, self.hash_key)
    }

    fn check(&self, submission: &Submission) -> Result<(), Failure> {
        let status = self.shared.status.borrow();
        match &status.phase {
            Phase::Ready | Phase::Recovering { .. } | Phase::Draining => {}
            Phase::Loading { stage, .. } => {
                return Err(Failure::Unavailable(format!("the model is loading ({stage})")));
            }
            Phase::Ended => return Err(Failure::ShuttingDown),
            Phase::Failed { reason } => return Err(Failure::Internal(reason.clone())),
        }
        let model = status.model.as_ref().expect("the model is known from the first `Ready` on");
        assert!(!submission.prompt.is_empty(), "the server checks prompts");
        let embedded = submission.embeds.as_ref().map_or(0, |embeds| embeds.count());
        assert_eq!(submission.scope.embedded(), embedded, "what tokens stand for is part of their scope");
        assert!(
            submission.embeds.iter().all(|embeds| embeds.width() == model.embed_width),
            "the server looks at widths"
        );
        assert_eq!(submission.goal, driver::goal(model), "the server looks at what the model gives");
        let computed = match submission.goal {
            Goal::Tokens => {
                let tokens = submission.prompt.len() + submission.stop.max_tokens as usize;
                // The last token's KV is never written: nothing is computed after it.
                tokens.min(model.max_model_len as usize).saturating_sub(1).max(1)
            }
            Goal::VectorOfLast | Goal::VectorOfAll => submission.prompt.len(),
        };
        let computed = u32::try_from(computed).expect("no more than the context");
        let needed = blocks_at(&driver::kinds(model), model.block_size, computed) as usize;
        let blocks = model.blocks as usize;
        if needed > blocks {
            return Err(Failure::NeverFits { needed, blocks, block_size: model.block_size });
        }
        Ok(())
    }

    /// Phase and model, to read or to watch.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Counters as of the engine's latest turn.
    pub fn stats(&self) -> Stats {
        let mut stats = *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.queue = self.shared.queue.stats(Instant::now());
        stats
    }

    /// Refuses new requests from now on and waits until none is left, or `deadline` has passed.
    pub async fn drain(&self, deadline: Duration) {
        let (done, drained) = oneshot::channel();
        self.inbox.send(Command::Drain(done));
        let mut going_on = self.shared.going_on.subscribe();
        let all = async {
            let _ = drained.await;
            let _ = going_on.wait_for(|count| *count == 0).await;
        };
        let _ = tokio::time::timeout(deadline, all).await;
    }

    /// Ends what is left with an error, then the workers, then the engine. No process is left afterwards.
    pub async fn shutdown(&self) {
        self.inbox.send(Command::Shutdown);
        let mut status = self.shared.status.subscribe();
        // The sender lives as long as we do, so this ends by the phase alone.
        let _ = status.wait_for(|status| matches!(status.phase, Phase::Failed { .. } | Phase::Ended)).await;
    }

    /// The same for a caller that is a thread and not a task.
    pub fn blocking_shutdown(&self) {
        self.inbox.send(Command::Shutdown);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there has been reported there.
            let _ = thread.join();
        }
    }

    /// Has an assertion fire on the engine thread.
    #[cfg(feature = "plant-faults")]
    #[doc(hidden)]
    pub fn plant_bug(&self) {
        self.inbox.send(Command::PlantBug);
    }
}

/// Somebody whose answer takes one request after the other, and has had the first of them: no bound of the queue holds for those that
/// follow, and a drain waits for them.
pub struct GoingOn(Engine);

impl GoingOn {
    /// Takes the next ones. Never waits.
    pub fn submit(&self, submissions: Vec<Submission>) -> Result<Vec<Answer>, Failure> {
        let queue = &self.0.shared.queue;
        self.0.submit_by(submissions, |tenant, requests| Ok(queue.enter_to_go_on(tenant, requests)))
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        self.0.shared.going_on.send_modify(|count| *count -= 1);
    }
}
