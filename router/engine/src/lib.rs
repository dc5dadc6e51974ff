//! The engine thread: drives the core, writes frames, keeps the journal of live requests, replays after a worker's death.
//!
//! Never here: HTTP, text, tokenisation. In: `Engine::submit` with token ids. Out: `Answer`, a stream of tokens.
//! The engine thread never blocks on I/O: it sleeps on one bell, rung by arrivals and by results.
#![forbid(unsafe_code)]

mod answer;
mod status;

pub use answer::{Failure, Output, Submission, Usage};
pub use pelton_core::{FinishReason, Sampling, StopRule, TokenId, TokenLogprobs};
pub use status::{BudgetReport, ModelReport, Phase, Stats, Status};
