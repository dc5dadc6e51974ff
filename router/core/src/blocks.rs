//! The KV blocks of one worker: the pool and the index over it, kept in step.
//!
//! Invariant: a block that is taken is not findable any more; a block that is given is idle as long as its contents can
//! be found, and the first to be given up if they cannot.

use serde::{Deserialize, Serialize};

use crate::hit::{self, Hit, Partial};
use crate::kinds::Kinds;
use crate::live::LiveRequest;
use crate::pins::{Named, PinnedBlock};
use crate::pool::{BlockPool, Contents};
use crate::prefix::{Key, KeyMaker, PrefixIndex};
use crate::quota::Quota;
use crate::table::Table;
use crate::tiers::{Found, Label};
use crate::traces::Traces;
use crate::{BlockId, CacheChange, CoreConfig, HostBlockId, Medium, Missed, TokenId};

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

    /// The block of the first kind in which a full one is found, by the number of blocks before it.
    pub(crate) fn find_one(&self, request: &mut LiveRequest, before: usize) -> Option<BlockId> {
        self.index.as_ref()?.find(0, request.keys.key(&self.keys, &request.tokens, before + 1))
    }

    /// The start of what follows a request's first `full` places.
    pub(crate) fn find_start(&self, request: &mut LiveRequest, full: usize) -> Option<Partial> {
        let parent = request.keys.key(&self.keys, &request.tokens, full);
        let rest = &request.tokens[full * self.block_size as usize..request.tokens.len() - 1];
        hit::partial(&self.kinds, self.index.as_ref()?, parent, rest)
    }

    /// What the block of a kind holds at one of a request's full places, by the number of places before it.
    pub(crate) fn label(&self, request: &mut LiveRequest, kind: usize, before: usize) -> Label {
        let parent = request.keys.key(&self.keys, &request.tokens, before);
        let key = request.keys.key(&self.keys, &request.tokens, before + 1);
        Label::new(&self.kinds, kind, parent, key, request.keys.salt(), before)
    }

    /// The tokens of a block, if it still holds what it is said to hold.
    pub(crate) fn tokens_of(&self, block: BlockId, key: Key) -> Option<&[TokenId]> {
        let index = self.index.as_ref()?;
        (index.key_of(block) == Some(key)).then(|| index.tokens_of(block))
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

    /// Looks for the longest known prefix: first by full blocks, then for the start of the block after them.
    pub(crate) fn find(&self, request: &mut LiveRequest) -> Hit {
        self.find_with(request, |_| None)
    }

    /// The same, where blocks count too that a tier below has, by their keys.
    pub(crate) fn find_with(&self, request: &mut LiveRequest, below: impl Fn(Key) -> Option<HostBlockId>) -> Hit {
        let Some(index) = &self.index else { return Hit::none(&self.kinds) };
        let usable = &request.tokens[..request.tokens.len() - 1];
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
        Missed { is_off: false, evicted, has_other_salt }
    }

    pub(crate) fn hold(&mut self, block: BlockId) {
        if let Some(quota) = &mut self.quota {
            quota.leave(block);
        }
        self.pool.hold(block);
    }

    /// Takes the blocks of the full kinds for so many tokens. The caller has seen that there are enough.
    pub(crate) fn take_full(&mut self, tokens: u32, table: &mut Table) {
        for at in 0..self.places_for(tokens) {
            let kinds = self.kinds;
            kinds.full().for_each(|kind| self.fill(kind, at, table));
        }
    }

    /// How many blocks a row from `start` to `end` wants that the table does not have. The worker was told of `appended`
    /// places: within these none is wanted.
    pub(crate) fn wanted(&self, table: &Table, appended: usize, start: u32, end: u32) -> usize {
        if end as usize <= appended * self.block_size as usize {
            return 0;
        }
        let wanted = |kind| self.kinds.written(kind, start, end).filter(|&at| table.get(kind, at).is_none()).count();
        (0..self.kinds.count()).map(wanted).sum()
    }

    /// How long a row of at most `count` tokens from `start` on may be without taking blocks from others. At least to
    /// the end of a block: for so much the caller makes room.
    pub(crate) fn row_max(&self, table: &Table, start: u32, count: u32) -> u32 {
        let growing = self.kinds.growing();
        if growing == 0 {
            return count;
        }
        let lacking = self.wanted(table, 0, start, start + count).saturating_sub(self.pool.idle());
        let lacking = u32::try_from(lacking).expect("blocks are counted by u32").div_ceil(growing);
        let places = (start + count).div_ceil(self.block_size);
        let places = places.saturating_sub(lacking).max(start / self.block_size + 1);
        count.min(places * self.block_size - start)
    }

    /// Takes what `wanted` counts. The caller has seen that there are enough.
    pub(crate) fn take_for_row(&mut self, table: &mut Table, start: u32, end: u32) {
        let kinds = self.kinds;
        for kind in 0..kinds.count() {
            kinds.written(kind, start, end).for_each(|at| self.fill(kind, at, table));
        }
    }

    /// Puts a block at a place of a table, if there is none.
    pub(crate) fn fill(&mut self, kind: usize, at: usize, table: &mut Table) {
        if table.get(kind, at).is_some() {
            return;
        }
        let block = self.pool.take().expect("the caller saw enough idle blocks");
        self.pinned_given_up += u64::from(self.is_pinned(block));
        self.give_up(block);
        table.put(kind, at, block);
    }

    /// What a block contains cannot be found any more.
    fn give_up(&mut self, block: BlockId) {
        if let Some(quota) = &mut self.quota {
            quota.leave(block);
        }
        if let Some(index) = &mut self.index
            && let Some(lost) = index.forget(block)
        {
            self.traces.gave_up(lost.key);
            if lost.kind == self.kinds.leading()
                && let Some(changes) = &mut self.changes
            {
                changes.push(CacheChange::Removed { block: lost.key.name(), medium: Medium::Device });
            }
        }
    }

    /// Gives back the blocks that no step reads any more that computes what follows `committed` tokens, after `before` of
    /// them were committed already.
    pub(crate) fn pass(&mut self, table: &mut Table, tenant: u64, before: u32, committed: u32) {
        let kinds = self.kinds;
        for kind in kinds.bounded() {
            for at in kinds.first_needed(kind, before)..kinds.first_needed(kind, committed) {
                if let Some(block) = table.take(kind, at) {
                    self.give(block, tenant);
                }
            }
        }
    }

    /// A table of a tenant's request lets go of a block.
    pub(crate) fn give(&mut self, block: BlockId, tenant: u64) {
        if let Some(quota) = &mut self.quota {
            quota.belongs(block, tenant);
        }
        self.let_go(block);
    }

    /// A copy lets go of its source, which belongs to whom it belonged before.
    pub(crate) fn give_source(&mut self, block: BlockId) {
        self.let_go(block);
    }

    fn let_go(&mut self, block: BlockId) {
        let contents = match () {
            () if self.is_pinned(block) => Contents::Pinned,
            () if self.is_findable(block) => Contents::Findable,
            () => Contents::Blank,
        };
        self.pool.give(block, contents);
        if contents == Contents::Findable && self.pool.is_idle(block) {
            self.count_idle(block);
        }
    }

    /// One more idle block that can be found: its tenant may have to give up another one for it.
    fn count_idle(&mut self, block: BlockId) {
        if let Some(over) = self.quota.as_mut().and_then(|quota| quota.enter(block)) {
            self.give_up(over);
            self.pool.set_contents(over, Contents::Blank);
        }
    }

    fn is_findable(&self, block: BlockId) -> bool {
        self.index.as_ref().is_some_and(|index| index.contains(block))
    }

    fn is_pinned(&self, block: BlockId) -> bool {
        !self.pinned.is_empty() && self.pinned_block(block).is_some_and(|named| self.pinned.contains(named))
    }

    fn pinned_block(&self, block: BlockId) -> Option<PinnedBlock> {
        self.index.as_ref()?.full_block(block)
    }

    /// One more pin names a block, be it there or not.
    pub(crate) fn pin(&mut self, named: PinnedBlock) {
        if self.pinned.add(named)
            && let Some(block) = self.idle_block(named)
        {
            if let Some(quota) = &mut self.quota {
                quota.leave(block);
            }
            self.pool.set_contents(block, Contents::Pinned);
        }
    }

    /// One pin less names it.
    pub(crate) fn unpin(&mut self, named: PinnedBlock) {
        if self.pinned.remove(named)
            && let Some(block) = self.idle_block(named)
        {
            self.pool.set_contents(block, Contents::Findable);
            self.count_idle(block);
        }
    }

    fn idle_block(&self, (kind, key): PinnedBlock) -> Option<BlockId> {
        self.index.as_ref()?.find(kind, key).filter(|&block| self.pool.is_idle(block))
    }

    /// Pinned blocks that were given up.
    pub(crate) fn pinned_given_up(&self) -> u64 {
        self.pinned_given_up
    }

    /// Makes the full blocks of a table findable whose tokens are committed. Those of `indexed` places were looked at
    /// before.
    pub(crate) fn index_full(&mut self, request: &mut LiveRequest, table: &Table, indexed: &mut usize, committed: u32) {
        let Some(index) = &mut self.index else { return };
        let block_size = self.block_size as usize;
        while (*indexed + 1) * block_size <= committed as usize {
            let at = *indexed;
            let parent = request.keys.key(&self.keys, &request.tokens, at);
            let key = request.keys.key(&self.keys, &request.tokens, at + 1);
            let filling = &request.tokens[at * block_size..][..block_size];
            if at == 0 {
                self.traces.stored(self.keys.unsalted(filling), request.keys.salt());
            }
            for kind in 0..self.kinds.count() {
                let Some(block) = table.get(kind, at).filter(|_| self.kinds.is_kept(kind, at, committed)) else {
                    continue;
                };
                if index.full_block(block) == Some((kind, key)) {
                    continue; // a hit behind blocks that were brought back
                }
                index.forget(block); // it may have been findable as the end of a prompt
                if index.insert_full(block, kind, parent, key, filling) {
                    let label = Label::new(&self.kinds, kind, parent, key, request.keys.salt(), at);
                    if let Some(filled) = &mut self.filled {
                        filled.push((block, label));
                    }
                    if let Some(changes) = &mut self.changes {
                        changes.extend(label.stored(filling, Medium::Device));
                    }
                }
            }
            *indexed += 1;
        }
    }

    /// Makes the end of a prompt findable that fills no block, while its request goes on to fill it: the copies that others
    /// take of it do not reach what is written behind it.
    pub(crate) fn index_prompt_end(&mut self, request: &mut LiveRequest, table: &Table, indexed: usize) {
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
        let is_worth_it = self.kinds.can_be_copied() && rest.len() >= block_size.div_ceil(2);
        is_worth_it.then(|| self.keys.child(parent, rest))
    }

    /// Makes the last block findable that committed tokens have begun to fill. For a request that leaves: what is
    /// written behind those tokens does not matter, but the block must belong to no other table.
    pub(crate) fn index_tail(&mut self, request: &mut LiveRequest, table: &Table, committed: u32) {
        let Some(index) = self.index.as_mut().filter(|_| self.kinds.can_be_copied()) else { return };
        let full = (committed / self.block_size) as usize;
        let filling = &request.tokens[full * self.block_size as usize..committed as usize];
        if !filling.is_empty() {
            let parent = request.keys.key(&self.keys, &request.tokens, full);
            for kind in 0..self.kinds.count() {
                let block = table.get(kind, full).expect("the next token would be written behind the latest one");
                index.forget(block); // it may have been findable with fewer tokens
                index.insert_tail(block, kind, parent, filling);
            }
        }
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
