//! Two hash tables that are filled once and then only read: pairs of tokens, and words.
//!
//! Open addressing, at most half full, so a look-up meets a few slots even if the one who asks has chosen what for:
//! what stands in the table is the vocabulary, which no request changes. The standard library's tables would do, with a
//! fast hasher; these need no allocation per word, and a pair with all that is known of it is in one cache line.

/// What becomes of two tokens side by side: `rank << 32 | id`. The lower rank comes first; one number orders and tells both.
pub(super) type Merge = u64;
/// Two tokens that do not merge; comes after all that do.
pub(super) const NO_MERGE: Merge = u64::MAX;

/// Pairs of tokens that merge.
pub(super) struct Pairs {
    slots: Vec<Pair>,
    shift: u32,
}

#[derive(Clone, Copy)]
struct Pair {
    key: u64, // left << 32 | right
    merge: Merge,
}

impl Pairs {
    /// From pairs by rank; of one that comes twice the last counts.
    pub(super) fn new(pairs: impl ExactSizeIterator<Item = ((u32, u32), Merge)>) -> Self {
        let bits = (pairs.len() * 2).next_power_of_two().trailing_zeros().max(1);
        let mut table = Self { slots: vec![Pair { key: 0, merge: NO_MERGE }; 1 << bits], shift: u64::BITS - bits };
        for ((left, right), merge) in pairs {
            let key = key(left, right);
            let at = table.find(key);
            table.slots[at] = Pair { key, merge };
        }
        table
    }

    /// What becomes of `left` and `right`.
    #[inline]
    pub(super) fn get(&self, left: u32, right: u32) -> Merge {
        self.slots[self.find(key(left, right))].merge
    }

    /// The slot that has the key, or the empty one that it would have.
    #[inline]
    fn find(&self, key: u64) -> usize {
        let last = self.slots.len() - 1;
        let mut at = (key.wrapping_mul(MULTIPLIER) >> self.shift) as usize;
        loop {
            let slot = self.slots[at & last];
            if slot.key == key || slot.merge == NO_MERGE {
                return at & last;
            }
            at += 1;
        }
    }
}

#[inline]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// 2^64 over the golden ratio: neighbours end up far apart, and the upper bits depend on all of the key.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Words that are one token.
pub(super) struct Words {
    slots: Vec<Word>,
    bytes: Vec<u8>, // of all words, one after the other
    longest: usize,
}

#[derive(Clone, Copy, Default)]
struct Word {
    hash: u32,
    start: u32,
    length: u32, // 0: an empty slot
    id: u32,
}

impl Words {
    /// With room for so many.
    pub(super) fn with_capacity(words: usize) -> Self {
        let slots = vec![Word::default(); (words * 2).next_power_of_two().max(2)];
        Self { slots, bytes: Vec::new(), longest: 0 }
    }

    /// Adds a word that is not there. No more than there was room made for.
    pub(super) fn insert(&mut self, word: &[u8], id: u32) {
        assert!(!word.is_empty(), "the empty word has no token");
        let hash = hash(word);
        let last = self.slots.len() - 1;
        let mut at = hash as usize & last;
        while self.slots[at].length != 0 {
            at = (at + 1) & last;
        }
        let start = u32::try_from(self.bytes.len()).expect("a vocabulary is shorter than 4 GiB");
        let length = u32::try_from(word.len()).expect("a vocabulary is shorter than 4 GiB");
        self.slots[at] = Word { hash: upper(hash), start, length, id };
        self.bytes.extend_from_slice(word);
        self.longest = self.longest.max(word.len());
    }

    /// The token that the word is.
    #[inline]
    pub(super) fn get(&self, word: &[u8]) -> Option<u32> {
        if word.len() > self.longest {
            return None;
        }
        let hash = hash(word);
        let last = self.slots.len() - 1;
        let mut at = hash as usize & last;
        loop {
            let slot = self.slots[at];
            if slot.length == 0 {
                return None;
            }
            if slot.hash == upper(hash) && slot.length as usize == word.len() {
                let start = slot.start as usize;
                if self.bytes[start..start + word.len()] == *word {
                    return Some(slot.id);
                }
            }
            at = (at + 1) & last;
        }
    }
}

#[inline]
fn upper(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Any word's number; all bits of it are good. Not against those who choose words of one number: they cannot add any.
#[inline]
pub(super) fn hash(word: &[u8]) -> u64 {
    let (mut rest, mut sum) = (word, word.len() as u64);
    while let Some((chunk, after)) = rest.split_first_chunk::<8>()
        && !after.is_empty()
    {
        sum = fold(sum ^ u64::from_le_bytes(*chunk), MULTIPLIER);
        rest = after;
    }
    // The last one to eight bytes, of longer words the last eight, some of them a second time.
    let tail = match (word.last_chunk::<8>(), word.first_chunk::<4>(), word.last_chunk::<4>()) {
        (Some(last), _, _) => u64::from_le_bytes(*last),
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last))
        }
        _ => rest.iter().fold(0, |tail, &byte| tail << 8 | u64::from(byte)),
    };
    fold(sum ^ tail, 0xD6E8_FEB8_6659_FD93)
}

/// Both halves of a product, one on the other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xA076_1D64_78BD_642F) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn pairs_are_found_and_others_are_not() {
        let pairs: Vec<_> = (0..5_000_u32).map(|n| ((n % 70, n / 70), u64::from(n) << 32 | 7)).collect();
        let twice = pairs.iter().copied().chain([((0, 0), 99)]).collect::<Vec<_>>();
        let table = Pairs::new(twice.into_iter());
        let known: HashMap<_, _> = pairs.into_iter().chain([((0, 0), 99)]).collect();
        for left in 0..100 {
            for right in 0..100 {
                assert_eq!(table.get(left, right), known.get(&(left, right)).copied().unwrap_or(NO_MERGE));
            }
        }
        assert_eq!(Pairs::new(std::iter::empty()).get(0, 0), NO_MERGE);
    }

    #[test]
    fn words_of_any_length_are_found_and_their_neighbours_are_not() {
        let word =
            |length: usize, seed: u8| (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect::<Vec<u8>>();
        let words: Vec<Vec<u8>> = (1..60).flat_map(|length| [1, 2, 3].map(|seed| word(length, seed))).collect();
        let mut table = Words::with_capacity(words.len());
        for (word, id) in words.iter().zip(0..) {
            assert_eq!(table.get(word), None);
            table.insert(word, id);
        }
        for (word, id) in words.iter().zip(0..) {
            assert_eq!(table.get(word), Some(id));
        }
        for length in 1..70 {
            assert_eq!(table.get(&word(length, 9)), None);
        }
    }
}
