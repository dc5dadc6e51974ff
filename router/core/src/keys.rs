//! What blocks are called: keyed hashes over chains of them.
//!
//! A full block's key is a hash over its parent's key, its tokens and what some of them stand for; a chain begins at a root
//! that the request's salt and adapter make. Equal keys mean equal tokens from the first one on, and clients, who do not know
//! the hash key, cannot make two texts collide.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::{BlockKey, CacheScope, Span, TokenId};

/// Names a chain of full blocks. 128 bits, so that 2^40 blocks collide by accident with a probability of 2^-49.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Key(u128);

impl Key {
    /// A short name for those outside. Keys are made with a secret, so it tells nobody anything else.
    pub(crate) fn name(self) -> u64 {
        u64::try_from(self.0 >> 64).expect("the upper half")
    }

    /// The same chain for a kind of layers. It has the same name.
    pub(crate) fn of_kind(self, kind: usize) -> Self {
        Self(self.0 ^ kind as u128)
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

    /// The key of the empty chain. 17 bytes are hashed or 25, for a child 16 and 4 a token, or with spans at least 49: the two
    /// never meet.
    pub(crate) fn root(&self, scope: Option<&CacheScope>) -> Key {
        let (salt, adapter, own) = scope.map_or((0, 0, 0), |scope| (scope.salt, scope.adapter, scope.own()));
        let mut hasher = self.keyed;
        hasher.write(b"r");
        hasher.write(&salt.to_le_bytes());
        hasher.write(&adapter.to_le_bytes());
        if own > 0 {
            hasher.write(&own.to_le_bytes());
        }
        Key(hasher.finish128().into())
    }

    /// A name for these tokens under any salt. It begins as no root does, and a child begins with a key that nobody knows.
    pub(crate) fn unsalted(&self, tokens: &[TokenId]) -> u64 {
        let mut hasher = self.keyed;
        hasher.write(b"u");
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        hasher.finish128().h1
    }

    /// The key of a block of these tokens behind `parent`, where all of them are what they seem.
    pub(crate) fn child(&self, parent: Key, tokens: &[TokenId]) -> Key {
        self.child_with(parent, tokens, std::iter::empty())
    }

    /// The same where some of them stand for something else. Spans add one byte and 28 each, tokens 4 each: children with
    /// spans never meet those without.
    fn child_with<'a>(&self, parent: Key, tokens: &[TokenId], spans: impl Iterator<Item = (i64, &'a Span)>) -> Key {
        let mut hasher = self.keyed;
        hasher.write(&parent.0.to_le_bytes());
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        for (at, (offset, span)) in spans.enumerate() {
            if at == 0 {
                hasher.write(b"s");
            }
            hasher.write(&offset.to_le_bytes());
            hasher.write(&span.tokens.to_le_bytes());
            hasher.write(&span.digest);
        }
        Key(hasher.finish128().into())
    }
}

/// The keys of one request's full blocks, made when first asked for and kept: each block is hashed once. C:K5.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyChain {
    #[serde(with = "crate::scope::shared")]
    scope: Option<Arc<CacheScope>>,
    keys: Vec<Key>, // the root's, then one per full block
}

impl KeyChain {
    pub(crate) fn new(scope: Option<Arc<CacheScope>>) -> Self {
        Self { scope, keys: Vec::new() }
    }

    /// What its KV depends on besides tokens; none: on nothing.
    pub(crate) fn scope(&self) -> Option<&Arc<CacheScope>> {
        self.scope.as_ref()
    }

    pub(crate) fn salt(&self) -> u64 {
        self.scope.as_ref().map_or(0, |scope| scope.salt)
    }

    /// From now on nothing that is known under the keys so far is its own, nor is what it will have anybody else's.
    pub(crate) fn begin_apart(&mut self, own: u64) {
        let scope = self.scope.take().map_or_else(CacheScope::default, |scope| (*scope).clone());
        *self = Self::new(scope.apart(own).shared());
    }

    /// Whether it is shared with nobody.
    pub(crate) fn is_apart(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.own() > 0)
    }

    /// The key of the chain of the first `blocks` blocks of `tokens`.
    pub(crate) fn key(&mut self, maker: &KeyMaker, tokens: &[TokenId], blocks: usize) -> Key {
        while self.keys.len() <= blocks {
            let key = match self.keys.last() {
                None => maker.root(self.scope.as_deref()),
                Some(&parent) => {
                    let start = (self.keys.len() - 1) * maker.block_size;
                    self.child(maker, parent, start, &tokens[start..][..maker.block_size])
                }
            };
            self.keys.push(key);
        }
        self.keys[blocks]
    }

    /// A name for the tokens behind the first `blocks` blocks, which are fewer than a block: no block has it.
    pub(crate) fn rest(&mut self, maker: &KeyMaker, tokens: &[TokenId], blocks: usize) -> Key {
        let (parent, start) = (self.key(maker, tokens, blocks), blocks * maker.block_size);
        self.child(maker, parent, start, &tokens[start..])
    }

    /// How many of the tokens from `start` on, to `end`, are what they seem before the first that is not.
    pub(crate) fn plain(&self, start: usize, end: usize) -> usize {
        self.scope.as_ref().map_or(end - start, |scope| scope.plain(place(start)..place(end)) as usize)
    }

    fn child(&self, maker: &KeyMaker, parent: Key, start: usize, tokens: &[TokenId]) -> Key {
        let range = place(start)..place(start + tokens.len());
        maker.child_with(parent, tokens, self.scope.iter().flat_map(|scope| scope.within(range.clone())))
    }
}

fn place(token: usize) -> u32 {
    u32::try_from(token).expect("tokens are counted by u32")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpanKind;

    #[test]
    fn another_hash_key_gives_other_keys() {
        let root = |hash_key| KeyMaker::new(hash_key, 4).root(None);
        assert_ne!(root([1, 2]), root([1, 3]));
        assert_ne!(root([1, 2]), root([2, 2]));
    }

    #[test]
    fn what_tokens_stand_for_and_where_is_part_of_the_key() {
        let span = |start, tokens, digest| Span { start, tokens, digest: [digest; 16], kind: SpanKind::Media };
        let key = |spans: Vec<Span>, blocks| {
            let scope = CacheScope::default().with_spans(spans).expect("apart").shared();
            KeyChain::new(scope).key(&KeyMaker::new([1, 2], 4), &[9; 12], blocks)
        };
        let all = [
            key(vec![], 2),
            key(vec![span(5, 2, 1)], 2),
            key(vec![span(5, 2, 3)], 2),
            key(vec![span(4, 2, 1)], 2),
            key(vec![span(5, 1, 1)], 2),
            key(vec![span(3, 2, 1)], 2),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one), "{at}");
        }
        assert_eq!(key(vec![span(5, 2, 1)], 1), key(vec![], 1), "what comes later concerns no block before it");
        assert_ne!(key(vec![span(5, 2, 1)], 3), key(vec![], 3), "and all behind it");
    }
}
