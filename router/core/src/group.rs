//! A worker group: how large it is, and the life of its worker, if it has one.

use crate::CoreConfig;
use crate::epoch::Epoch;
use crate::live::LiveRequest;

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) blocks: u32, // as last known, while the worker is lost too
    pub(crate) epoch: Option<Epoch>,
    block_size: u32,
}

impl Group {
    pub(crate) fn new(blocks: u32, config: &CoreConfig) -> Self {
        Self { blocks, epoch: Some(Epoch::new(blocks, config)), block_size: config.block_size }
    }

    /// Whether the request could run here until its end, if it had the group for itself.
    pub(crate) fn ever_fits(&self, request: &LiveRequest) -> bool {
        request.blocks_max(self.block_size) <= self.blocks
    }
}
