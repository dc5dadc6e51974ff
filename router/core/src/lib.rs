//! Requests, schedule, blocks, prefixes: a pure, deterministic state machine.
//!
//! Never here: sockets, files, threads, clocks, randomness, text. Time and seeds are arguments; `now` comes last.
//! In: `submit`, `abort`, `finish`, `commit(results, now)`, `worker_lost`. Out: `plan(group, now)`, `events()`.
#![forbid(unsafe_code)]

mod event;
mod ids;
mod plan;
mod request;

pub use event::{Event, FinishReason, TokenLogprobs};
pub use ids::{BlockId, GroupId, Micros, RequestId, SlotId, StepId, TokenId};
pub use plan::{Admit, Append, Copy, Limits, Plan, Row, RowResult, StepResults};
pub use request::{NewRequest, Refusal, Sampling, StopRule};
