//! Which block holds the KV of which tokens: an index over chains of hashes, for full blocks and for tails.
//!
//! A full block's key is a keyed hash over its parent's key and its tokens; a chain begins at a root that the request's
//! salt makes. Equal keys mean equal tokens from the first one on, and clients, who do not know the hash key, cannot
//! make two texts collide. A *tail* is a block that is filled in part: it has no key and is found under its parent only.
//! Never here: who holds a block, when it is given up, requests. The caller inserts only what the worker has computed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use serde::{Deserialize, Serialize};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::{BlockId, BlockKey, TokenId};

/// Names a chain of full blocks. 128 bits, so that 2^40 blocks collide by accident with a probability of 2^-49.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Key(u128);

impl Key {
    /// A short name for those outside. Keys are made with a secret, so it tells nobody anything else.
    pub(crate) fn name(self) -> u64 {
        u64::try_from(self.0 >> 64).expect("the upper half")
    }

    /// All of it, for what is kept outside.
    pub(crate) fn bytes(self) -> BlockKey {
        BlockKey(self.0.to_le_bytes())
    }

    /// The other way round. A claim: whoever reads keys from outside compares them with the tokens'.
    pub(crate) fn claimed(BlockKey(bytes): BlockKey) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// A number below `places`, which is not 0. It tells nothing of the name.
    pub(crate) fn place(self, places: usize) -> usize {
        let low = u64::try_from(self.0 & u128::from(u64::MAX)).expect("masked to 64 bits");
        usize::try_from(low % places as u64).expect("below a usize")
    }
}

/// Makes keys: SipHash-2-4-128 under the process's secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Secret", into = "Secret")]
pub(crate) struct KeyMaker {
    secret: Secret,
    keyed: SipHasher24,
    block_size: usize,
}

/// What a maker of keys is made of.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Secret {
    hash_key: [u64; 2],
    block_size: usize,
}

impl From<Secret> for KeyMaker {
    fn from(secret: Secret) -> Self {
        Self::new(secret.hash_key, secret.block_size)
    }
}

impl From<KeyMaker> for Secret {
    fn from(maker: KeyMaker) -> Self {
        maker.secret
    }
}

impl KeyMaker {
    pub(crate) fn new(hash_key: [u64; 2], block_size: usize) -> Self {
        let secret = Secret { hash_key, block_size };
        Self { secret, keyed: SipHasher24::new_with_keys(hash_key[0], hash_key[1]), block_size }
    }

    /// The key of the empty chain under a salt. 8 bytes are hashed, for a child at least 20: the two never meet.
    pub(crate) fn root(&self, salt: u64) -> Key {
        let mut hasher = self.keyed;
        hasher.write(&salt.to_le_bytes());
        Key(hasher.finish128().into())
    }

    /// A name for these tokens under any salt. 4 bytes and the tokens': it meets no root and no child.
    pub(crate) fn unsalted(&self, tokens: &[TokenId]) -> u64 {
        let mut hasher = self.keyed;
        hasher.write(b"bare");
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        hasher.finish128().h1
    }

    /// The key of a block of these tokens behind `parent`. Of fewer tokens than a block: a name for them that no block has.
    pub(crate) fn child(&self, parent: Key, tokens: &[TokenId]) -> Key {
        let mut hasher = self.keyed;
        hasher.write(&parent.0.to_le_bytes());
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        Key(hasher.finish128().into())
    }
}

/// The keys of one request's full blocks, made when first asked for and kept: each block is hashed once. C:K5.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyChain {
    salt: u64,
    keys: Vec<Key>, // the root's, then one per full block
}

impl KeyChain {
    pub(crate) fn new(salt: u64) -> Self {
        Self { salt, keys: Vec::new() }
    }

    pub(crate) fn salt(&self) -> u64 {
        self.salt
    }

    /// The key of the chain of the first `blocks` blocks of `tokens`.
    pub(crate) fn key(&mut self, maker: &KeyMaker, tokens: &[TokenId], blocks: usize) -> Key {
        while self.keys.len() <= blocks {
            let key = match self.keys.last() {
                None => maker.root(self.salt),
                Some(&parent) => {
                    let filling = &tokens[(self.keys.len() - 1) * maker.block_size..][..maker.block_size];
                    maker.child(parent, filling)
                }
            };
            self.keys.push(key);
        }
        self.keys[blocks]
    }
}

/// Keys are hashes already, and secret ones: their low half is the map's hash.
#[derive(Debug, Default)]
pub(crate) struct LowHalf(u64);

impl Hasher for LowHalf {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key hashes itself by write_u128 alone");
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = u64::try_from(key & u128::from(u64::MAX)).expect("masked to 64 bits");
    }
}

