//! What all requests share: the engine, the model's text side, names and limits. Made once, at the start.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pelton_engine::{Engine, Failure, ModelReport, Phase, Status};
use pelton_grammar::Compiler;
use pelton_text::{ChatTemplate, Checkpoint, Format, Pool, PoolError, Tokenizer};
use tokio::sync::watch;

use super::{Options, constrain, fill::FillMarks, fingerprint::fingerprint, options::ModelFacts, thinking::thinks};
use crate::{
    error::{ApiError, shortened},
    metrics::Metrics,
    renderer::Renderer,
    room::{BodyRooms, Room, SMALL_BODY},
};

/// So many of the largest bodies are held at once.
const BODIES_HELD: usize = 16;

/// What a [`Serving`] is made of.
pub struct ServingParts {
    /// Takes tokens, gives tokens. May still be loading.
    pub engine: Engine,
    /// What the model's files say.
    pub checkpoint: Checkpoint,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's chat template, if it has one.
    pub template: Option<ChatTemplate>,
    /// How the model writes reasoning and tool calls, if that is known.
    pub format: Option<Format>,
    /// The names by which clients may call the model; at least one, and the first is the one that answers carry.
    pub served_names: Vec<String>,
    /// Bounds of what clients may ask.
    pub limits: ApiLimits,
    /// Threads for long texts.
    pub pool: Pool,
    /// Runs templates that come with requests; `None`: they may bring none.
    pub(crate) renderer: Option<Renderer>,
    /// See `fingerprint::sample`.
    pub(crate) sampled: [u8; 32],
}

/// Bounds of what clients may ask, and of how long we wait for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiLimits {
    /// Bytes of a request's body, and of a gRPC message.
    pub body_bytes: usize,
    /// Entries of `stop`.
    pub max_stop_strings: usize,
    /// Log-probabilities per token; a frame has room for no more.
    pub max_logprobs: u32,
    /// Answers per prompt.
    pub max_n: u32,
    /// Prompts per request, and answers of all of them together.
    pub max_choices: usize,
    /// How long a request may take in all; `None`: as long as it takes.
    pub request_timeout: Option<Duration>,
    /// How long a client may leave a stream unread before its request is aborted and its connection cut.
    pub stall_timeout: Duration,
    /// How often an idle stream says that it is alive.
    pub keep_alive: Duration,
    /// Clients that are connected at the same time.
    pub max_connections: usize,
    /// Whether prompts may be kept in the prefix cache for longer.
    pub keeps_prompts: bool,
    /// Whether prompts may come as embeddings.
    pub prompt_embeds: bool,
    /// Whether fields that nobody knows are not refused.
    pub passes_unknown: bool,
}

impl ApiLimits {
    /// What is in force unless configured otherwise.
    pub const DEFAULT: Self = Self {
        body_bytes: 32 << 20,
        max_stop_strings: 4,
        max_logprobs: 20,
        max_n: 128,
        max_choices: 1024,
        request_timeout: None,
        stall_timeout: Duration::from_secs(30),
        keep_alive: Duration::from_secs(15),
        max_connections: 4096,
        keeps_prompts: true,
        prompt_embeds: false,
        passes_unknown: false,
    };

    /// Bytes of the largest bodies that are held at once.
    fn held_bytes(&self) -> usize {
        self.body_bytes.saturating_mul(BODIES_HELD)
    }

