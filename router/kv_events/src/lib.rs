//! Publishes what happens to KV blocks, in vLLM's wire format, so that routers which follow vLLM can follow us.
//!
//! Knows: the format (msgpack in three ZeroMQ frames), the two sockets, what is kept for a replay.
//! Never here: blocks, requests, HTTP, settings. What happened is told in plain values; the clock is the caller's.
//! In: `Publisher::bind`, `publish(batch)`. Out: bytes on two sockets, `counts()`.
//!
//! 1. `publish` gives the batch its sequence and queues it. It never waits: a full queue drops the batch, the sequence
//!    counts it, and so every reader sees the gap.
//! 2. One thread takes batches from the queue, encodes them and appends them to the *history*, a bounded ring.
//! 3. Every subscriber reads the history at its own pace. One that falls behind it goes on at its oldest batch: memory is
//!    bounded by the ring however many subscribers stop reading, and none can slow another down.
//! 4. A reader that saw a gap asks the replay socket, which reads the same ring.
//!
//! ZMTP, the protocol of ZeroMQ, is written out here (`zmtp`): the two socket types need a greeting, a handshake and
//! frames. A library would bring a queue per subscriber, where this has one ring for all and for replay.

#![forbid(unsafe_code)]

mod counts;
mod door;
mod endpoint;
mod event;
mod history;
mod publish_socket;
mod publisher;
mod replay_socket;
mod wire;
mod zmtp;

pub use counts::Counts;
pub use endpoint::{Endpoint, EndpointError};
pub use event::{Batch, ExtraKey, KvEvent, Medium, Stored};
pub use publisher::{BindError, Published, Publisher, PublisherOptions};
pub use wire::Encoding;
