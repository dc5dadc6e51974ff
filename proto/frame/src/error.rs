//! What can be wrong with a layout, a memory that was handed over, or a frame.

use crate::Region;

/// Capacities that no memory is made for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// One capacity is out of its range.
    #[error("frame capacity `{name}` is {got}; allowed: {least} to {most}")]
    Capacity {
        /// Which one.
        name: &'static str,
        /// Its value.
        got: u32,
        /// The least that is allowed.
        least: u32,
        /// The most that is allowed.
        most: u32,
    },
    /// Each capacity is in range, but not all together.
    #[error("the frames would take {bytes} bytes; allowed: {most}. Lower the token budget, the slots or the context")]
    TooLarge {
        /// Bytes of the whole memory.
        bytes: usize,
        /// The most that is allowed.
        most: usize,
    },
}

/// A memory or a bell that cannot be made, or that is not what the peer says it is.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused.
    #[error("{call} failed: {error}")]
    System {
        /// The system call.
        call: &'static str,
        /// Its error.
        error: rustix::io::Errno,
    },
    /// The peer could still shrink the file, and a read past its end kills the reader.
    #[error("the memory that was handed over is not sealed against shrinking and growing")]
    NotSealed,
    /// The file is smaller or larger than its layout says.
    #[error("the memory that was handed over has {got} bytes, and its layout needs {expected}")]
    Size {
        /// Bytes of the file.
        got: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// Host memory of no size, or of one that no address reaches.
    #[error("host memory of {blocks} blocks of {block_bytes} bytes cannot be mapped")]
    TooLarge {
        /// How many.
        blocks: u32,
        /// How large each would be.
        block_bytes: usize,
    },
    /// A field of the preamble is not what this build writes.
    #[error("the memory's {field} is {got:#x}, and this build has {expected:#x}: router and worker differ in version")]
    Mismatch {
        /// Which field.
        field: &'static str,
        /// What the memory says.
        got: u64,
        /// What this build says.
        expected: u64,
    },
    /// The preamble's capacities are out of bounds.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// A frame that cannot be submitted, or that fails its check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// All frames are in flight.
    #[error("all {frames} frames are in flight")]
    NoFreeFrame {
        /// How many there are.
        frames: u32,
    },
    /// More records than the region holds.
    #[error("step {step}: {got} {region} do not fit; the frame holds {capacity}")]
    TooMany {
        /// Which step.
        step: u64,
        /// Which region.
        region: Region,
        /// Records there should be.
        got: u64,
        /// Records that fit.
        capacity: u32,
    },
    /// A field of a record points outside of what it may point at.
    #[error("step {step}: {region}[{index}].{field} is {got}; allowed: {allowed}")]
    Bound {
        /// Which step.
        step: u64,
        /// Which region.
        region: Region,
        /// Which record.
        index: usize,
        /// Which field.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What it may be, in words.
        allowed: String,
    },
    /// The words are not those that were signed: torn, stale or damaged.
    #[error("step {step}: the checksum of the {part} part is wrong")]
    Checksum {
        /// Which step.
        step: u64,
        /// "plan" or "result".
        part: &'static str,
    },
    /// A header field is not the one that is due.
    #[error("the {part} part's {field} is {got}, and {expected} is due")]
    Header {
        /// "plan" or "result".
        part: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What it should be.
        expected: u64,
    },
    /// The counter runs ahead of what it counts: the peer writes nonsense.
    #[error("the counter `{counter}` says {got} are waiting, and at most {most} can be")]
    Counter {
        /// Which counter.
        counter: &'static str,
        /// How many it claims.
        got: u32,
        /// How many there can be.
        most: u32,
    },
    /// Inline bytes are cut off or have a tail.
    #[error("an inline {part} part has {got} bytes, and its header says {expected}")]
    Length {
        /// "plan" or "result".
        part: &'static str,
        /// Bytes that came.
        got: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// The worker could not compute the step.
    #[error("the worker failed in step {step} (status {status})")]
    WorkerFailed {
        /// Which step.
        step: u64,
        /// The worker's status word.
        status: u32,
    },
    /// A frame is published that was not taken, or not in its turn.
    #[error("frame {frame} is not the one whose result is due")]
    NotDue {
        /// Which frame.
        frame: u32,
    },
}
