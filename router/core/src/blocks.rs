//! The KV blocks of one worker: the pool and the index over it, kept in step.
//!
//! Invariant: a block that is taken is not findable any more; a block that is given is idle as long as its contents can
//! be found, and the first to be given up if they cannot.

use serde::{Deserialize, Serialize};

use crate::live::LiveRequest;
use crate::pool::{BlockPool, Contents};
use crate::prefix::{Key, KeyMaker, PrefixIndex};
use crate::tiers::{Found, Label};
use crate::traces::Traces;
use crate::{BlockId, CacheChange, CoreConfig, Medium, Missed, TokenId};

/// What of a request's known tokens has KV already. At most all but one: the last token must be computed to draw the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Hit {
    /// Full blocks from the first one on, shared.
    pub(crate) full: Vec<BlockId>,
    /// Full blocks behind those, of which at least the first is not on the device.
    pub(crate) below: Vec<Found>,
    /// The start of the next block, to be copied.
    pub(crate) partial: Option<Partial>,
}

impl Hit {
    /// How many full blocks it has.
    pub(crate) fn blocks(&self) -> usize {
        self.full.len() + self.below.len()
    }

    /// Where the one is that has so many before it.
    pub(crate) fn found(&self, before: usize) -> Found {
        self.full.get(before).map_or_else(|| self.below[before - self.full.len()], |&block| Found::Device(block))
    }

    /// The blocks that are on the device.
    pub(crate) fn on_device(&self) -> impl Iterator<Item = BlockId> {
        let below = self.below.iter().filter_map(|found| match found {
            Found::Device(block) => Some(*block),
            Found::Host(_) => None,
        });
        self.full.iter().copied().chain(below)
    }
}

/// The start of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partial {
    /// Which block's.
    pub(crate) source: BlockId,
    /// How many tokens.
    pub(crate) tokens: u32,
}

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Blocks {
    block_size: u32,
    pool: BlockPool,
    keys: KeyMaker,
    index: Option<PrefixIndex>,            // none: prefix caching is off
    changes: Option<Vec<CacheChange>>,     // none: nobody wants to know
    filled: Option<Vec<(BlockId, Label)>>, // none: there is no tier below
    traces: Traces,
}

impl Blocks {
    pub(crate) fn new(capacity: u32, saves: bool, config: &CoreConfig) -> Self {
        let block_size = config.block_size as usize;
        Self {
            block_size: config.block_size,
            pool: BlockPool::new(capacity),
            keys: KeyMaker::new(config.hash_key, block_size),
            index: config.prefix_caching.then(|| PrefixIndex::new(capacity as usize, block_size)),
            changes: config.tells_cache_changes.then(Vec::new),
            filled: (saves && config.prefix_caching).then(Vec::new),
            traces: Traces::new(if config.prefix_caching { capacity as usize } else { 0 }),
        }
    }

    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// What became findable and what is lost since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was filled since the last call.
    pub(crate) fn take_filled(&mut self) -> Vec<(BlockId, Label)> {
        self.filled.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A block that was filled before is to be saved all the same.
    pub(crate) fn want_saved(&mut self, block: BlockId, label: Label) {
        self.filled.as_mut().expect("the caller saw a tier below").push((block, label));
    }

    /// Whether a tier below keeps copies of these blocks.
    pub(crate) fn are_saved(&self) -> bool {
        self.filled.is_some()
    }

    /// The block in which a full one is found, by the number of blocks before it.
    pub(crate) fn find_one(&self, request: &mut LiveRequest, before: usize) -> Option<BlockId> {
        self.index.as_ref()?.find(request.keys.key(&self.keys, &request.tokens, before + 1))
    }

    /// The start of what follows a request's first `full` blocks.
    pub(crate) fn find_start(&self, request: &mut LiveRequest, full: usize) -> Option<Partial> {
        let parent = request.keys.key(&self.keys, &request.tokens, full);
        let rest = &request.tokens[full * self.block_size as usize..request.tokens.len() - 1];
        let (source, tokens) = self.index.as_ref()?.longest_child(parent, rest)?;
        Some(Partial { source, tokens: u32::try_from(tokens).expect("less than a block") })
    }

    /// What one of a request's full blocks holds, by the number of blocks before it.
    pub(crate) fn label(&self, request: &mut LiveRequest, before: usize) -> Label {
        Label {
            key: request.keys.key(&self.keys, &request.tokens, before + 1),
            parent: request.keys.key(&self.keys, &request.tokens, before),
            salt: request.keys.salt(),
            before: u32::try_from(before).expect("blocks are counted by u32"),
        }
    }

    /// The tokens of a block, if it still holds what it is said to hold.
    pub(crate) fn tokens_of(&self, block: BlockId, key: Key) -> Option<&[TokenId]> {
        let index = self.index.as_ref()?;
        (index.key_of(block) == Some(key)).then(|| index.tokens_of(block))
    }

    /// How many blocks hold so many tokens.
    pub(crate) fn count_for(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.block_size) as usize
    }

