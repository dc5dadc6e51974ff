//! What of a request is found below the device, and whether it is worth bringing back.

use serde::{Deserialize, Serialize};

use super::Tiers;
use crate::blocks::{Blocks, Hit};
use crate::cost::Prices;
use crate::live::LiveRequest;
use crate::{BlockId, HostBlockId};

/// Where a full block is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Found {
    Device(BlockId),
    Host(HostBlockId),
}

/// Prompt tokens that come from below.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Below {
    pub(crate) host: u32,
    pub(crate) disk: u32,
}

impl Tiers {
    /// Goes on where the unbroken run on the device ends: each block is looked for on the device, then in the host's memory.
    pub(crate) fn follow(&self, blocks: &Blocks, request: &mut LiveRequest, mut hit: Hit, prices: Prices) -> Hit {
        if !blocks.are_saved() {
            return hit;
        }
        let usable = (request.tokens.len() - 1) / self.block_size as usize;
        for before in hit.full.len()..usable {
            let found = blocks.find_one(request, before).map(Found::Device).or_else(|| {
                let key = blocks.label(request, before).key;
                self.host.find(key).map(|at| Found::Host(HostBlockId(at)))
            });
            let Some(found) = found else { break };
            hit.below.push(found);
        }
        hit.below.truncate(self.worthwhile(&hit, prices));
        if !hit.below.is_empty() {
            hit.partial = blocks.find_start(request, hit.blocks());
        }
        hit
    }

    /// How many of the blocks below are to be brought back, so that most time is saved. All, where prices are not known yet:
    /// that is how they become known.
    fn worthwhile(&self, hit: &Hit, prices: Prices) -> usize {
        if !(prices.knows_prompts && prices.knows_copies) {
            return hit.below.len();
        }
        let first = u32::try_from(hit.full.len()).expect("blocks are counted by u32");
        let (mut gain, mut most, mut best) = (0_i128, 0_i128, 0);
        for ((count, before), found) in (1..).zip(first..).zip(&hit.below) {
            let start = before * self.block_size;
            gain += i128::from(prices.computing(start, start + self.block_size));
            if matches!(found, Found::Host(_)) {
                gain -= i128::from(prices.copying(1));
            }
            if gain >= most {
                (most, best) = (gain, count);
            }
        }
        best
    }

    /// What a hit costs beside what it saves, as so many tokens to compute. As long as prices are not known a block that is
    /// brought back counts as an eighth of its tokens.
    pub(crate) fn cost_of_loads(&self, hit: &Hit, prices: Prices) -> u64 {
        let loads = hit.below.iter().filter(|found| matches!(found, Found::Host(_))).count() as u64;
        let tokens = loads * u64::from(self.block_size);
        let start = u32::try_from(hit.full.len()).expect("blocks are counted by u32") * self.block_size;
        let computing = if tokens > 0 { prices.computing(start, start + self.block_size) } else { 0 };
        if computing == 0 || !prices.knows_copies {
            return tokens / 8;
        }
        (tokens * prices.copying(1) / computing).min(tokens)
    }

    /// A request takes its hit: what it uses stays longest, in every tier, and what is on the device alone is to be saved.
    /// Says how many of its prompt tokens come from below.
    pub(crate) fn used(&mut self, blocks: &mut Blocks, request: &mut LiveRequest, hit: &Hit, prices: Prices) -> Below {
        let mut tokens = Below::default();
        if !blocks.are_saved() {
            return tokens;
        }
        for before in (0..hit.blocks()).rev() {
            let label = blocks.label(request, before); // the leaf first: the root was used last
            let cost = self.cost(&label, prices);
            let is_below = self.host.expects(label.key);
            self.host.touch(label.key, cost);
            self.disk.touch(label.key);
            match hit.found(before) {
                Found::Device(block) if !is_below => blocks.want_saved(block, label),
                Found::Device(_) => {}
                Found::Host(from) => {
                    let start = label.before * self.block_size;
                    let of_prompt = request.prompt_len.saturating_sub(start).min(self.block_size);
                    let is_read = std::mem::take(&mut self.from_disk[from.index()]);
                    *(if is_read { &mut tokens.disk } else { &mut tokens.host }) += of_prompt;
                }
            }
        }
        tokens
    }
}
