//! Device blocks: who holds them, and in which order they are given up.
//!
//! A block is *held* by one or more tables or copies, or *idle*: unheld, its contents perhaps still findable.
//! Invariant: a block stands in one of the idle rings exactly when `holders` is 0. So held + idle == capacity, always.
//! Blocks that are pinned are given up after all others.
//! Never here: what a block contains, or who holds it. Every call is O(1).

use serde::{Deserialize, Serialize};

use crate::BlockId;

/// What an idle block is still good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Somebody has asked to keep them: the block is given up when nothing else is idle, the one first that became so first.
    Pinned,
    /// A later request may find them: the block is given up after all that became idle before it.
    Findable,
    /// Nobody can find them: the block is given up first.
    Blank,
}

/// The blocks of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BlockPool {
    holders: Vec<u32>, // by BlockId
    idle: IdleRings,
}

impl BlockPool {
    /// All blocks idle, to be taken in the order of their ids.
    pub(crate) fn new(capacity: u32) -> Self {
        let mut idle = IdleRings::new(capacity);
        for block in 0..capacity {
            idle.insert_newest(block, Ring::Ordinary);
        }
        Self { holders: vec![0; capacity as usize], idle }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len as usize
    }

    pub(crate) fn held(&self) -> usize {
        self.capacity() - self.idle()
    }

    pub(crate) fn is_idle(&self, block: BlockId) -> bool {
        self.holders[block.index()] == 0
    }

    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.holders[block.index()]
    }

    /// Takes the block that has been idle for longest, one that is not pinned if there is any. Its contents are lost.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.idle.oldest(Ring::Ordinary).or_else(|| self.idle.oldest(Ring::Pinned))?;
        let block = BlockId(block);
        assert_eq!(self.holders[block.index()], 0, "an idle block has no holder");
        self.idle.unlink(block.0);
        self.holders[block.index()] = 1;
        Some(block)
    }

    /// One more holder of a block whose contents are wanted.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let holders = &mut self.holders[block.index()];
        if *holders == 0 {
            self.idle.unlink(block.0);
        }
        *holders += 1;
    }

    /// One holder less. A table gives its blocks last one first: so a leaf is given up before its root.
    pub(crate) fn give(&mut self, block: BlockId, contents: Contents) {
        let holders = &mut self.holders[block.index()];
        assert!(*holders > 0, "{block:?} is given by a holder");
        *holders -= 1;
        if *holders == 0 {
            self.idle.insert(block.0, contents);
        }
    }

    /// An idle block's contents are good for something else now. It stands as if it had become idle just now.
    pub(crate) fn set_contents(&mut self, block: BlockId, contents: Contents) {
        assert!(self.is_idle(block), "{block:?} is idle");
        self.idle.unlink(block.0);
        self.idle.insert(block.0, contents);
    }

    /// The idle blocks that are pinned, for assertions.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = BlockId> {
        self.idle.iter(Ring::Pinned).map(BlockId)
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        (self.holders.capacity() + self.idle.newer.capacity() + self.idle.older.capacity()) * size_of::<u32>()
    }

    /// Asserts the invariant, in O(capacity).
    pub(crate) fn check(&self) {
        let mut stands = vec![false; self.capacity()];
        for block in self.idle.iter(Ring::Ordinary).chain(self.idle.iter(Ring::Pinned)) {
            let stood = std::mem::replace(&mut stands[block as usize], true);
            assert!(!stood, "block {block} stands in one ring once");
        }
        for (block, &holders) in self.holders.iter().enumerate() {
            assert_eq!(stands[block], holders == 0, "block {block}: idle exactly when unheld");
        }
        assert_eq!(stands.iter().filter(|stands| **stands).count(), self.idle());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Ordinary,
    Pinned,
}

/// Idle blocks, oldest first: doubly linked rings by index, each closed by a joint behind the last block, so that no link
/// ever points nowhere.
///
/// ```text
///   joint → oldest → … → newest → joint      `newer` goes to the right, `older` to the left
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
struct IdleRings {
    newer: Vec<u32>, // by block, then the joints'; stale for held blocks
    older: Vec<u32>,
    len: u32, // of both
}

impl IdleRings {
    fn new(capacity: u32) -> Self {
        let mut links: Vec<u32> = vec![0; capacity as usize];
        links.extend([capacity, capacity + 1]); // a joint alone is its own neighbour
        Self { newer: links.clone(), older: links, len: 0 }
    }

    fn joint(&self, ring: Ring) -> u32 {
        let blocks = u32::try_from(self.newer.len() - 2).expect("made from a u32 in new()");
        blocks + u32::from(ring == Ring::Pinned)
    }

    fn oldest(&self, ring: Ring) -> Option<u32> {
        let joint = self.joint(ring);
        let oldest = self.newer[joint as usize];
        (oldest != joint).then_some(oldest)
    }

    fn insert(&mut self, block: u32, contents: Contents) {
        match contents {
            Contents::Pinned => self.insert_newest(block, Ring::Pinned),
            Contents::Findable => self.insert_newest(block, Ring::Ordinary),
            Contents::Blank => {
                let joint = self.joint(Ring::Ordinary);
                self.link(joint, block, self.newer[joint as usize]);
            }
        }
    }

