//! A worker group: how large it is, and the life of its worker, if it has one.

use serde::{Deserialize, Serialize};

use crate::CoreConfig;
use crate::cost::CostModel;
use crate::epoch::Epoch;
use crate::live::LiveRequest;

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) blocks: u32, // as last known, while the worker is lost too
    pub(crate) epoch: Option<Epoch>,
    pub(crate) cost: CostModel, // outlives the worker: the next one runs on the same machine
    block_size: u32,
}

impl Group {
    pub(crate) fn new(blocks: u32, reaches_host: bool, config: &CoreConfig) -> Self {
        Self {
            blocks,
            epoch: Some(Epoch::new(blocks, reaches_host, config)),
            cost: CostModel::default(),
            block_size: config.block_size,
        }
    }

    /// A lost group has a new worker.
    pub(crate) fn revive(&mut self, blocks: u32, reaches_host: bool, config: &CoreConfig) {
        assert!(self.epoch.is_none(), "the group had lost its worker");
        self.blocks = blocks;
        self.epoch = Some(Epoch::new(blocks, reaches_host, config));
    }

    /// Whether the request could run here until its end, if it had the group for itself.
    pub(crate) fn ever_fits(&self, request: &LiveRequest) -> bool {
        request.blocks_max(self.block_size) <= self.blocks
    }
}
