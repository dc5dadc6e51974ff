//! One worker from its start to its end: spawn or connect, handshake, load, hand-over of memory, watch, replace.
//!
//! Knows: processes, sockets, the worker's gRPC contract, deadlines. A supervisor thread per worker, which lasts.
//! Never here: requests, plans, tokens, schedules. What is in a frame is between the engine and the worker.
//! In: `start(options)`, `LinkHandle::replace`, `LinkHandle::shutdown`. Out: `LinkEvent`s, each followed by a ring of the bell.
//!
//! The life of a worker, counted by its epoch:
//!   1. start     a child process (killed with our thread), or a connection to a worker that others started
//!   2. connect   the control socket answers; its peer has our uid
//!   3. handshake versions and record layouts are equal
//!   4. load      progress, then the model's report
//!   5. attach    memory goes over by SCM_RIGHTS, host memory with it, or frames go inline; the engine gets its `RouterEnd`
//!   6. watch     exit, end of stream, heartbeat, stall
//!   7. loss      kill and reap, or wait until it has let go of host memory; tell, wait a little, start the next epoch
//!
//! A result of an earlier epoch cannot be mistaken: every epoch has a memory of its own.
#![deny(unsafe_code)] // allowed in process.rs alone

mod client;
mod context;
mod error;
mod event;
mod folder;
mod handle;
mod handover;
mod host;
mod inline;
mod options;
mod output;
mod pooling;
mod process;
mod session;
mod shortage;
mod supervisor;
mod watch;

pub use context::FirstContext;
pub use error::LinkError;
pub use event::{Budget, LayerKind, LinkEvent, ModelReport};
pub use handle::{LinkHandle, start};
pub use host::HostShare;
pub use options::{Deadlines, LinkOptions, LoadOptions, Tls, Token, WorkerSpec};
pub use pooling::{Activation, Gives, Pooling};
