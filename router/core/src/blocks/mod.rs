//! The KV blocks of one worker: the pool and the index over it, kept in step.
//!
//! Invariant: a block that is taken is not findable any more; a block that is given is idle as long as its contents can
//! be found, and the first to be given up if they cannot.

mod fill;
mod find;
mod hold;
#[cfg(test)]
mod memory;

use serde::{Deserialize, Serialize};

use crate::hit::Hit;
use crate::keys::KeyMaker;
use crate::kinds::Kinds;
use crate::pins::Named;
use crate::pool::BlockPool;
use crate::prefix::PrefixIndex;
use crate::quota::Quota;
use crate::table::Table;
use crate::tiers::Label;
use crate::traces::Traces;
use crate::{BlockId, CacheChange, CoreConfig};

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Blocks {
    block_size: u32,
    kinds: Kinds,
    pool: BlockPool,
    keys: KeyMaker,
    index: Option<PrefixIndex>, // none: prefix caching is off, or the kinds do not allow it
    changes: Option<Vec<CacheChange>>, // none: nobody wants to know
    filled: Option<Vec<(BlockId, Label)>>, // none: there is no tier below
    traces: Traces,
    quota: Option<Quota>, // none: tenants may leave as much as there is room for
    pinned: Named,
    pinned_given_up: u64,
}

impl Blocks {
    pub(crate) fn new(capacity: u32, saves: bool, config: &CoreConfig) -> Self {
        let block_size = config.block_size as usize;
        let kinds = Kinds::new(&config.kinds, config.block_size);
        let caches = config.prefix_caching && kinds.can_be_found();
        let has_quota = caches && config.tenant_cache_share < 100;
        Self {
            block_size: config.block_size,
            kinds,
            pool: BlockPool::new(capacity),
            keys: KeyMaker::new(config.hash_key, block_size),
            index: caches.then(|| PrefixIndex::new(capacity as usize, block_size)),
            changes: config.tells_cache_changes.then(Vec::new),
            filled: (saves && caches).then(Vec::new),
            traces: Traces::new(if caches { capacity as usize } else { 0 }),
            quota: has_quota.then(|| Quota::new(capacity, config.tenant_cache_share)),
            pinned: Named::default(),
            pinned_given_up: 0,
        }
    }

    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// What became findable and what is lost since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// How many blocks of a full kind hold so many tokens.
    fn places_for(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.block_size) as usize
    }

    /// How many tokens at the start of a table others hold too.
    pub(crate) fn shared_tokens(&self, table: &Table) -> u32 {
        let is_shared = |at: usize| {
            let mut full = self.kinds.full().map(|kind| table.get(kind, at));
            full.all(|block| block.is_some_and(|block| self.pool.holders(block) > 1))
        };
        if self.kinds.fulls() == 0 || self.index.is_none() {
            return 0; // of what is given back nothing is surely there later
        }
        let shared = (0..).take_while(|&at| is_shared(at)).count();
        self.tokens_in_places(shared)
    }

    pub(crate) fn tokens_in_places(&self, places: usize) -> u32 {
        u32::try_from(places).expect("blocks are counted by u32") * self.block_size
    }

    /// How many tokens a hit saves.
    pub(crate) fn tokens_in(&self, hit: &Hit) -> u32 {
        self.tokens_in_full(hit) + hit.partial.as_ref().map_or(0, |partial| partial.tokens)
    }

    /// How many of them are in full blocks.
    pub(crate) fn tokens_in_full(&self, hit: &Hit) -> u32 {
        self.tokens_in_places(hit.places)
    }

    /// Asserts what each part asserts, and that exactly `holders` hold the blocks.
    pub(crate) fn check(&self, holders: impl Iterator<Item = BlockId>) {
        self.pool.check();
        if let Some(index) = &self.index {
            index.check();
        }
        if let Some(quota) = &self.quota {
            let is_idle = |block| self.pool.is_idle(block) && self.is_findable(block);
            quota.check(|block| is_idle(block) && !self.is_pinned(block));
        }
        assert!(self.pool.pinned().all(|block| self.is_pinned(block)));
        let pinned = self.pinned.iter().filter(|&named| self.idle_block(named).is_some()).count();
        assert_eq!(pinned, self.pool.pinned().count(), "what pins name stands where it is given up last");
        let mut counted = vec![0; self.pool.capacity()];
        holders.for_each(|block| counted[block.index()] += 1);
        for (block, &holders) in (0..).zip(&counted) {
            assert_eq!(self.pool.holders(BlockId(block)), holders, "block {block}: holders as in tables and copies");
        }
    }
}
