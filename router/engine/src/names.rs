//! Numbers for texts that clients choose, so that nothing behind the engine's door handles texts.
//!
//! They are made with the key of the prefix cache: blocks on disk are found by the salt's number, too, so it has to outlive the
//! process as they do. Whoever does not know the key can choose no text for a given number.

use std::hash::Hasher as _;

use pelton_kv_store::Folder;
use siphasher::sip::SipHasher24;

use crate::Failure;

/// Makes block keys of tokens, and numbers of texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashKey([u64; 2]);

impl HashKey {
    /// The folder's, so that what is on disk keeps its names; without one, a new one.
    pub(crate) fn of(folder: Option<&Folder>) -> Result<Self, Failure> {
        let mut key = [0; 16];
        match folder {
            Some(folder) => key = folder.hash_key(),
            None => getrandom::fill(&mut key).map_err(|error| Failure::Internal(format!("no randomness: {error}")))?,
        }
        let (low, high) = key.split_at(8);
        Ok(Self([low, high].map(|half| u64::from_le_bytes(half.try_into().expect("split at 8")))))
    }

    /// As the core takes it.
    pub(crate) fn words(self) -> [u64; 2] {
        self.0
    }

    /// The same number for the same text as long as the key is the same; never 0.
    pub(crate) fn number(self, text: &str) -> u64 {
        let [low, high] = self.0.map(|half| !half); // not what tokens are hashed with
        let mut hasher = SipHasher24::new_with_keys(low, high);
        hasher.write(text.as_bytes());
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_folder_and_differ_without_one() {
        let home = tempfile::tempdir().expect("a folder");
        let key = || HashKey::of(Some(&Folder::claim(home.path()).expect("it is free"))).expect("it has one");
        assert_eq!(key().number("mine"), key().number("mine"));
        assert_ne!(key().number("mine"), key().number("yours"));
        let fresh = || HashKey::of(None).expect("randomness");
        assert_ne!(fresh().number("mine"), fresh().number("mine"));
        assert_ne!(fresh().words(), fresh().words());
    }
}