/// A map by keys.
pub(crate) type ByKey<V> = HashMap<Key, V, BuildHasherDefault<LowHalf>>;

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

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Filling {
    key: Option<Key>, // a tail has none
    parent: Key,
    filled: usize,
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

    pub(crate) fn find(&self, key: Key) -> Option<BlockId> {
        self.full.get(&key).copied()
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

    /// The child of `parent` that has most tokens in common with the start of `tokens`, and how many; at least one.
    /// Of several the newest.
    pub(crate) fn longest_child(&self, parent: Key, tokens: &[TokenId]) -> Option<(BlockId, usize)> {
        let mut longest: Option<(BlockId, usize)> = None;
        let newest = self.newest_child.get(&parent).copied();
        for child in std::iter::successors(newest, |&child| self.entry(child).older).take(CHILDREN_SEARCHED) {
            let common = self.filling(child).iter().zip(tokens).take_while(|(ours, theirs)| ours == theirs).count();
            if common > longest.map_or(0, |(_, tokens)| tokens) {
                longest = Some((child, common));
            }
        }
        longest
    }

    /// Enters a full block, and says whether it is findable now: where another block has the key already, that one stays.
    pub(crate) fn insert_full(&mut self, block: BlockId, parent: Key, key: Key, tokens: &[TokenId]) -> bool {
        assert_eq!(tokens.len(), self.block_size, "a full block");
        let Entry::Vacant(vacant) = self.full.entry(key) else { return false };
        vacant.insert(block);
        self.insert(block, parent, Some(key), tokens);
        true
    }

    /// Enters a block that is filled in part, unless a sibling has these tokens already.
    pub(crate) fn insert_tail(&mut self, block: BlockId, parent: Key, tokens: &[TokenId]) {
        assert!((1..self.block_size).contains(&tokens.len()), "a tail");
        if self.longest_child(parent, tokens).is_none_or(|(_, common)| common < tokens.len()) {
            self.insert(block, parent, None, tokens);
        }
    }

    /// The block's contents are about to be lost. Nothing happens if it is not findable. Returns the key of a full one.
    pub(crate) fn forget(&mut self, block: BlockId) -> Option<Key> {
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
        entry.key
    }

    fn insert(&mut self, block: BlockId, parent: Key, key: Option<Key>, tokens: &[TokenId]) {
        assert!(!self.contains(block), "{block:?} is entered once");
        let older = self.newest_child.insert(parent, block);
        if let Some(older) = older {
            self.entry_mut(older).newer = Some(block);
        }
        self.entries[block.index()] = Some(Filling { key, parent, filled: tokens.len(), newer: None, older });
        self.tokens[block.index() * self.block_size..][..tokens.len()].copy_from_slice(tokens);
    }

    fn filling(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.entry(block).filled]
    }

    fn entry(&self, block: BlockId) -> &Filling {
        self.entries[block.index()].as_ref().expect("families hold findable blocks only")
    }

    fn entry_mut(&mut self, block: BlockId) -> &mut Filling {
        self.entries[block.index()].as_mut().expect("families hold findable blocks only")
    }

    /// Asserts that maps, families and entries tell the same story, in O(blocks).
    pub(crate) fn check(&self) {
        let entered = self.entries.iter().flatten();
        assert_eq!(entered.clone().filter(|entry| entry.key.is_some()).count(), self.full.len());
        assert_eq!(entered.filter(|entry| entry.newer.is_none()).count(), self.newest_child.len());
        for at in 0..self.entries.len() {
            let block = BlockId(u32::try_from(at).expect("blocks are counted by u32"));
            let Some(entry) = self.entries[at] else { continue };
            assert_eq!(entry.key.is_some(), entry.filled == self.block_size, "{block:?}: a key exactly when full");
            if let Some(key) = entry.key {
                assert_eq!(self.find(key), Some(block));
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

    const BLOCK_SIZE: usize = 4;

    fn maker() -> KeyMaker {
        KeyMaker::new([1, 2], BLOCK_SIZE)
    }

    /// Enters all of a text into the blocks from `first` on, the tail too.
    fn enter(index: &mut PrefixIndex, first: u32, salt: u64, text: &[TokenId]) {
        let (maker, mut chain) = (maker(), KeyChain::new(salt));
        for (at, filling) in text.chunks(BLOCK_SIZE).enumerate() {
            let block = BlockId(first + u32::try_from(at).expect("short texts"));
            let parent = chain.key(&maker, text, at);
            if filling.len() == BLOCK_SIZE {
                let key = chain.key(&maker, text, at + 1);
                index.insert_full(block, parent, key, filling);
            } else {
                index.insert_tail(block, parent, filling);
            }
        }
    }

    /// How many tokens of a text are found.
    fn found(index: &PrefixIndex, salt: u64, text: &[TokenId]) -> usize {
        let (maker, mut chain) = (maker(), KeyChain::new(salt));
        let full = (1..=text.len() / BLOCK_SIZE)
            .take_while(|&blocks| index.find(chain.key(&maker, text, blocks)).is_some())
            .count();
        let rest = &text[full * BLOCK_SIZE..];
        let parent = chain.key(&maker, text, full);
        full * BLOCK_SIZE + index.longest_child(parent, rest).map_or(0, |(_, common)| common)
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
    fn another_hash_key_gives_other_keys() {
        let root = |hash_key| KeyMaker::new(hash_key, BLOCK_SIZE).root(0);
        assert_ne!(root([1, 2]), root([1, 3]));
        assert_ne!(root([1, 2]), root([2, 2]));
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