    /// Each connection finds room for a small one; those with many requests at once share what there is.
    fn body_rooms(&self) -> BodyRooms {
        let small = self.held_bytes().max(self.max_connections.saturating_mul(SMALL_BODY));
        BodyRooms { small: Room::new(small), large: Room::new(self.held_bytes()) }
    }
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The model and all that serves it, shared by every request.
pub struct Serving {
    pub(crate) engine: Engine,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) served_names: Vec<String>,
    pub(crate) limits: ApiLimits,
    pub(crate) pool: Pool,
    pub(crate) renderer: Option<Renderer>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    /// Seconds since 1970 at the start: `created` of the model's card.
    pub(crate) created: u64,
    /// How the model writes reasoning and tool calls.
    pub(crate) format: Option<Format>,
    /// How the model is asked for what belongs between two texts.
    pub(crate) fill: Option<FillMarks>,
    /// For prompts that come as embeddings, as long as they wait or run.
    pub(crate) embeds_room: Room,
    pub(crate) body_rooms: BodyRooms,
    /// What answers are constrained to.
    pub(crate) grammars: Arc<Compiler>,
    /// No token stands for more bytes of text than this.
    pub(crate) longest_token_bytes: usize,
    /// Whether the model thinks by itself: its template or its vocabulary has the mark that ends thoughts.
    pub(super) thinks: bool,
    sampled: [u8; 32],
    /// From the first request on that finds the model loaded: a worker that takes another's place computes the same.
    fingerprint: OnceLock<String>,
}

impl Serving {
    /// Puts the parts together. `served_names` must have an entry.
    pub fn new(parts: ServingParts) -> Arc<Self> {
        let ServingParts {
            engine,
            checkpoint,
            tokenizer,
            template,
            format,
            served_names,
            limits,
            pool,
            renderer,
            sampled,
        } = parts;
        assert!(!served_names.is_empty(), "a model is served under some name");
        let context = checkpoint.max_model_len.unwrap_or(1 << 20);
        let token_bytes = |id| tokenizer.token_bytes(id).map_or(0, <[u8]>::len);
        let longest_token_bytes = (0..tokenizer.vocab_size()).map(token_bytes).max().unwrap_or(0).max(1);
        let thinks = format.as_ref().is_some_and(|format| thinks(format, template.as_ref(), &tokenizer));
        let grammars = Arc::new(constrain::compiler(&tokenizer, &checkpoint));
        Arc::new(Self {
            fill: FillMarks::of(&tokenizer),
            embeds_room: Room::new(limits.held_bytes()),
            body_rooms: limits.body_rooms(),
            grammars,
            status: engine.status(),
            metrics: Arc::new(Metrics::new(&served_names[0], context)),
            started: Instant::now(),
            created: seconds_since_1970(),
            engine,
            checkpoint,
            tokenizer,
            template,
            served_names,
            limits,
            pool,
            renderer,
            format,
            longest_token_bytes,
            thinks,
            sampled,
            fingerprint: OnceLock::new(),
        })
    }