    /// How many tokens at the start of a table others hold too.
    pub(crate) fn shared_tokens(&self, table: &[BlockId]) -> u32 {
        let shared = table.iter().take_while(|&&block| self.pool.holders(block) > 1).count();
        u32::try_from(shared).expect("blocks are counted by u32") * self.block_size
    }

    /// How many tokens a hit saves.
    pub(crate) fn tokens_in(&self, hit: &Hit) -> u32 {
        self.tokens_in_full(hit) + hit.partial.map_or(0, |partial| partial.tokens)
    }

    /// How many of them are in full blocks.
    pub(crate) fn tokens_in_full(&self, hit: &Hit) -> u32 {
        u32::try_from(hit.blocks()).expect("blocks are counted by u32") * self.block_size
    }

    /// Looks for the longest known prefix: first by full blocks, then for the start of the block after them.
    pub(crate) fn find(&self, request: &mut LiveRequest) -> Hit {
        let mut hit = Hit::default();
        let Some(index) = &self.index else { return hit };
        let block_size = self.block_size as usize;
        let usable = &request.tokens[..request.tokens.len() - 1];
        while (hit.full.len() + 1) * block_size <= usable.len() {
            let Some(block) = index.find(request.keys.key(&self.keys, usable, hit.full.len() + 1)) else { break };
            hit.full.push(block);
        }
        hit.partial = self.find_start(request, hit.full.len());
        hit
    }

    /// The hit, if a table of `tokens` tokens that begins with it can be had now. Without its partial part where the
    /// source, which must be held until the copy is done, would take the last block.
    pub(crate) fn fit(&self, mut hit: Hit, tokens: u32) -> Option<Hit> {
        let idle_hits = hit.on_device().filter(|&block| self.pool.is_idle(block)).count();
        let fresh = self.count_for(tokens) - hit.on_device().count();
        let spare = self.pool.idle().checked_sub(idle_hits + fresh)?;
        hit.partial = hit.partial.filter(|partial| spare > 0 || !self.pool.is_idle(partial.source));
        Some(hit)
    }

    /// Why a request was not found any further. Costs a look per block that was there once.
    pub(crate) fn missed(&self, request: &mut LiveRequest, hit: &Hit) -> Missed {
        if self.index.is_none() {
            return Missed { is_off: true, ..Missed::default() };
        }
        let block_size = self.block_size as usize;
        let usable = &request.tokens[..request.prompt_len as usize - 1];
        let mut beyond = hit.blocks();
        while (beyond + 1) * block_size <= usable.len()
            && self.traces.was_given_up(request.keys.key(&self.keys, usable, beyond + 1))
        {
            beyond += 1;
        }
        let evicted = (beyond - hit.blocks()) * block_size;
        let evicted = u32::try_from(evicted).expect("part of a prompt");
        // A part of the first of these blocks may have been found in another one.
        let evicted = evicted.saturating_sub(hit.partial.map_or(0, |partial| partial.tokens));
        let has_other_salt = hit.blocks() == 0
            && usable.len() >= block_size
            && self.traces.has_other_salt(self.keys.unsalted(&usable[..block_size]), request.keys.salt());
        Missed { is_off: false, evicted, has_other_salt }
    }

    pub(crate) fn hold(&mut self, block: BlockId) {
        self.pool.hold(block);
    }

