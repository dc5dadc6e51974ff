//! Which block holds the KV of which tokens: an index over chains of keys, for full blocks and for tails.
//!
//! A *tail* is a block that is filled in part: it has no key and is found under its parent's only. Each kind of layers has
//! blocks of its own, so its number is part of all that is looked up.
//! Never here: who holds a block, when it is given up, requests. The caller inserts only what the worker has computed.

use std::collections::hash_map::Entry;

use serde::{Deserialize, Serialize};

use crate::keys::{ByKey, Key};
use crate::{BlockId, TokenId};

/// How many children of a parent are looked at for a partial hit, the newest first. Bounds the cost of a popular prefix
/// with a thousand continuations; a hit that is missed costs part of one block.
const CHILDREN_SEARCHED: usize = 16;

/// The findable blocks of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PrefixIndex {
    block_size: usize,
    full: ByKey<BlockId>,
    newest_child: ByKey<BlockId>, // by the parent's key: a parent may be gone and come again while its children stay
    entries: Vec<Option<Filling>>, // by BlockId
    tokens: Vec<TokenId>,         // block_size of them per block
}

/// A full block that was findable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) key: Key,
    pub(crate) kind: usize,
}

/// Keys are as of the block's kind.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Filling {
    key: Option<Key>, // a tail has none
    parent: Key,
    filled: u32,
    plain: u32, // of those, how many come before the first that only holds a place
    kind: u32,
    newer: Option<BlockId>, // siblings under `parent`
    older: Option<BlockId>,
}

impl PrefixIndex {
    pub(crate) fn new(blocks: usize, block_size: usize) -> Self {
        Self {
            block_size,
            full: ByKey::default(),
            newest_child: ByKey::default(),
            entries: vec![None; blocks],
            tokens: vec![0; blocks * block_size],
        }
    }

    pub(crate) fn find(&self, kind: usize, key: Key) -> Option<BlockId> {
        self.full.get(&key.of_kind(kind)).copied()
    }

    /// The key under which a full block is found.
    pub(crate) fn key_of(&self, block: BlockId) -> Option<Key> {
        self.entries[block.index()].and_then(|entry| entry.key)
    }

