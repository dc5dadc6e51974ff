//! The engine thread: drives the core, writes frames, keeps the journal of live requests, replays after a worker's death.
//!
//! Never here: HTTP, text, tokenisation. In: [`Engine::submit`] with token ids. Out: [`Answer`], a stream of tokens.
//! The engine thread never blocks on I/O: it sleeps on one bell, rung by arrivals, by results, by supervisors and by the disk.
//! (Once in a worker's life it waits for a look at the model's files, two seconds at most: `weights.rs`.)
#![forbid(unsafe_code)]

mod answer;
mod cache_events;
mod disk;
mod driver;
mod embeds;
mod engine;
mod group;
mod inbox;
mod journal;
mod masks;
mod names;
mod pace;
mod patience;
mod queue;
mod results;
mod status;
mod step;
mod suspects;
mod weights;
mod work_time;

pub use answer::{Answer, Failure, Output, QueueBound, Submission, Usage};
pub use cache_events::CacheEventOptions;
pub use disk::DiskOptions;
pub use driver::{TierOptions, goal};
pub use embeds::Embeds;
pub use engine::{Deadlines, Engine, EngineConfig, GoingOn, slots};
pub use pelton_core::{
    CacheScope, Explanation, FinishReason, Goal, Micros, Party, RequestId, Sampling, StopRule, TokenId, TokenLogprobs,
    TokenScore, Wait, Waited,
};
pub use pelton_grammar::Grammar;
pub use pelton_kv_events::Endpoint;
pub use pelton_link::{
    Activation, Budget, FirstContext, Gives, LayerKind, LoadOptions, ModelReport, Pooling, Tls, Token, WorkerSpec,
};
pub use pelton_record::RecordOptions;
pub use queue::{QueueLimits, QueueStats};
pub use status::{BadFrames, Phase, Stats, Status};
pub use step::SCORES_MAX;
