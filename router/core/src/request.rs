//! What a request asks for, as the core sees it: tokens in, rules for drawing and for ending.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{CacheScope, Micros, Party, RequestId, TokenId};

/// How a token is drawn. Passed through to the worker; the core reads none of it but `logprobs` and
/// `prompt_logprobs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// Only the `top_k` likeliest count; 0: all.
    pub top_k: u32,
    /// Only the likeliest that together reach `top_p`; 1: all.
    pub top_p: f32,
    /// Only those at least `min_p` times as likely as the likeliest; 0: all.
    pub min_p: f32,
    /// Divides (or multiplies, where negative) the logits of tokens in prompt and output; 1: off.
    pub repetition_penalty: f32,
    /// Taken off once from the logits of tokens in the output; 0: off.
    pub presence_penalty: f32,
    /// Taken off per occurrence from the logits of tokens in the output; 0: off.
    pub frequency_penalty: f32,
    /// Added to these tokens' logits. Ids are below the vocabulary size, each at most once.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seeds the counter-based draw, with the token's absolute position.
    pub seed: u64,
    /// `Some(k)`: the chosen token's log-probability and those of the `k` likeliest.
    pub logprobs: Option<u32>,
    /// If there are any: their log-probabilities are told in the place of the likeliest; `logprobs` is how many they are.
    pub told: Vec<TokenId>,
    /// `Some(k)`: the same of each prompt token but the first. Only if the request is there for tokens.
    pub prompt_logprobs: Option<u32>,
}

impl Sampling {
    /// Greedy, without penalties.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
            told: Vec::new(),
            prompt_logprobs: None,
        }
    }

    /// Whether the worker must count this request's tokens.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// When a request ends, as far as tokens can tell. Stop strings are found by `text` and arrive as [`crate::Core::finish`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRule {
    /// At most so many tokens are generated; at least 1.
    pub max_tokens: u32,
    /// Before so many tokens, no token of `stop_ids` is drawn (the worker masks them).
    pub min_tokens: u32,
    /// Tokens that end the request: the model's end tokens (unless ignored) and the client's.
    #[serde(with = "crate::snapshot::shared")]
    pub stop_ids: Arc<[TokenId]>,
}

/// What a request gives in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    /// Tokens, drawn one after the other until its stop rule ends them.
    Tokens,
    /// A vector that its last token makes, which sees those before it: rows end anywhere, and KV of others serves it.
    VectorOfLast,
    /// A vector that all its tokens make, or whose tokens see those behind them: all stand in one row. KV of such tokens
    /// serves nobody else, so the core has no prefix cache, and the model has layers of full attention only.
    VectorOfAll,
}

/// A request as it enters the core.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewRequest {
    /// Chosen by the engine; never used before.
    pub id: RequestId,
    /// At least one token.
    #[serde(with = "crate::snapshot::shared")]
    pub prompt: Arc<[TokenId]>,
    /// Tokens generated before, in an earlier life of the engine: they count as output. Empty for a new request.
    pub generated: Vec<TokenId>,
    /// Prompt tokens that were scored before: they are not told again. 0 for a new request.
    pub scored: u32,
    /// What it gives. For a vector nothing is drawn: `sampling` and `stop` mean nothing then, and `generated` is empty.
    pub goal: Goal,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// When it ends.
    pub stop: StopRule,
    /// Whether every token is drawn within a mask that depends on the tokens before it, and that somebody else writes.
    pub masked: bool,
    /// With whom it may share blocks.
    pub scope: CacheScope,
    /// Smaller first.
    pub priority: i32,
    /// When it came in.
    pub arrival: Micros,
    /// Who is charged for it.
    pub party: Party,
    /// When it ends, whatever it has drawn by then.
    pub deadline: Option<Micros>,
}

/// Why the core does not take a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The queue is at its bound.
    #[error("{waiting} requests are waiting already; the queue holds {limit}")]
    QueueFull {
        /// Requests that wait now.
        waiting: usize,
        /// The bound.
        limit: usize,
    },
    /// There is no room in the context for even one more token.
    #[error("the prompt has {tokens} tokens; the context holds {limit}, and one of them must be drawn")]
    TooLong {
        /// Known tokens.
        tokens: usize,
        /// What prompt and output may have together.
        limit: u32,
    },
    /// No worker group could ever hold the request, even alone.
    #[error("the request needs {needed} KV blocks; the model has {blocks}")]
    NeverFits {
        /// Blocks that prompt and output need together.
        needed: usize,
        /// Blocks that the largest group has.
        blocks: usize,
    },
    /// A vector is asked for of more tokens than the context holds, or one step if all of them must be in one.
    #[error("there are {tokens} tokens to make a vector of; at most {limit} are allowed")]
    TooLongToPool {
        /// Its tokens.
        tokens: usize,
        /// How many there may be.
        limit: u32,
    },
    /// A list is longer than a step can carry.
    // Told by `submit` at once: it is in no event, so in no snapshot. Skipped variants have no number: it stands last.
    #[error("`{param}` has {got} entries; at most {limit} are allowed")]
    #[serde(skip)]
    TooMany {
        /// Which list.
        #[serde(skip)]
        param: &'static str,
        /// Its entries.
        got: usize,
        /// What a step holds.
        limit: u32,
    },
}
