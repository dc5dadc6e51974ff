//! How long answers become, learned from those that have ended, and the most memory that running requests will hold.
//!
//! Never here: which request is admitted, blocks themselves. Integers only, so that recorded inputs give the same plans.

use serde::{Deserialize, Serialize};

use crate::kinds::Kinds;

/// Lengths are told apart by their leading three bits: within an eighth.
const BUCKETS: usize = 8 * 30;
/// Beyond so many answers the old ones count half.
const ANSWERS_MAX: u64 = 1_024;
/// Fewer answers than this say nothing.
const ANSWERS_MIN: u64 = 8;
/// Before anything is known an answer is taken to have at most so many tokens.
const UNKNOWN: u32 = 256;

/// Lengths of answers that have ended. See the top of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AnswerLengths {
    #[serde(with = "crate::snapshot::long")]
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    /// By the bucket that an answer has reached: the one that three in four of those that got so far do not pass.
    #[serde(with = "crate::snapshot::long")]
    ends: Box<[Option<usize>; BUCKETS]>,
}

impl Default for AnswerLengths {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0, ends: Box::new([None; BUCKETS]) }
    }
}

impl AnswerLengths {
    /// An answer ended with so many tokens. O(1), with some 240 buckets.
    pub(crate) fn learn(&mut self, tokens: u32) {
        if self.total >= ANSWERS_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        self.counts[bucket(tokens)] += 1;
        self.total += 1;
        let (mut beyond, mut passed, mut left) = (0, 0, self.total); // passed: answers in from..beyond
        for from in 0..BUCKETS {
            while passed * 4 < left * 3 {
                passed += self.counts[beyond];
                beyond += 1;
            }
            self.ends[from] = (left > 0).then(|| beyond - 1);
            left -= self.counts[from];
            if beyond > from {
                passed -= self.counts[from];
            } else {
                beyond = from + 1;
            }
        }
    }

    /// How many tokens an answer that has `drawn` already will have in the end: three in four of those that got so far
    /// had no more. Never more than `max`.
    pub(crate) fn expect(&self, drawn: u32, max: u32) -> u32 {
        let longer = drawn.saturating_add(1);
        let expected = match self.ends[bucket(drawn)] {
            _ if self.total < ANSWERS_MIN => longer.max(UNKNOWN),
            Some(end) => longer.max(last_in(end)),
            // Longer than all that were seen: what has lasted so long may last a quarter longer.
            None => longer.saturating_add(drawn / 4),
        };
        expected.min(max)
    }
}

fn bucket(tokens: u32) -> usize {
    if tokens < 8 {
        return tokens as usize;
    }
    let octave = tokens.ilog2(); // at least 3
    let eighth = (tokens >> (octave - 3)) & 7;
    ((octave - 2) * 8 + eighth) as usize
}

fn last_in(bucket: usize) -> u32 {
    let bucket = u32::try_from(bucket).expect("few buckets");
    if bucket < 8 {
        return bucket;
    }
    let (octave, eighth) = (bucket / 8 + 2, bucket % 8);
    let first = u64::from(8 + eighth) << (octave - 3);
    u32::try_from(first + (1 << (octave - 3)) - 1).unwrap_or(u32::MAX)
}

/// What a running request holds and will hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// Tokens that it has, or that it will have when what it has is computed.
    pub(crate) tokens: u32,
    /// Tokens that are still to come.
    pub(crate) coming: u32,
    /// Blocks that it holds now.
    pub(crate) held: u32,
    /// Of these, blocks that others hold too: they do not come back with it.
    pub(crate) shared: u32,
}

impl Growth {
    fn blocks_after(&self, tokens: u32, kinds: &Kinds) -> u64 {
        u64::from(kinds.blocks_at(self.tokens + tokens).max(self.held))
    }
}

/// Blocks that it will hold besides those that it holds now, once it has so many tokens more.
pub(crate) fn grown(growth: &Growth, tokens: u32, kinds: &Kinds) -> u64 {
    growth.blocks_after(tokens, kinds) - u64::from(growth.held)
}

