//! What this machine is: memory, processor, GPUs. Read from /proc, /sys and the processor itself.
//!
//! Knows facts, each read once when asked for, and the one limit that a process may raise for itself. Never here: what is done with them, and the environment.

mod files;
mod gpu;
mod processor;

pub use files::raise_open_files;
pub use gpu::{Gpu, gpus};
pub use pelton_machine::{Memory, memory};
pub use processor::{Processor, processor};
