//! One step's plan and its results as flat arrays in memory that two processes map, and the bells that wake them; and the
//! host memory that workers save KV blocks to, which outlives them. Masks have a memory of their own ([`MaskMemory`]).
//!
//! Knows: the records, where they lie, how one side publishes and the other wakes, how what arrives is checked.
//! Never here: requests, scheduling, models, sockets, gRPC. What a block or a slot means is the business of others.
//!
//! ```text
//!   preamble (4096 bytes)     what the memory is; counters `submitted`, `completed`, `heartbeat`
//!   frame 0                   plan part | result part
//!   frame 1 ...
//! ```
//!
//! The life of a frame:
//!   1. `RouterEnd::submit` writes the plan part of the next frame, publishes it by `submitted` and wakes the worker.
//!   2. `WorkerEnd::take` checks every count, offset and bound of it before anything is handed out.
//!   3. `WorkerEnd::publish` signs the result part, publishes it by `completed` and rings the router's bell.
//!   4. `RouterEnd::poll` copies the result out first and checks the copy. Now the frame may be written again.
//!
//! Frames are used in turn, so the counters alone say which one is meant. Both sides see foreign memory as a claim until
//! checked; data words are read and written as relaxed atomics, so that a hostile or dying peer can spoil values but not
//! our memory safety.
#![deny(unsafe_code)] // allowed in map.rs alone

mod bell;
mod checksum;
mod error;
mod futex;
mod host;
mod inline;
mod layout;
mod map;
mod masks;
mod memory;
mod plan;
mod records;
mod router;
mod worker;

#[cfg(test)]
mod tests;

pub use bell::{Bell, Woken};
pub use error::{FrameError, LayoutError, MemoryError};
pub use host::{HOST_BLOCK_ALIGN, HostMemory};
pub use inline::Inline;
pub use layout::{Capacities, Layout, PREAMBLE_BYTES, Place, Region};
pub use masks::{Carrier, MASK_WAIT, MaskMemory, MaskState, MaskWriter};
pub use memory::{Memory, Pulse};
pub use plan::{Bounds, PlanView};
pub use records::{
    ADMIT_LOGPROBS, ADMIT_PENALTIES, Admit, Append, Bias, Copy, FRAME_VERSION, FrameHeader, Load, Preamble,
    RECORDS_CHECKSUM, RESULT_NOT_FINITE, RESULT_UNSAMPLED, ROW_MASKED, ROW_POOLS, ROW_SAMPLES, ResultHeader, Row,
    STATUS_FAILED, STATUS_OK, Save,
};
pub use router::{Results, RouterEnd};
pub use worker::{HEARTBEAT_INTERVAL, Waited, WorkerEnd};

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("frames are little-endian, and their sizes are counted in 64 bits");
#[cfg(not(target_os = "linux"))]
compile_error!("Pelton runs on Linux: it needs memfd, seals and futexes");
