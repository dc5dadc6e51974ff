//! The engine without a network: bodies in, whole answers out. What stands behind the Python class `LLM`.
//!
//! A body is that of `/v1/completions` or `/v1/chat/completions`, read and checked by the same code; an answer is that
//! route's. Requests run beside each other; answers come in the order of their ends.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use pelton_engine::{Engine, Phase, Status};
use serde_json::Value;
use tokio::{
    runtime::{Handle, Runtime},
    sync::watch,
    task::AbortHandle,
};

use crate::{
    api::{
        chat::{ChatForm, ChatRequest},
        completion::{CompletionForm, CompletionRequest},
        stream::Head,
        unknown::Body,
        value_of,
    },
    command::{Trouble, serve},
    config::{Config, Surroundings},
    error::ApiError,
    generate::{Serving, Terms, seconds_since_1970},
};

/// Which route's form a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/completions`.
    Completion,
    /// `/v1/chat/completions`.
    Chat,
}

/// How far a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loading {
    /// What is being done, in words.
    pub stage: String,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all; 0: not known yet.
    pub total: u64,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfflineError {
    /// The caller's doing: a setting or a field.
    #[error("{0}")]
    Invalid(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

type Answered = (u64, Result<String, OfflineError>);

/// A model and its engine.
pub struct Offline {
    /// Taken by `close`.
    runtime: Mutex<Option<Runtime>>,
    handle: Handle,
    engine: Engine,
    serving: Arc<Serving>,
    status: watch::Receiver<Status>,
    running: Mutex<HashMap<u64, AbortHandle>>,
    next_ticket: AtomicU64,
    answers: mpsc::Sender<Answered>,
    answered: Mutex<mpsc::Receiver<Answered>>,
}

impl Offline {
    /// Finds the model and starts loading it.
    pub fn start(settings: &[(String, String)], around: &Surroundings) -> Result<Self, OfflineError> {
        let config =
            Config::from_arguments(settings, around).map_err(|error| OfflineError::Invalid(error.to_string()))?;
        let runtime = Runtime::new().map_err(|error| OfflineError::Failed(format!("cannot start threads: {error}")))?;
        let opened = serve::open(&config, around, &|_, _, _| (), &OnceLock::new())
            .map_err(|(Trouble::Failed(why) | Trouble::Usage(why))| OfflineError::Invalid(why))?;
        let (answers, answered) = mpsc::channel();
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            status: opened.engine.status(),
            engine: opened.engine,
            serving: opened.serving,
            running: Mutex::default(),
            next_ticket: AtomicU64::new(1),
            answers,
            answered: Mutex::new(answered),
        })
    }

    /// Waits until the model is loaded (`None`), or until the timeout has passed.
    pub fn wait_loaded(&self, timeout: Duration) -> Result<Option<Loading>, OfflineError> {
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !matches!(status.phase, Phase::Loading { .. }));
        // The timer belongs to the runtime.
        _ = self.handle.block_on(async { tokio::time::timeout(timeout, settled).await.map(|found| found.map(drop)) });
        match &self.status.borrow().phase {
            Phase::Loading { stage, done, total } => {
                Ok(Some(Loading { stage: stage.clone(), done: *done, total: *total }))
            }
            Phase::Failed { reason } => Err(OfflineError::Failed(reason.clone())),
            Phase::Ready | Phase::Recovering { .. } => Ok(None),
            Phase::Draining | Phase::Ended => Err(OfflineError::Failed("the engine was closed".to_owned())),
        }
    }

    /// Starts a request; its answer comes out of `next` with this ticket.
    pub fn submit(&self, kind: Kind, body: Vec<u8>) -> u64 {
        let ticket = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (serving, answers) = (Arc::clone(&self.serving), self.answers.clone());
        let mut running = lock(&self.running);
        let task = self.handle.spawn(async move {
            let answer = answer(&serving, kind, body, ticket).await.map_err(|error| refused(&error));
            // Nobody listens after the end.
            _ = answers.send((ticket, answer.map(|json| json.to_string())));
        });
        running.insert(ticket, task.abort_handle());
        ticket
    }

    /// The next answer that is complete, if one comes within the timeout.
    pub fn next(&self, timeout: Duration) -> Option<Answered> {
        let deadline = Instant::now() + timeout;
        let answered = lock(&self.answered);
        loop {
            let (ticket, answer) = answered.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
            // What was cancelled after it had ended is nobody's answer any more.
            if lock(&self.running).remove(&ticket).is_some() {
                return Some((ticket, answer));
            }
        }
    }

    /// Aborts a request.
    pub fn cancel(&self, ticket: u64) {
        if let Some(task) = lock(&self.running).remove(&ticket) {
            task.abort();
        }
    }

    /// Aborts all requests and ends the worker. A second call does nothing.
    pub fn close(&self) {
        for (_, task) in lock(&self.running).drain() {
            task.abort();
        }
        if let Some(runtime) = lock(&self.runtime).take() {
            self.engine.blocking_shutdown();
            runtime.shutdown_background();
        }
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        self.close();
    }
}

async fn answer(serving: &Arc<Serving>, kind: Kind, body: Vec<u8>, ticket: u64) -> Result<Value, ApiError> {
    let terms = Terms::now();
    let body = Body::new(body.into(), serving.limits.passes_unknown.then(Arc::default));
    let head = |prefix: &str, object| Head {
        id: format!("{prefix}-{ticket}"),
        object,
        created: seconds_since_1970(),
        model: serving.model_name().to_owned(),
        system_fingerprint: serving.fingerprint(),
    };
    let json = match kind {
        Kind::Completion => {
            let request = serving.on_text(body.len(), move || CompletionRequest::read(&body)).await?;
            let generation =
                serving.generate(request.request.clone(), terms).await.map_err(|error| request.renamed(error))?;
            let head = head("cmpl", "text_completion");
            let form = CompletionForm::new(head, serving.tokenizer.clone(), &request, &generation);
            value_of(&form.whole(generation.whole().await?))
        }
        Kind::Chat => {
            let request = serving.on_text(body.len(), move || ChatRequest::read(&body)).await?;
            let generation =
                serving.generate(request.request.clone(), terms).await.map_err(|error| request.renamed(error))?;
            let head = head("chatcmpl", "chat.completion");
            let form = ChatForm::new(head, serving.tokenizer.clone(), &request, &generation);
            value_of(&form.whole(generation.whole().await?))
        }
    };
    json.map_err(|error| ApiError::Internal { log: format!("an answer is no JSON: {error}") })
}

fn refused(error: &ApiError) -> OfflineError {
    let message = error.to_string();
    if error.status().is_client_error() { OfflineError::Invalid(message) } else { OfflineError::Failed(message) }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere leaves no half-done value behind these locks: each holds one statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
