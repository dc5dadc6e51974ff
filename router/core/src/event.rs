//! What the core tells the engine: after `plan`, after `commit`, after `worker_back`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{CacheScope, Explanation, Refusal, RequestId, TokenId};

/// Something that happened to a request. Events of one request come in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A token was committed. Tokens past a stop are never told.
    Token {
        /// Whose.
        request: RequestId,
        /// Which. A stop token is told too, right before `Finished`.
        token: TokenId,
        /// If asked for.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// Prompt tokens were scored, which are told once each and in order, before anything is drawn.
    Scored {
        /// Whose.
        request: RequestId,
        /// Of the tokens behind those that were told of before; nothing comes before the prompt's first one, so it has none.
        scores: Box<[TokenScore]>,
    },
    /// The vector that a request was there for; `Finished` follows.
    Vector {
        /// Whose.
        request: RequestId,
        /// As the worker has made it.
        vector: Box<[f32]>,
    },
    /// The request was admitted for the first time.
    Admitted {
        /// Whose.
        request: RequestId,
        /// Prompt tokens whose KV was found in the prefix cache.
        cached: u32,
    },
    /// The request has ended by itself; nothing more will come. (An abort or `finish` from outside tells nothing.)
    Finished {
        /// Whose.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it went through.
        explanation: Box<Explanation>,
    },
    /// The request's deadline has passed. Nothing more will come.
    Expired {
        /// Whose.
        request: RequestId,
        /// What it went through.
        explanation: Box<Explanation>,
    },
    /// The request was taken and can be served no more: a new worker has fewer blocks. Nothing more will come.
    Refused {
        /// Whose.
        request: RequestId,
        /// Why.
        refusal: Refusal,
    },
}

/// What became of a block of the prefix cache, for those who keep an index of several servers. Blocks are named by a number
/// that is the same for the same tokens as long as the server lives; readers make hashes of their own from the tokens. C:K4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheChange {
    /// A full block can be found.
    Stored {
        /// The block.
        block: u64,
        /// The block before it; none before the first.
        parent: Option<u64>,
        /// Its tokens.
        tokens: Box<[TokenId]>,
        /// Blocks before it.
        before: u32,
        /// Of the requests that can find it; none: its KV depends on tokens alone. C:K3.
        #[serde(with = "crate::scope::shared")]
        scope: Option<Arc<CacheScope>>,
        /// Where.
        medium: Medium,
    },
    /// It cannot be found there any more.
    Removed {
        /// The block.
        block: u64,
        /// Where.
        medium: Medium,
    },
}

/// A tier that keeps blocks. What is below the device is shared by all groups of the host, and each is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Medium {
    /// The group's own memory, where attention reads it.
    Device,
    /// The host's memory.
    Host,
    /// A disk of the host.
    Disk,
}

/// Why a request ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// A token of its stop ids was drawn.
    StopToken(TokenId),
    /// `max_tokens` is reached, or the context is full.
    Length,
    /// Its vector was made.
    Vector,
}

/// The raw model's log-probabilities (before temperature, penalties and bias) at one position.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Of the token that was drawn, or that stood there.
    pub chosen: f32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// How likely a token of the prompt was behind those before it, by the raw model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenScore {
    /// How many tokens were not less likely, itself included: 1 for the likeliest. Of equals the lower id comes first.
    pub rank: u32,
    /// Its log-probability, and those of the likeliest tokens in its place.
    pub logprobs: TokenLogprobs,
}
