//! Numbers for texts that clients choose, so that nothing behind the engine's door handles texts.
//!
//! Blocks on disk are found by the salt's number, too, so its key has to outlive the process as theirs does: both are made of one
//! secret, each by a function that nobody can turn around. So the blocks' key, which recordings hold, tells nothing of who
//! stands behind a number, and whoever knows neither can choose no text for a given number.

use std::hash::Hasher as _;

use pelton_kv_store::Folder;
use siphasher::{sip::SipHasher24, sip128};

use crate::Failure;

/// A secret that numbers of texts, and the key of blocks, are made of.
#[derive(Clone, Copy)]
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

    /// The key that the core makes names of blocks with.
    pub(crate) fn of_blocks(self) -> [u64; 2] {
        [self.derive(b"blocks, low"), self.derive(b"blocks, high")]
    }

    fn of_texts(self) -> [u64; 2] {
        [self.derive(b"texts, low"), self.derive(b"texts, high")]
    }

    fn of_embeds(self) -> [u64; 2] {
        [self.derive(b"embeddings, low"), self.derive(b"embeddings, high")]
    }

    /// The same name for the same numbers as long as the key is the same.
    pub(crate) fn digest(self, values: &[f32]) -> [u8; 16] {
        use sip128::Hasher128 as _;
        let [low, high] = self.of_embeds();
        let mut hasher = sip128::SipHasher24::new_with_keys(low, high);
        hasher.write(bytemuck::cast_slice(values));
        hasher.finish128().as_bytes()
    }

    fn derive(self, purpose: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        hasher.write(purpose);
        hasher.finish()
    }

    /// The same number for the same text as long as the key is the same; never 0.
    pub(crate) fn number(self, text: &str) -> u64 {
        let [low, high] = self.of_texts();
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
        assert_eq!(key().digest(&[1.0, 2.0]), key().digest(&[1.0, 2.0]));
        let fresh = || HashKey::of(None).expect("randomness");
        assert_ne!(fresh().number("mine"), fresh().number("mine"));
        assert_ne!(fresh().of_blocks(), fresh().of_blocks());
        assert_ne!(key().of_blocks(), key().of_texts());
        assert_ne!(key().of_embeds(), key().of_texts());
    }
}
