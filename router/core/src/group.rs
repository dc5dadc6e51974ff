//! A worker group: how large it is, and the life of its worker, if it has one.

use serde::{Deserialize, Serialize};

use crate::CoreConfig;
use crate::cost::{CostModel, Work};
use crate::epoch::Epoch;
use crate::kinds::Kinds;
use crate::live::LiveRequest;
use crate::next_step::CHUNK_MIN;

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) blocks: u32, // as last known, while the worker is lost too
    pub(crate) epoch: Option<Epoch>,
    pub(crate) cost: CostModel, // outlives the worker: the next one runs on the same machine
    kinds: Kinds,
}

impl Group {
    pub(crate) fn new(blocks: u32, reaches_host: bool, config: &CoreConfig) -> Self {
        Self {
            blocks,
            epoch: Some(Epoch::new(blocks, reaches_host, config)),
            cost: CostModel::default(),
            kinds: Kinds::new(&config.kinds, config.block_size),
        }
    }

    /// A lost group has a new worker.
    pub(crate) fn revive(&mut self, blocks: u32, reaches_host: bool, config: &CoreConfig) {
        assert!(self.epoch.is_none(), "the group had lost its worker");
        self.blocks = blocks;
        self.epoch = Some(Epoch::new(blocks, reaches_host, config));
    }

    /// How many tokens of a prompt one step takes, by its tokens and by its time: a prompt of more is a long one.
    pub(crate) fn step_tokens(&self, config: &CoreConfig) -> u32 {
        let (most, prices) = (config.token_budget, self.cost.prices());
        match config.itl_target_us {
            Some(target) if prices.knows_prompts => {
                let in_time = prices.tokens_within(u64::from(target), most, |count| Work::default().with_row(0, count));
                in_time.max(CHUNK_MIN.min(most))
            }
            _ => most,
        }
    }

    /// Whether the request could run here until its end, if it had the group for itself.
    pub(crate) fn ever_fits(&self, request: &LiveRequest) -> bool {
        request.blocks_max(&self.kinds) <= self.blocks
    }
}
