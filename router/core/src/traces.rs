//! What was in the prefix cache not long ago, to tell those who miss it why.
//!
//! Two tables of fixed size in which a newcomer takes the place of whoever stands there: the older, the likelier forgotten.
//! Nothing depends on them but explanations. Every call is O(1).

use serde::{Deserialize, Serialize};

use crate::keys::Key;

/// As many keys are remembered as the worker has blocks, up to this: 64k × 8 bytes = 512 KiB.
const KEYS_MAX: usize = 1 << 16;
/// First blocks whose salt is remembered: 4,096 × 16 bytes = 64 KiB.
const SALTS: usize = 1 << 12;

/// See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Traces {
    given_up: Vec<u64>,             // names of keys, by their place; 0: none
    salts: Vec<Option<(u64, u64)>>, // the latest one that a first block was stored under, by its unsalted name
}

impl Traces {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { given_up: vec![0; blocks.min(KEYS_MAX)], salts: vec![None; if blocks > 0 { SALTS } else { 0 }] }
    }

    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.given_up.capacity() * size_of::<u64>() + self.salts.capacity() * size_of::<Option<(u64, u64)>>()
    }

    /// A full block cannot be found any more.
    pub(crate) fn gave_up(&mut self, key: Key) {
        let place = key.place(self.given_up.len());
        self.given_up[place] = key.name();
    }

    pub(crate) fn was_given_up(&self, key: Key) -> bool {
        self.given_up[key.place(self.given_up.len())] == key.name()
    }

    /// A first block was stored under a salt.
    pub(crate) fn stored(&mut self, unsalted: u64, salt: u64) {
        self.salts[place(unsalted)] = Some((unsalted, salt));
    }

    /// Whether the last salt that these tokens were stored under was another one.
    pub(crate) fn has_other_salt(&self, unsalted: u64, salt: u64) -> bool {
        self.salts[place(unsalted)].is_some_and(|(name, other)| name == unsalted && other != salt)
    }
}

fn place(unsalted: u64) -> usize {
    usize::try_from(unsalted % SALTS as u64).expect("few")
}