    fn insert_newest(&mut self, block: u32, ring: Ring) {
        let joint = self.joint(ring);
        self.link(self.older[joint as usize], block, joint);
    }

    fn link(&mut self, older: u32, block: u32, newer: u32) {
        self.older[block as usize] = older;
        self.newer[block as usize] = newer;
        self.newer[older as usize] = block;
        self.older[newer as usize] = block;
        self.len += 1;
    }

    fn unlink(&mut self, block: u32) {
        let (older, newer) = (self.older[block as usize], self.newer[block as usize]);
        self.newer[older as usize] = newer;
        self.older[newer as usize] = older;
        self.len -= 1;
    }

    fn iter(&self, ring: Ring) -> impl Iterator<Item = u32> {
        let joint = self.joint(ring);
        std::iter::successors(self.oldest(ring), move |&block| {
            Some(self.newer[block as usize]).filter(|&next| next != joint)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blank_blocks_are_given_up_before_findable_ones_and_those_by_age() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<_> = (0..4).map(|_| pool.take().expect("four blocks")).collect();
        pool.give(blocks[2], Contents::Findable);
        pool.give(blocks[0], Contents::Findable);
        pool.give(blocks[3], Contents::Blank);
        assert_eq!(
            [pool.take(), pool.take(), pool.take(), pool.take()],
            [Some(blocks[3]), Some(blocks[2]), Some(blocks[0]), None]
        );
    }

    #[test]
    fn a_block_with_two_holders_is_idle_only_when_both_have_given_it() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().expect("one block");
        pool.hold(block);
        pool.give(block, Contents::Findable);
        assert_eq!((pool.idle(), pool.held()), (0, 1));
        pool.give(block, Contents::Findable);
        assert_eq!((pool.idle(), pool.held()), (1, 0));
    }

    #[test]
    fn an_idle_block_that_is_held_again_cannot_be_taken() {
        let mut pool = BlockPool::new(2);
        pool.hold(BlockId(0));
        assert_eq!([pool.take(), pool.take()], [Some(BlockId(1)), None]);
    }

    #[derive(Debug, Clone)]
    enum Act {
        Take,
        Hold(u32),
        Give(u32, Contents),
        Set(u32, Contents),
    }

    fn contents() -> impl Strategy<Value = Contents> {
        prop_oneof![Just(Contents::Pinned), Just(Contents::Findable), Just(Contents::Blank)]
    }

    fn act(capacity: u32) -> impl Strategy<Value = Act> {
        prop_oneof![
            Just(Act::Take),
            (0..capacity).prop_map(Act::Hold),
            (0..capacity, contents()).prop_map(|(block, contents)| Act::Give(block, contents)),
            (0..capacity, contents()).prop_map(|(block, contents)| Act::Set(block, contents)),
        ]
    }

    /// Two plain queues: who is not pinned, and who is.
    type Queues = [VecDeque<u32>; 2];

    fn enter(queues: &mut Queues, block: u32, contents: Contents) {
        queues.iter_mut().for_each(|queue| queue.retain(|&idle| idle != block));
        match contents {
            Contents::Pinned => queues[1].push_back(block),
            Contents::Findable => queues[0].push_back(block),
            Contents::Blank => queues[0].push_front(block),
        }
    }

    proptest! {
        /// The oracle is two plain queues and a count per block.
        #[test]
        fn the_pool_does_what_plain_queues_do(acts in prop::collection::vec(act(7), 0..200)) {
            let mut pool = BlockPool::new(7);
            let mut queues: Queues = [(0..7).collect(), VecDeque::new()];
            let mut holders = [0u32; 7];
            for act in acts {
                match act {
                    Act::Take => {
                        let block = queues[0].pop_front().or_else(|| queues[1].pop_front());
                        if let Some(block) = block {
                            holders[block as usize] = 1;
                        }
                        prop_assert_eq!(pool.take(), block.map(BlockId));
                    }
                    Act::Hold(block) => {
                        queues.iter_mut().for_each(|queue| queue.retain(|&idle| idle != block));
                        holders[block as usize] += 1;
                        pool.hold(BlockId(block));
                    }
                    Act::Give(block, contents) if holders[block as usize] > 0 => {
                        holders[block as usize] -= 1;
                        if holders[block as usize] == 0 {
                            enter(&mut queues, block, contents);
                        }
                        pool.give(BlockId(block), contents);
                    }
                    Act::Set(block, contents) if holders[block as usize] == 0 => {
                        enter(&mut queues, block, contents);
                        pool.set_contents(BlockId(block), contents);
                    }
                    Act::Give(..) | Act::Set(..) => {}
                }
                pool.check();
                prop_assert_eq!(pool.held() + pool.idle(), pool.capacity());
                prop_assert_eq!(pool.idle(), queues[0].len() + queues[1].len());
                prop_assert!(pool.pinned().map(|block| block.0).eq(queues[1].iter().copied()));
            }
        }
    }
}
