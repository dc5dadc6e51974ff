//! Device blocks: who holds them, and in which order they are given up.
//!
//! A block is *held* by one or more tables or copies, or *idle*: unheld, its contents perhaps still findable.
//! Invariant: a block stands in the idle ring exactly when `holders` is 0. So held + idle == capacity, always.
//! Never here: what a block contains, or who holds it. Every call is O(1).

use serde::{Deserialize, Serialize};

use crate::BlockId;

/// What an idle block is still good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// A later request may find them: the block is given up after all that became idle before it.
    Findable,
    /// Nobody can find them: the block is given up first.
    Blank,
}

/// The blocks of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BlockPool {
    holders: Vec<u32>, // by BlockId
    idle: IdleRing,
}

impl BlockPool {
    /// All blocks idle, to be taken in the order of their ids.
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        let mut idle = IdleRing::new(capacity);
        for block in 0..capacity {
            idle.insert_before_joint(block);
        }
        Self { holders: vec![0; capacity], idle }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn idle(&self) -> usize {
        self.idle.len
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

    /// Takes the block that has been idle for longest. Its contents are lost.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = self.idle.oldest()?;
        assert_eq!(self.holders[block], 0, "an idle block has no holder");
        self.idle.unlink(block);
        self.holders[block] = 1;
        Some(BlockId(u32::try_from(block).expect("made from a u32 in new()")))
    }

    /// One more holder of a block whose contents are wanted.
    pub(crate) fn hold(&mut self, block: BlockId) {
        let holders = &mut self.holders[block.index()];
        if *holders == 0 {
            self.idle.unlink(block.index());
        }
        *holders += 1;
    }

    /// One holder less. A table gives its blocks last one first: so a leaf is given up before its root.
    pub(crate) fn give(&mut self, block: BlockId, contents: Contents) {
        let holders = &mut self.holders[block.index()];
        assert!(*holders > 0, "{block:?} is given by a holder");
        *holders -= 1;
        if *holders == 0 {
            match contents {
                Contents::Findable => self.idle.insert_before_joint(block.index()),
                Contents::Blank => self.idle.insert_after_joint(block.index()),
            }
        }
    }

    /// Asserts the invariant, in O(capacity).
    pub(crate) fn check(&self) {
        let mut stands = vec![false; self.capacity()];
        for block in self.idle.iter() {
            assert!(!stands[block], "block {block} stands in the ring once");
            stands[block] = true;
        }
        for (block, &holders) in self.holders.iter().enumerate() {
            assert_eq!(stands[block], holders == 0, "block {block}: idle exactly when unheld");
        }
        assert_eq!(stands.iter().filter(|stands| **stands).count(), self.idle.len);
    }
}

/// Idle blocks, oldest first: a doubly linked ring by index, closed by a joint that is one past the last block, so that
/// no link ever points nowhere.
///
/// ```text
///   joint → oldest → … → newest → joint      `newer` goes to the right, `older` to the left
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
struct IdleRing {
    newer: Vec<usize>, // by block, then the joint's; stale for held blocks
    older: Vec<usize>,
    len: usize,
}

impl IdleRing {
    fn new(capacity: usize) -> Self {
        Self { newer: vec![capacity; capacity + 1], older: vec![capacity; capacity + 1], len: 0 }
    }

    fn joint(&self) -> usize {
        self.newer.len() - 1
    }

    fn oldest(&self) -> Option<usize> {
        let oldest = self.newer[self.joint()];
        (oldest != self.joint()).then_some(oldest)
    }

    fn insert_before_joint(&mut self, block: usize) {
        self.link(self.older[self.joint()], block, self.joint());
    }

    fn insert_after_joint(&mut self, block: usize) {
        self.link(self.joint(), block, self.newer[self.joint()]);
    }

    fn link(&mut self, older: usize, block: usize, newer: usize) {
        self.older[block] = older;
        self.newer[block] = newer;
        self.newer[older] = block;
        self.older[newer] = block;
        self.len += 1;
    }

    fn unlink(&mut self, block: usize) {
        let (older, newer) = (self.older[block], self.newer[block]);
        self.newer[older] = newer;
        self.older[newer] = older;
        self.len -= 1;
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        std::iter::successors(self.oldest(), |&block| Some(self.newer[block]).filter(|&next| next != self.joint()))
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
        Give(u32, bool),
    }

    fn act(capacity: u32) -> impl Strategy<Value = Act> {
        prop_oneof![
            Just(Act::Take),
            (0..capacity).prop_map(Act::Hold),
            (0..capacity, any::<bool>()).prop_map(|(block, findable)| Act::Give(block, findable)),
        ]
    }

    proptest! {
        /// The oracle is a plain queue and a count per block.
        #[test]
        fn the_pool_does_what_a_plain_queue_does(acts in prop::collection::vec(act(7), 0..200)) {
            let mut pool = BlockPool::new(7);
            let mut queue: VecDeque<u32> = (0..7).collect();
            let mut holders = [0u32; 7];
            for act in acts {
                match act {
                    Act::Take => {
                        let block = queue.pop_front();
                        if let Some(block) = block {
                            holders[block as usize] = 1;
                        }
                        prop_assert_eq!(pool.take(), block.map(BlockId));
                    }
                    Act::Hold(block) => {
                        queue.retain(|&idle| idle != block);
                        holders[block as usize] += 1;
                        pool.hold(BlockId(block));
                    }
                    Act::Give(block, findable) if holders[block as usize] > 0 => {
                        holders[block as usize] -= 1;
                        if holders[block as usize] == 0 && findable {
                            queue.push_back(block);
                        } else if holders[block as usize] == 0 {
                            queue.push_front(block);
                        }
                        pool.give(BlockId(block), if findable { Contents::Findable } else { Contents::Blank });
                    }
                    Act::Give(..) => {}
                }
                pool.check();
                prop_assert_eq!(pool.held() + pool.idle(), pool.capacity());
                prop_assert_eq!(pool.idle(), queue.len());
            }
        }
    }
}
