//! A 64-bit checksum over words of 4 bytes, against torn, stale and damaged frames. Not against forgery.
//!
//! Each pair of words goes through xor, multiplication by an odd number and rotation. All three are one-to-one, in the
//! state and in the words, so a change of one pair always changes the sum. What is long goes in four lanes, whose steps do not
//! wait for each other, and which are absorbed at their end as pairs are: a change in one of them, or before, still shows.

const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio, odd
const SEED: u64 = 0x5065_6C74_6F6E_0001;
/// Words that are one step of all four lanes.
const STEP: usize = 8;

/// The running sum. Regions are absorbed one by one; their lengths stand in the header, which is absorbed too.
#[derive(Clone, Copy)]
pub(crate) struct Checksum(u64);

impl Checksum {
    pub(crate) const fn new() -> Self {
        Self(SEED)
    }

    pub(crate) const fn pair(self, low: u32, high: u32) -> Self {
        Self((self.0 ^ whole(low, high)).wrapping_mul(MULTIPLIER).rotate_left(29))
    }

    /// Absorbs `words`; an odd one at the end counts as followed by zero.
    pub(crate) const fn absorb(mut self, words: &[u32]) -> Self {
        let mut at = 0;
        if words.len() >= STEP {
            let [mut first, mut second, mut third, mut fourth] = [self, Self(1), Self(2), Self(3)];
            while at + STEP <= words.len() {
                first = first.pair(words[at], words[at + 1]);
                second = second.pair(words[at + 2], words[at + 3]);
                third = third.pair(words[at + 4], words[at + 5]);
                fourth = fourth.pair(words[at + 6], words[at + 7]);
                at += STEP;
            }
            self = first.sum(second).sum(third).sum(fourth);
        }
        while at + 1 < words.len() {
            self = self.pair(words[at], words[at + 1]);
            at += 2;
        }
        if at < words.len() { self.pair(words[at], 0) } else { self }
    }

    /// Absorbs another sum.
    const fn sum(self, other: Self) -> Self {
        self.pair(other.0 as u32, (other.0 >> 32) as u32)
    }

    pub(crate) const fn finish(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(MULTIPLIER);
        mixed ^ (mixed >> 29)
    }
}

/// Whether a sum is the one that was signed. A fuzzer cannot sign, so it may say what it likes.
pub(crate) const fn agree(sum: u64, signed: u64) -> bool {
    cfg!(fuzzing) || sum == signed
}

/// Lower and upper half of a 64-bit number, as it stands in a record.
pub(crate) const fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

/// The number of which these are the halves.
pub(crate) const fn whole(low: u32, high: u32) -> u64 {
    (low as u64) | ((high as u64) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_change_of_any_one_word_changes_the_sum(
            words in prop::collection::vec(any::<u32>(), 1..64), at in any::<prop::sample::Index>(), change in 1..=u32::MAX,
        ) {
            let mut damaged = words.clone();
            damaged[at.index(words.len())] ^= change;
            prop_assert_ne!(Checksum::new().absorb(&words).finish(), Checksum::new().absorb(&damaged).finish());
        }

        #[test]
        fn halves_make_the_whole(value in any::<u64>()) {
            let (low, high) = halves(value);
            prop_assert_eq!(whole(low, high), value);
        }
    }
}
