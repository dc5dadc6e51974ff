//! Who takes and gives blocks, and what becomes of what they contain: found again, kept for a pin, counted for a tenant,
//! or given up.

use super::Blocks;
use crate::live::LiveRequest;
use crate::pins::PinnedBlock;
use crate::pool::Contents;
use crate::table::Table;
use crate::{BlockId, CacheChange, Medium};

impl Blocks {
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

    /// How many blocks nobody would hold without these tables. O(their blocks), and of the pool's for its count of them.
    pub(crate) fn held_by_these_alone<'a>(&self, tables: impl Iterator<Item = &'a Table>) -> usize {
        let mut holders = vec![0; self.pool.capacity()];
        let mut alone = 0;
        for block in tables.flat_map(Table::blocks) {
            holders[block.index()] += 1;
            alone += usize::from(holders[block.index()] == self.pool.holders(block));
        }
        alone
    }

    /// How many blocks a row from `start` to `end` wants that the table does not have.
    pub(crate) fn wanted(&self, table: &Table, start: u32, end: u32) -> usize {
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
        let lacking = self.wanted(table, start, start + count).saturating_sub(self.pool.idle());
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

    /// What the blocks of a request's tokens contain cannot be found any more. `found`: so many places it had found, and perhaps the
    /// start of a block behind them, as that of another one.
    pub(crate) fn forget_chain(&mut self, request: &mut LiveRequest, found: Option<usize>) {
        let full = request.tokens.len() / self.block_size as usize;
        for before in (0..full).rev() {
            let key = request.keys.key(&self.keys, &request.tokens, before + 1);
            for kind in 0..self.kinds.count() {
                if let Some(block) = self.index.as_ref().and_then(|index| index.find(kind, key)) {
                    self.forget(block);
                }
            }
        }
        for before in found.into_iter().filter(|&found| found < full).chain([full]) {
            let start = before * self.block_size as usize;
            let plain = request.keys.plain(start, request.tokens.len());
            let parent = request.keys.key(&self.keys, &request.tokens, before);
            for kind in 0..self.kinds.count() {
                let rest = &request.tokens[start..][..plain];
                let index = self.index.as_ref();
                let children = index.map(|index| index.children_that_begin_so(kind, parent, rest)).unwrap_or_default();
                children.into_iter().for_each(|block| self.forget(block));
            }
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.give_up(block);
        if self.pool.is_idle(block) {
            self.pool.set_contents(block, Contents::Blank);
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

    pub(super) fn is_findable(&self, block: BlockId) -> bool {
        self.index.as_ref().is_some_and(|index| index.contains(block))
    }

    pub(super) fn is_pinned(&self, block: BlockId) -> bool {
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

    pub(super) fn idle_block(&self, (kind, key): PinnedBlock) -> Option<BlockId> {
        self.index.as_ref()?.find(kind, key).filter(|&block| self.pool.is_idle(block))
    }

    /// Pinned blocks that were given up.
    pub(crate) fn pinned_given_up(&self) -> u64 {
        self.pinned_given_up
    }
}