    /// What answers depend on beside their requests; `None`: no model is loaded.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        if let Some(known) = self.fingerprint.get() {
            return Some(known.clone());
        }
        let status = self.status.borrow();
        let model = status.model.as_ref()?;
        Some(self.fingerprint.get_or_init(|| fingerprint(&self.sampled, model)).clone())
    }

    /// The name that answers carry.
    pub(crate) fn model_name(&self) -> &str {
        &self.served_names[0]
    }

    /// Checks the name that a client calls the model by; none, or an empty one, means the served model.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(name) if !name.is_empty() && !self.served_names.iter().any(|served| served == name) => {
                Err(ApiError::UnknownModel { asked: shortened(name), served: self.served_names.join(", ") })
            }
            _ => Ok(()),
        }
    }

    /// The loaded model, or why requests cannot be taken now.
    pub(crate) fn ready(&self) -> Result<ModelReport, ApiError> {
        let status = self.status.borrow();
        let reason = match &status.phase {
            Phase::Ready | Phase::Recovering { .. } => {
                return Ok(status.model.clone().expect("the model is known from the first `Ready` on"));
            }
            Phase::Loading { stage, .. } => format!("the model is loading ({stage})"),
            Phase::Draining | Phase::Ended => return Err(Failure::ShuttingDown.into()),
            Phase::Failed { reason } => reason.clone(),
        };
        Err(ApiError::Unavailable { reason, retry_after_s: retry_after_s(&status.phase, self.started.elapsed()) })
    }

    /// Prompt and answer together: as loaded, or as the checkpoint says until then.
    pub(crate) fn max_model_len(&self) -> Option<u32> {
        let status = self.status.borrow();
        let loaded = status.model.as_ref().map(|model| model.max_model_len);
        let planned = status.budget.map(|budget| budget.max_model_len);
        loaded.or(planned).or(self.checkpoint.max_model_len)
    }

    pub(crate) fn facts(&self, model: &ModelReport) -> ModelFacts<'_> {
        ModelFacts {
            vocab_size: model.vocab_size,
            max_model_len: model.max_model_len,
            eos_ids: &self.checkpoint.eos_ids,
            defaults: &self.checkpoint.defaults,
            limits: &self.limits,
            separates_tokens: self.tokenizer.separates_tokens(),
        }
    }

    /// The same of a model that may still load, as far as it is known.
    pub(super) fn facts_so_far(&self) -> ModelFacts<'_> {
        let loaded = self.status.borrow().model.as_ref().map(|model| model.vocab_size);
        ModelFacts {
            vocab_size: loaded.or(self.checkpoint.vocab_size).unwrap_or_else(|| self.tokenizer.vocab_size()),
            max_model_len: self.max_model_len().unwrap_or(u32::MAX),
            eos_ids: &self.checkpoint.eos_ids,
            defaults: &self.checkpoint.defaults,
            limits: &self.limits,
            separates_tokens: self.tokenizer.separates_tokens(),
        }
    }

    /// Checks what a chat that is only counted asks for.
    pub(crate) fn check_counted(&self, options: &Options) -> Result<(), ApiError> {
        let facts = self.facts_so_far();
        options.sampling(&facts, 0)?;
        options.stop_ids(false, &facts)?;
        options.check_rest(&facts)?;
        options.thoughts.as_ref().map_or(Ok(()), |limit| self.check_thoughts(limit))?;
        options.max_tokens(0, true, false, &facts).map(drop)
    }

    /// 0 without a salt, so that requests without one share their blocks.
    pub(crate) fn cache_salt(&self, salt: Option<&str>) -> u64 {
        salt.map_or(0, |salt| self.engine.number(salt))
    }

    /// 0 without a user, so that requests without one share what their tenant gets.
    pub(crate) fn user(&self, user: Option<&str>) -> u64 {
        user.filter(|user| !user.is_empty()).map_or(0, |user| self.engine.number(user))
    }

    /// Runs work on a text of so many bytes where it delays nobody else.
    pub(crate) async fn on_text<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.pool
            .run_sized(bytes, self.tokenizer.inline_bytes(), work)
            .await
            .unwrap_or_else(|error| Err(pool_error(error)))
    }

    /// Runs work that takes long, whatever it is about, where it delays nobody else.
    pub(crate) async fn on_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.pool.run(work).await.unwrap_or_else(|error| Err(pool_error(error)))
    }
}

fn pool_error(error: PoolError) -> ApiError {
    match error {
        PoolError::Full { .. } => ApiError::TextQueueFull,
        PoolError::Panicked(log) => ApiError::Internal { log },
    }
}

/// When a client that was sent away should come again: when loading will be done at the speed seen so far.
pub(crate) fn retry_after_s(phase: &Phase, elapsed: Duration) -> u32 {
    /// Bounds of the guess: a client that waits longer than this would have been better off asking.
    const LONGEST_S: f64 = 60.0;
    let Phase::Loading { done, total, .. } = *phase else { return 1 };
    if done == 0 || total == 0 {
        return 2;
    }
    let left = total.saturating_sub(done) as f64 / done as f64;
    (elapsed.as_secs_f64() * left).clamp(1.0, LONGEST_S).ceil() as u32
}

/// The wall clock, for what clients are told.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_comes_back_when_loading_should_be_done() {
        let loading = |done, total| Phase::Loading { stage: "weights".into(), done, total };
        let after = |phase: &Phase| retry_after_s(phase, Duration::from_secs(10));
        assert_eq!(after(&loading(0, 0)), 2);
        assert_eq!(after(&loading(50, 100)), 10);
        assert_eq!(after(&loading(99, 100)), 1);
        assert_eq!(after(&loading(1, 1_000_000)), 60);
        assert_eq!(after(&Phase::Draining), 1);
    }
}
