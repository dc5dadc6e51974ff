//! What of a request is found below the device, and whether it is worth bringing back.

use serde::{Deserialize, Serialize};

use super::Tiers;
use crate::blocks::Blocks;
use crate::cost::Prices;
use crate::hit::Hit;
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
    /// Looks for the longest known prefix on the device and below, as far as bringing it back is worth it.
    pub(crate) fn find(&self, blocks: &Blocks, request: &mut LiveRequest, prices: Prices) -> Hit {
        if !blocks.are_saved() {
            return blocks.find(request);
        }
        let mut hit = blocks.find_with(request, |key| self.host.find(key).map(HostBlockId));
        if hit.loads.is_empty() || !(prices.knows_prompts && prices.knows_copies) {
            return hit; // where prices are not known all is brought back: that is how they become known
        }
        if blocks.kinds().is_plain() {
            let places = self.worthwhile(&hit, prices);
            if places < hit.places {
                hit.cut(places);
                hit.partial = blocks.find_start(request, places);
            }
            return hit;
        }
        let without = blocks.find(request);
        let gain = self.computing(without.places, hit.places, prices);
        if gain < u128::from(prices.copying(hit.loads.len() as u64)) { without } else { hit }
    }

    /// How many places of a hit are to be used, so that most time is saved.
    fn worthwhile(&self, hit: &Hit, prices: Prices) -> usize {
        let (mut gain, mut most, mut best) = (0_i128, 0_i128, hit.unbroken());
        for before in hit.unbroken()..hit.places {
            gain += i128::try_from(self.computing(before, before + 1, prices)).expect("a sum of few u64");
            if hit.load(0, before).is_some() {
                gain -= i128::from(prices.copying(1));
            }
            if gain >= most {
                (most, best) = (gain, before + 1);
            }
        }
        best
    }

    /// What it costs to compute the blocks of these places.
    fn computing(&self, from: usize, beyond: usize, prices: Prices) -> u128 {
        let tokens = |places| u32::try_from(places).expect("blocks are counted by u32") * self.block_size;
        (from..beyond).map(|at| u128::from(prices.computing(tokens(at), tokens(at + 1)))).sum()
    }

    /// What a hit costs beside what it saves, as so many tokens to compute. As long as prices are not known a block that is
    /// brought back counts as an eighth of its tokens.
    pub(crate) fn cost_of_loads(&self, hit: &Hit, prices: Prices) -> u64 {
        let loads = hit.loads.len() as u64;
        let tokens = loads * u64::from(self.block_size);
        let start = u32::try_from(hit.unbroken()).expect("blocks are counted by u32") * self.block_size;
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
        let kinds = blocks.kinds().count();
        for before in (0..hit.places).rev() {
            let (mut is_loaded, mut is_read) = (false, false);
            for kind in 0..kinds {
                let (on_device, load) = (hit.table.get(kind, before), hit.load(kind, before));
                if on_device.is_none() && load.is_none() {
                    continue; // it is not needed
                }
                let label = blocks.label(request, kind, before); // the leaf first: the root was used last
                let cost = self.cost(&label, prices);
                let is_below = self.host.expects(label.key);
                self.host.touch(label.key, cost);
                self.disk.touch(label.key);
                if let Some(block) = on_device.filter(|_| !is_below) {
                    blocks.want_saved(block, label);
                }
                if let Some(from) = load {
                    is_loaded = true;
                    is_read |= std::mem::take(&mut self.from_disk[from.index()]);
                }
            }
            if is_loaded {
                let start = u32::try_from(before).expect("blocks are counted by u32") * self.block_size;
                let of_prompt = request.prompt_len.saturating_sub(start).min(self.block_size);
                *(if is_read { &mut tokens.disk } else { &mut tokens.host }) += of_prompt;
            }
        }
        tokens
    }
}