/// The most blocks that will be held, if each of `running` draws a token per step and leaves when it has what is coming.
/// `held` blocks are held now. Sorts `running`. The peak is right before one of them leaves.
///
/// O(n^2) for n running: some 30 us for 256.
pub(crate) fn peak(running: &mut [Growth], held: u64, kinds: &Kinds) -> u64 {
    running.sort_unstable_by_key(|growth| std::cmp::Reverse(growth.coming));
    let (mut worst, mut given_back) = (held, 0);
    for first_to_leave in (0..running.len()).rev() {
        let leaver = running[first_to_leave];
        let growth: u64 = running[..=first_to_leave].iter().map(|growth| grown(growth, leaver.coming, kinds)).sum();
        // Blocks of a window that several hold are given back by each: fewer are held than come back.
        worst = worst.max((held + growth).saturating_sub(given_back));
        given_back += u64::from(leaver.held - leaver.shared);
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn every_length_lies_in_its_bucket_and_buckets_follow_each_other() {
        let mut before = 0;
        for tokens in (0..5_000).chain([1 << 20, (1 << 24) + 12_345, u32::MAX]) {
            let bucket = bucket(tokens);
            assert!(bucket < BUCKETS && bucket >= before && bucket <= before.max(bucket));
            assert!(last_in(bucket) >= tokens && (bucket == 0 || last_in(bucket - 1) < tokens), "{tokens}");
            before = bucket;
        }
    }

    #[test]
    fn three_in_four_answers_are_no_longer_than_expected() {
        let mut lengths = AnswerLengths::default();
        assert_eq!([lengths.expect(0, 1_000), lengths.expect(0, 100), lengths.expect(700, 1_000)], [256, 100, 701]);
        (1..=100).for_each(|tokens| lengths.learn(tokens));
        assert!((75..=84).contains(&lengths.expect(0, 1_000)));
        assert!((94..=104).contains(&lengths.expect(80, 1_000)), "{}", lengths.expect(80, 1_000));
        assert_eq!(lengths.expect(0, 40), 40);
        assert_eq!(lengths.expect(400, 1_000), 501, "longer than all that were seen");
    }

    #[test]
    fn what_is_learned_follows_the_answers_of_late() {
        let mut lengths = AnswerLengths::default();
        (0..3_000).for_each(|_| lengths.learn(1_000));
        (0..6_000).for_each(|_| lengths.learn(10));
        assert!(lengths.expect(0, 10_000) <= 11);
    }

    /// Lives through it token by token.
    fn lived(running: &[Growth], held: u64, kinds: &Kinds) -> u64 {
        let longest = running.iter().map(|growth| growth.coming).max().unwrap_or(0);
        let at = |step: u32| {
            running.iter().fold(held, |sum, growth| {
                if growth.coming >= step {
                    sum + growth.blocks_after(step, kinds) - u64::from(growth.held)
                } else {
                    sum - u64::from(growth.held - growth.shared)
                }
            })
        };
        (0..=longest).map(at).max().expect("at least step 0")
    }

    #[test]
    fn the_peak_is_the_one_that_is_lived_through() {
        let mut seed = 7_u64;
        let mut random = |max: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(seed >> 40).expect("24 bits") % max
        };
        for _ in 0..2_000 {
            let block_size = 1 + random(8);
            let windows =
                [Kind::Full, Kind::Window { tokens: 1 + random(20) }, Kind::Window { tokens: 1 + random(70) }];
            let kinds = Kinds::new(&windows[..1 + random(3) as usize], block_size);
            let mut running: Vec<Growth> = (0..random(6))
                .map(|_| {
                    let tokens = 1 + random(60);
                    let held = kinds.blocks_at(tokens);
                    Growth { tokens, coming: random(50), held, shared: random(held + 1) }
                })
                .collect();
            let held: u64 = running.iter().map(|growth| u64::from(growth.held)).sum();
            let expected = lived(&running, held, &kinds);
            assert_eq!(
                peak(&mut running, held, &kinds),
                expected,
                "{running:?} in blocks of {block_size}, {windows:?}"
            );
            let at_once = held + running.iter().map(|growth| grown(growth, growth.coming, &kinds)).sum::<u64>();
            assert!(at_once >= expected, "all at full length at once are never fewer");
        }
    }

    #[test]
    fn blocks_of_a_window_that_two_hold_come_back_once_and_the_peak_is_told_all_the_same() {
        let kinds = Kinds::new(&[Kind::Window { tokens: 8 }], 1);
        let mut running = [Growth { tokens: 8, coming: 0, held: 8, shared: 0 }; 2];
        assert_eq!(peak(&mut running, 9, &kinds), 9);
    }
}
