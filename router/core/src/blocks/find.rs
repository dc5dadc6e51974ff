//! What of a request is there already, and whether it can begin with that now.

use super::Blocks;
use crate::hit::{self, Hit, Partial};
use crate::keys::Key;
use crate::live::LiveRequest;
use crate::tiers::Found;
use crate::{BlockId, HostBlockId, Missed};

impl Blocks {
    /// The block of the first kind in which a full one is found, by the number of blocks before it.
    pub(crate) fn find_one(&self, request: &mut LiveRequest, before: usize) -> Option<BlockId> {
        self.index.as_ref()?.find(0, request.keys.key(&self.keys, &request.tokens, before + 1))
    }

    /// The key of a request's full block, by the number of blocks before it. None: it has no such block.
    pub(crate) fn name_of(&self, request: &mut LiveRequest, before: usize) -> Option<Key> {
        let is_full = (before + 1) * self.block_size as usize <= request.tokens.len();
        is_full.then(|| request.keys.key(&self.keys, &request.tokens, before + 1))
    }

    /// The start of what follows a request's first `full` places.
    pub(crate) fn find_start(&self, request: &mut LiveRequest, full: usize) -> Option<Partial> {
        let parent = request.keys.key(&self.keys, &request.tokens, full);
        let start = full * self.block_size as usize;
        let rest = &request.tokens[start..][..request.keys.plain(start, request.shareable())];
        hit::partial(&self.kinds, self.index.as_ref()?, parent, rest)
    }

    /// Looks for the longest known prefix: first by full blocks, then for the start of the block after them.
    pub(crate) fn find(&self, request: &mut LiveRequest) -> Hit {
        self.find_with(request, |_| None)
    }

    /// The same, where blocks count too that a tier below has, by their keys.
    pub(crate) fn find_with(&self, request: &mut LiveRequest, below: impl Fn(Key) -> Option<HostBlockId>) -> Hit {
        let Some(index) = &self.index else { return Hit::none(&self.kinds) };
        let usable = &request.tokens[..request.shareable()];
        let places_max = usable.len() / self.block_size as usize;
        let mut hit = hit::longest(&self.kinds, self.block_size, places_max, |kind, at| {
            let key = request.keys.key(&self.keys, usable, at + 1);
            index.find(kind, key).map(Found::Device).or_else(|| below(key.of_kind(kind)).map(Found::Host))
        });
        hit.partial = self.find_start(request, hit.places);
        hit
    }

    /// The hit, if a request of `known` tokens can begin with it now: there must be blocks of the full kinds for all of
    /// them, of the others for the first row, and for what is loaded. Without its partial part where the sources, which
    /// must be held until the copies are done, would take the last blocks.
    pub(crate) fn fit(&self, mut hit: Hit, known: u32) -> Option<Hit> {
        let idle_hits = hit.table.blocks().filter(|&block| self.pool.is_idle(block)).count();
        let full = (self.places_for(known) - hit.places) * self.kinds.fulls() as usize;
        let bounded = self.kinds.count() - self.kinds.fulls() as usize; // a row within a block writes one of each
        let spare = self.pool.idle().checked_sub(idle_hits + full + bounded + hit.loads.len())?;
        let takes_idle = |block: &&BlockId| self.pool.is_idle(**block);
        hit.partial = hit.partial.filter(|partial| partial.sources.iter().filter(takes_idle).count() <= spare);
        Some(hit)
    }

    /// Why a request was not found any further. Costs a look per block that was there once.
    pub(crate) fn missed(&self, request: &mut LiveRequest, hit: &Hit) -> Missed {
        if self.index.is_none() {
            return Missed { is_off: true, ..Missed::default() };
        }
        if request.is_to_be_scored() {
            return Missed { is_scored: true, ..Missed::default() };
        }
        let block_size = self.block_size as usize;
        let usable = &request.tokens[..request.prompt_len as usize - 1];
        let mut beyond = hit.places;
        while (beyond + 1) * block_size <= usable.len()
            && self.traces.was_given_up(request.keys.key(&self.keys, usable, beyond + 1))
        {
            beyond += 1;
        }
        let evicted = (beyond - hit.places) * block_size;
        let evicted = u32::try_from(evicted).expect("part of a prompt");
        // A part of the first of these blocks may have been found in another one.
        let evicted = evicted.saturating_sub(hit.partial.as_ref().map_or(0, |partial| partial.tokens));
        let has_other_salt = hit.places == 0
            && usable.len() >= block_size
            && self.traces.has_other_salt(self.keys.unsalted(&usable[..block_size]), request.keys.salt());
        let last = if self.kinds.can_be_copied() { usable.len() } else { usable.len() / block_size * block_size };
        let beyond = request.prompt_len - u32::try_from(last).expect("part of a prompt");
        let too_short = beyond.min(request.prompt_len.saturating_sub(self.tokens_in(hit) + evicted));
        Missed { evicted, too_short, has_other_salt, ..Missed::default() }
    }

    /// The name of what follows a request's first `blocks` blocks: the next full block of its tokens, or what is left of
    /// them if that is worth waiting for. None without a prefix cache.
    pub(crate) fn key_behind(&self, request: &mut LiveRequest, blocks: usize) -> Option<Key> {
        self.index.as_ref()?;
        let block_size = self.block_size as usize;
        let rest = &request.tokens[blocks * block_size..];
        if rest.len() >= block_size {
            return Some(request.keys.key(&self.keys, &request.tokens, blocks + 1));
        }
        let is_worth_it = self.kinds.can_be_copied() && rest.len() >= block_size.div_ceil(2);
        is_worth_it.then(|| request.keys.rest(&self.keys, &request.tokens, blocks))
    }
}
