//! Requests, schedule, blocks, prefixes: a pure, deterministic state machine.
//!
//! Never here: sockets, files, threads, clocks, randomness, text. Time and seeds are arguments.
//! In: `submit`, `abort`, `finish`, `withdraw`, `pin`, `unpin`, `tick(now)`, `clock(now)`, `commit(group, results)`, `worker_lost`, `worker_back`.
//! Out: `plan(group, now)`, `events()`, `next_deadline()`, `explain(request)`; all of it as a value: `snapshot()`.
#![forbid(unsafe_code)]

mod admission;
mod blocks;
mod check;
mod commit;
mod core;
mod cost;
mod drafting;
mod drafts;
mod epoch;
mod event;
mod explanation;
mod forced;
mod group;
mod hit;
mod ids;
mod keys;
mod kinds;
mod lengths;
mod live;
mod next_step;
mod outlook;
mod pins;
mod plan;
mod pool;
mod prefix;
mod queue;
mod quota;
mod request;
mod schedule;
mod scope;
mod shares;
mod snapshot;
mod state;
mod table;
mod tiers;
mod traces;
mod turns;
mod withdrawal;

pub use self::core::{Core, CoreConfig, Counts};
pub use commit::CommitError;
pub use drafts::accepted;
pub use event::{CacheChange, Event, FinishReason, Medium, TokenLogprobs, TokenScore};
pub use explanation::{Explanation, Missed, Preempted, Wait, Waited};
pub use ids::{BlockId, BlockKey, DiskPlace, GroupId, HostBlockId, Micros, PinId, RequestId, SlotId, StepId, TokenId};
pub use kinds::{KINDS_MAX, Kind, StateMode, blocks_at};
pub use pins::{NewPin, PinRefusal};
pub use plan::{Admit, Append, Copy, Limits, Load, Plan, Row, RowResult, Save, StateMove, StepResults};
pub use request::{Goal, NewRequest, Refusal, Sampling, StopRule};
pub use scope::{BadSpan, CacheScope, Span, SpanKind};
pub use shares::Party;
pub use snapshot::{SOURCES, Snapshot};
pub use tiers::{DiskEntry, DiskFault, DiskOrder};
pub use withdrawal::Trust;
