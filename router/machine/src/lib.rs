//! What of this machine a process may have: memory and cores, within its cgroups. Router and workers ask alike.
//!
//! Knows: /proc, /sys/fs/cgroup. Never here: what is done with it.

mod memory;

pub use memory::{Memory, memory};

/// Cores that this process may use: those it may run on, or fewer if a cgroup lends less time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