    /// The tokens of a block that is found.
    pub(crate) fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        self.filling(block)
    }

    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.entries[block.index()].is_some()
    }

    /// Which full block it is: of which kind, behind which chain.
    pub(crate) fn full_block(&self, block: BlockId) -> Option<(usize, Key)> {
        let entry = self.entries[block.index()].as_ref()?;
        let kind = entry.kind as usize;
        entry.key.map(|key| (kind, key.of_kind(kind)))
    }

    /// The child of `parent` that has most tokens in common with the start of `tokens`, and how many; at least one.
    /// Of several the newest. Only tokens count that are what they seem, in the child and, as the caller knows, in `tokens`.
    pub(crate) fn longest_child(&self, kind: usize, parent: Key, tokens: &[TokenId]) -> Option<(BlockId, usize)> {
        let mut longest: Option<(BlockId, usize)> = None;
        let newest = self.newest_child.get(&parent.of_kind(kind)).copied();
        for child in std::iter::successors(newest, |&child| self.entry(child).older).take(CHILDREN_SEARCHED) {
            let common = self.plain(child).iter().zip(tokens).take_while(|(ours, theirs)| ours == theirs).count();
            if common > longest.map_or(0, |(_, tokens)| tokens) {
                longest = Some((child, common));
            }
        }
        longest
    }

    /// All children of `parent` that have tokens in common with the start of `tokens`.
    pub(crate) fn children_that_begin_so(&self, kind: usize, parent: Key, tokens: &[TokenId]) -> Vec<BlockId> {
        let newest = self.newest_child.get(&parent.of_kind(kind)).copied();
        let children = std::iter::successors(newest, |&child| self.entry(child).older);
        let begins_so =
            |child: &BlockId| self.plain(*child).iter().zip(tokens).next().is_some_and(|(ours, theirs)| ours == theirs);
        children.filter(begins_so).collect()
    }

    /// Enters a full block, whose first `plain` tokens are what they seem, and says whether it is findable now: where another block has the key already, that one stays.
    pub(crate) fn insert_full(
        &mut self,
        block: BlockId,
        kind: usize,
        parent: Key,
        key: Key,
        tokens: &[TokenId],
        plain: usize,
    ) -> bool {
        assert_eq!(tokens.len(), self.block_size, "a full block");
        let Entry::Vacant(vacant) = self.full.entry(key.of_kind(kind)) else { return false };
        vacant.insert(block);
        self.insert(block, kind, parent, Some(key), tokens, plain);
        true
    }

    /// Enters a block that is filled in part with tokens that are what they seem, unless a sibling has these already.
    pub(crate) fn insert_tail(&mut self, block: BlockId, kind: usize, parent: Key, tokens: &[TokenId]) {
        assert!((1..self.block_size).contains(&tokens.len()), "a tail");
        if self.longest_child(kind, parent, tokens).is_none_or(|(_, common)| common < tokens.len()) {
            self.insert(block, kind, parent, None, tokens, tokens.len());
        }
    }

    /// The block's contents are about to be lost. Nothing happens if it is not findable. Says what was lost if it was full.
    pub(crate) fn forget(&mut self, block: BlockId) -> Option<Forgotten> {
        let entry = self.entries[block.index()].take()?;
        if let Some(key) = entry.key {
            self.full.remove(&key);
        }
        if let Some(older) = entry.older {
            self.entry_mut(older).newer = entry.newer;
        }
        match (entry.newer, entry.older) {
            (Some(newer), older) => self.entry_mut(newer).older = older,
            (None, Some(older)) => *self.newest_child.get_mut(&entry.parent).expect("a family has a newest") = older,
            (None, None) => drop(self.newest_child.remove(&entry.parent)),
        }
        let kind = entry.kind as usize;
        entry.key.map(|key| Forgotten { key: key.of_kind(kind), kind })
    }

    fn insert(&mut self, block: BlockId, kind: usize, parent: Key, key: Option<Key>, tokens: &[TokenId], plain: usize) {
        assert!(!self.contains(block), "{block:?} is entered once");
        let (parent, key) = (parent.of_kind(kind), key.map(|key| key.of_kind(kind)));
        let count = |len: usize| u32::try_from(len).expect("few kinds, few tokens in a block");
        let older = self.newest_child.insert(parent, block);
        if let Some(older) = older {
            self.entry_mut(older).newer = Some(block);
        }
        self.entries[block.index()] = Some(Filling {
            key,
            parent,
            filled: count(tokens.len()),
            plain: count(plain),
            kind: count(kind),
            newer: None,
            older,
        });
        self.tokens[block.index() * self.block_size..][..tokens.len()].copy_from_slice(tokens);
    }

    fn filling(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.entry(block).filled as usize]
    }

    /// The tokens at its start that are what they seem.
    fn plain(&self, block: BlockId) -> &[TokenId] {
        &self.filling(block)[..self.entry(block).plain as usize]
    }

    fn entry(&self, block: BlockId) -> &Filling {
        self.entries[block.index()].as_ref().expect("families hold findable blocks only")
    }

    fn entry_mut(&mut self, block: BlockId) -> &mut Filling {
        self.entries[block.index()].as_mut().expect("families hold findable blocks only")
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        // A map has a power of two of places, seven in eight of which it fills, and a byte beside each.
        let map = |capacity: usize| (capacity * 8 / 7).next_power_of_two() * (size_of::<(Key, BlockId)>() + 1);
        let tokens = self.tokens.capacity() * size_of::<TokenId>();
        let entries = self.entries.capacity() * size_of::<Option<Filling>>();
        map(self.full.capacity()) + map(self.newest_child.capacity()) + entries + tokens
    }

    /// Asserts that maps, families and entries tell the same story, in O(blocks).
    pub(crate) fn check(&self) {
        let entered = self.entries.iter().flatten();
        assert_eq!(entered.clone().filter(|entry| entry.key.is_some()).count(), self.full.len());
        assert_eq!(entered.filter(|entry| entry.newer.is_none()).count(), self.newest_child.len());
        for at in 0..self.entries.len() {
            let block = BlockId(u32::try_from(at).expect("blocks are counted by u32"));
            let Some(entry) = self.entries[at] else { continue };
            assert_eq!(
                entry.key.is_some(),
                entry.filled as usize == self.block_size,
                "{block:?}: a key exactly when full"
            );
            if let Some(key) = entry.key {
                assert_eq!(self.find(entry.kind as usize, key.of_kind(entry.kind as usize)), Some(block));
            }
            match entry.newer {
                Some(newer) => {
                    assert_eq!((self.entry(newer).older, self.entry(newer).parent), (Some(block), entry.parent))
                }
                None => assert_eq!(self.newest_child.get(&entry.parent), Some(&block)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::CacheScope;
    use crate::keys::{KeyChain, KeyMaker};

    const BLOCK_SIZE: usize = 4;

    fn maker() -> KeyMaker {
        KeyMaker::new([1, 2], BLOCK_SIZE)
    }

    /// Enters all of a text into the blocks from `first` on, the tail too.
    fn enter(index: &mut PrefixIndex, first: u32, salt: u64, text: &[TokenId]) {
        let (maker, mut chain) = (maker(), KeyChain::new(CacheScope::salted(salt).shared()));
        for (at, filling) in text.chunks(BLOCK_SIZE).enumerate() {
            let block = BlockId(first + u32::try_from(at).expect("short texts"));
            let parent = chain.key(&maker, text, at);
            if filling.len() == BLOCK_SIZE {
                let key = chain.key(&maker, text, at + 1);
                index.insert_full(block, 0, parent, key, filling, filling.len());
            } else {
                index.insert_tail(block, 0, parent, filling);
            }
        }
    }

    /// How many tokens of a text are found.
    fn found(index: &PrefixIndex, salt: u64, text: &[TokenId]) -> usize {
        let (maker, mut chain) = (maker(), KeyChain::new(CacheScope::salted(salt).shared()));
        let full = (1..=text.len() / BLOCK_SIZE)
            .take_while(|&blocks| index.find(0, chain.key(&maker, text, blocks)).is_some())
            .count();
        let rest = &text[full * BLOCK_SIZE..];
        let parent = chain.key(&maker, text, full);
        full * BLOCK_SIZE + index.longest_child(0, parent, rest).map_or(0, |(_, common)| common)
    }

    #[test]
    fn what_was_entered_is_found_to_the_token() {
        let mut index = PrefixIndex::new(8, BLOCK_SIZE);
        enter(&mut index, 0, 7, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        for (text, expected) in [
            (vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 10),
            (vec![1, 2, 3, 4, 5, 6, 7, 8], 8),
            (vec![1, 2, 3, 4, 5, 6, 99], 6),
            (vec![1, 2, 99], 2),
            (vec![5, 6, 7, 8], 0),
            (vec![], 0),
        ] {
            assert_eq!(found(&index, 7, &text), expected, "{text:?}");
        }
    }

    #[test]
    fn another_salt_finds_nothing() {
        // C:K3
        let mut index = PrefixIndex::new(8, BLOCK_SIZE);
        enter(&mut index, 0, 7, &[1, 2, 3, 4, 5]);
        assert_eq!(found(&index, 8, &[1, 2, 3, 4, 5]), 0);
    }

    #[test]
    fn children_stay_findable_when_their_parent_was_lost_and_comes_again() {
        let mut index = PrefixIndex::new(8, BLOCK_SIZE);
        enter(&mut index, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        index.forget(BlockId(0));
        index.check();
        assert_eq!(found(&index, 0, &[1, 2, 3, 4, 5, 6, 7, 8]), 0);
        enter(&mut index, 4, 0, &[1, 2, 3, 4]);
        assert_eq!(found(&index, 0, &[1, 2, 3, 4, 5, 6, 7, 8]), 8);
    }

    #[test]
    fn the_second_block_with_the_same_tokens_is_not_entered() {
        let mut index = PrefixIndex::new(8, BLOCK_SIZE);
        enter(&mut index, 0, 0, &[1, 2, 3, 4, 5, 6]);
        enter(&mut index, 4, 0, &[1, 2, 3, 4, 5, 6]);
        assert_eq!([0, 1, 4, 5].map(|block| index.contains(BlockId(block))), [true, true, false, false]);
    }

    #[test]
    fn the_search_among_siblings_is_bounded() {
        let mut index = PrefixIndex::new(64, BLOCK_SIZE);
        for child in 0..=u32::try_from(CHILDREN_SEARCHED).expect("small") {
            enter(&mut index, child, 0, &[100 + child, 1, 2]);
        }
        assert_eq!(found(&index, 0, &[101, 1, 2]), 3, "the oldest within the bound");
        assert_eq!(found(&index, 0, &[100, 1, 2]), 0, "the one beyond it");
    }

    proptest! {
        /// The oracle is the plain list of texts: what is found is the longest common prefix with any of them. Few texts
        /// of few tokens, so that prefixes are shared often and no family outgrows the bound of the search.
        #[test]
        fn the_index_finds_the_longest_prefix_of_all_texts(
            texts in prop::collection::vec(prop::collection::vec(0u32..2, 0..14), 0..6),
            lost in prop::collection::vec(0u32..24, 0..4),
            asked in prop::collection::vec(0u32..2, 0..14),
        ) {
            let mut index = PrefixIndex::new(24, BLOCK_SIZE);
            for (first, text) in (0..).step_by(4).zip(&texts) {
                enter(&mut index, first, 0, text);
                index.check();
            }
            let expected = texts
                .iter()
                .map(|text| text.iter().zip(&asked).take_while(|(ours, theirs)| ours == theirs).count())
                .max()
                .unwrap_or(0);
            prop_assert_eq!(found(&index, 0, &asked), expected);
            for block in lost {
                index.forget(BlockId(block));
                index.check();
                prop_assert!(!index.contains(BlockId(block)));
            }
            prop_assert!(found(&index, 0, &asked) <= expected);
        }
    }
}
