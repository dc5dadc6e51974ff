//! One request's way through text and engine: checked, rendered, tokenised, submitted, followed, turned into text again.
//!
//! In: [`Serving::generate`] with a [`Request`] and its [`Terms`], the same for HTTP, gRPC and the Python class. Out:
//! [`Generation`], a stream of [`Delta`]s. A whole answer is the sum of its deltas, so streams and whole answers cannot differ.
//! Never here: protocols, JSON bodies, sockets; and no scheduling, which is the engine's.

mod arguments;
mod beams;
mod calls;
mod checked;
mod constrain;
mod cut;
mod detokenize;
mod embeds;
mod feed;
mod fill;
pub(crate) mod fingerprint;
mod follow;
mod generation;
mod one_text;
pub(crate) mod options;
mod pool;
mod prepare;
mod repetition;
mod rules;
mod said;
mod serving;
mod shorten;
mod shown;
mod terms;
#[cfg(test)]
pub(crate) mod testing;
mod thinking;
mod whole;
mod words;

pub use beams::BeamSearch;
pub use constrain::{Constrained, Demand, ToolUse};
pub use cut::{Cut, Side};
pub use embeds::GivenEmbeds;
pub use follow::{Delta, Drawn, Ending, Finish, StopCause, TokenKind};
pub use generation::Generation;
pub(crate) use one_text::OneText;
pub use options::Options;
pub(crate) use options::{KEEP_MAX, PROMPT_CACHE_RETENTION, check_defaults, told};
pub use pool::{PoolContent, PoolInput, PoolRequest, Pooled, Truncation};
pub use prepare::{ChatStart, PreparedPrompt, Prompt};
pub use repetition::Repetition;
pub use said::{Apart, Block, Call, CallPiece, Part, Said};
pub use serving::{ApiLimits, Serving, ServingParts};
pub use shorten::Shortening;
pub use terms::Terms;
pub use thinking::ThoughtLimit;
pub use whole::Whole;
pub use words::WordRules;

#[cfg(test)]
pub(crate) use whole::Sum;
pub(crate) use {
    cut::{TRUNCATE, TRUNCATION_SIDE},
    embeds::PROMPT_EMBEDS,
    feed::{Source, Writer, feed},
    prepare::{SUFFIX, now},
    repetition::{PATTERN_MAX, REPETITION},
    serving::seconds_since_1970,
    words::{ALLOWED_TOKEN_IDS, BAD_WORDS, BAD_WORDS_MAX},
};

/// What is to be generated.
#[derive(Debug, Clone)]
pub struct Request {
    /// At least one. Each is answered `options.n` times.
    pub prompts: Vec<Prompt>,
    /// How tokens are drawn and answers end.
    pub options: Options,
    /// Whether the prompt will be shown before the answer; then an answer may have no tokens at all.
    pub echo: bool,
    /// How tool calls are read out of the answer; `None`: they are text.
    pub tools: Option<ToolUse>,
    /// What becomes of prompts that are too long; `None`: they are refused.
    pub cut: Option<Cut>,
    /// Whether prompts will be shown as texts, too.
    pub shows_prompts: bool,
    /// Whether their tokens will be shown.
    pub shows_ids: bool,
}

impl Request {
    /// Answers to prompts, and nothing else.
    pub fn new(prompts: Vec<Prompt>, options: Options) -> Self {
        Self { prompts, options, echo: false, tools: None, cut: None, shows_prompts: false, shows_ids: false }
    }
}

/// How tool calls are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolReading {
    /// All calls.
    Parallel,
    /// The first one that is complete, and those that went wrong before it; others are dropped.
    Single,
}