    /// Puts `count` blocks at the end of a table. The caller has seen that there are enough.
    pub(crate) fn take(&mut self, count: usize, table: &mut Vec<BlockId>) {
        for _ in 0..count {
            let block = self.pool.take().expect("the caller saw enough idle blocks");
            if let Some(index) = &mut self.index
                && let Some(key) = index.forget(block)
            {
                self.traces.gave_up(key);
                if let Some(changes) = &mut self.changes {
                    changes.push(CacheChange::Removed { block: key.name(), medium: Medium::Device });
                }
            }
            table.push(block);
        }
    }

    pub(crate) fn give(&mut self, block: BlockId) {
        let findable = self.index.as_ref().is_some_and(|index| index.contains(block));
        self.pool.give(block, if findable { Contents::Findable } else { Contents::Blank });
    }

    /// Makes the full blocks of a table findable whose tokens are committed. `indexed` of them were looked at before.
    pub(crate) fn index_full(
        &mut self,
        request: &mut LiveRequest,
        table: &[BlockId],
        indexed: &mut usize,
        committed: u32,
    ) {
        let Some(index) = &mut self.index else { return };
        let block_size = self.block_size as usize;
        while (*indexed + 1) * block_size <= committed as usize {
            let parent = request.keys.key(&self.keys, &request.tokens, *indexed);
            let key = request.keys.key(&self.keys, &request.tokens, *indexed + 1);
            let filling = &request.tokens[*indexed * block_size..][..block_size];
            if index.key_of(table[*indexed]) == Some(key) {
                *indexed += 1; // a hit behind blocks that were brought back
                continue;
            }
            index.forget(table[*indexed]); // it may have been findable as the end of a prompt
            if *indexed == 0 {
                self.traces.stored(self.keys.unsalted(filling), request.keys.salt());
            }
            if index.insert_full(table[*indexed], parent, key, filling) {
                let salt = request.keys.salt();
                let before = u32::try_from(*indexed).expect("blocks are counted by u32");
                let label = Label { key, parent, salt, before };
                if let Some(filled) = &mut self.filled {
                    filled.push((table[*indexed], label));
                }
                if let Some(changes) = &mut self.changes {
                    changes.push(label.stored(filling, Medium::Device));
                }
            }
            *indexed += 1;
        }
    }

    /// Makes the end of a prompt findable that fills no block, while its request goes on to fill it: the copies that others
    /// take of it do not reach what is written behind it.
    pub(crate) fn index_prompt_end(&mut self, request: &mut LiveRequest, table: &[BlockId], indexed: usize) {
        if indexed == (request.prompt_len / self.block_size) as usize {
            let prompt_len = request.prompt_len;
            self.index_tail(request, table, prompt_len);
        }
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
        let parent = request.keys.key(&self.keys, &request.tokens, blocks);
        (rest.len() >= block_size.div_ceil(2)).then(|| self.keys.child(parent, rest))
    }

    /// Makes the last block findable that committed tokens have begun to fill. For a request that leaves: what is
    /// written behind those tokens does not matter, but the block must belong to no other table.
    pub(crate) fn index_tail(&mut self, request: &mut LiveRequest, table: &[BlockId], committed: u32) {
        let Some(index) = &mut self.index else { return };
        let full = (committed / self.block_size) as usize;
        let filling = &request.tokens[full * self.block_size as usize..committed as usize];
        if !filling.is_empty() {
            index.forget(table[full]); // it may have been findable with fewer tokens
            let parent = request.keys.key(&self.keys, &request.tokens, full);
            index.insert_tail(table[full], parent, filling);
        }
    }

    /// Asserts what each part asserts, and that exactly `holders` hold the blocks.
    pub(crate) fn check(&self, holders: impl Iterator<Item = BlockId>) {
        self.pool.check();
        if let Some(index) = &self.index {
            index.check();
        }
        let mut counted = vec![0; self.pool.capacity()];
        holders.for_each(|block| counted[block.index()] += 1);
        for (block, &holders) in (0..).zip(&counted) {
            assert_eq!(self.pool.holders(BlockId(block)), holders, "block {block}: holders as in tables and copies");
        }
    }
}
