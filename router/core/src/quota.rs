//! How much of a worker's cache each tenant may leave behind: idle blocks that can be found, by whose request held them
//! last. A tenant that is over its quota gives up its own, first the one that became idle first, leaf before root.
//!
//! Pinned blocks do not count: pins have a bound of their own. Never here: what a block contains. Every call is O(1).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::BlockId;

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Quota {
    blocks_max: u32,
    lines: HashMap<u64, Line>,  // by tenant; those without blocks have none
    tenants: Vec<u64>,          // by BlockId: whose request held it last
    places: Vec<Option<Place>>, // by BlockId: of those that stand in a line
}

/// A tenant's blocks, oldest first.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Line {
    oldest: BlockId,
    newest: BlockId,
    len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Place {
    newer: Option<BlockId>,
    older: Option<BlockId>,
}

impl Quota {
    /// No tenant leaves more than `percent` of so many blocks.
    pub(crate) fn new(blocks: u32, percent: u32) -> Self {
        Self {
            blocks_max: share(blocks, percent),
            lines: HashMap::new(),
            tenants: vec![0; blocks as usize],
            places: vec![None; blocks as usize],
        }
    }

    /// A block belongs to the tenant whose request has just given it.
    pub(crate) fn belongs(&mut self, block: BlockId, tenant: u64) {
        assert_eq!(self.places[block.index()], None, "{block:?} was held until now");
        self.tenants[block.index()] = tenant;
    }

    /// A block is idle now and can be found. Says which one is to be given up for it.
    pub(crate) fn enter(&mut self, block: BlockId) -> Option<BlockId> {
        assert_eq!(self.places[block.index()], None, "{block:?} enters once");
        let tenant = self.tenants[block.index()];
        let mut place = Place::default();
        let line = self
            .lines
            .entry(tenant)
            .and_modify(|line| {
                place.older = Some(line.newest);
                line.newest = block;
                line.len += 1;
            })
            .or_insert(Line { oldest: block, newest: block, len: 1 });
        let over = (line.len > self.blocks_max).then_some(line.oldest);
        if let Some(older) = place.older {
            self.place_mut(older).newer = Some(block);
        }
        self.places[block.index()] = Some(place);
        over
    }

    /// A block is held, pinned or given up. Nothing happens if it did not count.
    pub(crate) fn leave(&mut self, block: BlockId) {
        let Some(Place { newer, older }) = self.places[block.index()].take() else { return };
        if let Some(newer) = newer {
            self.place_mut(newer).older = older;
        }
        if let Some(older) = older {
            self.place_mut(older).newer = newer;
        }
        let tenant = self.tenants[block.index()];
        let line = self.lines.get_mut(&tenant).expect("it stands in its tenant's line");
        line.len -= 1;
        match (newer, older) {
            (None, None) => drop(self.lines.remove(&tenant)),
            (None, Some(older)) => line.newest = older,
            (Some(newer), None) => line.oldest = newer,
            (Some(_), Some(_)) => {}
        }
    }

    fn place_mut(&mut self, block: BlockId) -> &mut Place {
        self.places[block.index()].as_mut().expect("neighbours stand in a line")
    }

    /// Asserts that exactly these blocks count, and that nobody has too many.
    pub(crate) fn check(&self, counts: impl Fn(BlockId) -> bool) {
        let mut of_tenant: HashMap<u64, u32> = HashMap::new();
        for (at, place) in (0..).zip(&self.places) {
            assert_eq!(place.is_some(), counts(BlockId(at)), "block {at} counts when it is idle, findable, not pinned");
            if place.is_some() {
                *of_tenant.entry(self.tenants[at as usize]).or_default() += 1;
            }
        }
        assert!(of_tenant.values().all(|&blocks| blocks <= self.blocks_max), "no tenant is over its quota");
        assert_eq!(of_tenant.len(), self.lines.len());
        for (tenant, line) in &self.lines {
            assert_eq!(of_tenant[tenant], line.len);
            let blocks = std::iter::successors(Some(line.oldest), |block| self.places[block.index()]?.newer);
            assert!(blocks.clone().all(|block| self.tenants[block.index()] == *tenant));
            assert_eq!((blocks.clone().count(), blocks.last()), (line.len as usize, Some(line.newest)));
        }
    }
}

/// So many percent of a number of blocks.
pub(crate) fn share(blocks: u32, percent: u32) -> u32 {
    u32::try_from(u64::from(blocks) * u64::from(percent.min(100)) / 100).expect("a part of a u32")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The oracle is a plain queue for each tenant.
        #[test]
        fn who_is_over_its_quota_gives_up_its_own_oldest_block(
            acts in prop::collection::vec((0u32..20, 0u64..3), 0..200), percent in 0u32..=100,
        ) {
            let mut quota = Quota::new(20, percent);
            let mut queues: [VecDeque<u32>; 3] = Default::default();
            for (block, tenant) in acts {
                if let Some(queue) = queues.iter_mut().find(|queue| queue.contains(&block)) {
                    queue.retain(|&other| other != block);
                    quota.leave(BlockId(block));
                } else {
                    quota.belongs(BlockId(block), tenant);
                    let queue = &mut queues[usize::try_from(tenant).expect("three tenants")];
                    queue.push_back(block);
                    let over = (queue.len() > 20 * percent as usize / 100).then(|| BlockId(queue[0]));
                    prop_assert_eq!(quota.enter(BlockId(block)), over);
                    if let Some(over) = over {
                        queue.pop_front();
                        quota.leave(over);
                    }
                }
                quota.check(|block| queues.iter().any(|queue| queue.contains(&block.0)));
            }
        }
    }
}
