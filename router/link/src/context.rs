//! The context that a server began with: what its first worker planned. Later lives and other workers load for the same, and have a
//! little more memory left for it than the first one had: what a process takes differs from start to start.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Clones are of one server.
#[derive(Debug, Clone, Default)]
pub struct FirstContext(Arc<AtomicU32>);

impl FirstContext {
    /// 0: no worker has planned one.
    pub(crate) fn tokens(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Who comes first decides. Refused is who has planned another one than the first, which is told.
    pub(crate) fn agree(&self, planned: u32) -> Result<(), u32> {
        match self.0.compare_exchange(0, planned, Ordering::AcqRel, Ordering::Acquire) {
            Err(first) if first != planned => Err(first),
            _ => Ok(()),
        }
    }
}
