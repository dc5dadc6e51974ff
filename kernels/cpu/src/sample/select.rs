//! top-k, top-p, min-p: which tokens stay, without sorting the vocabulary.
//!
//! A candidate is a *key*: the magnitude of its score (scores are at most 0) above its id, so that smaller keys are better and
//! the lower id wins a tie. Keys differ, so every selection has one answer. Weights are integers, so every sum has one too,
//! whatever the order in which a selection comes across them.

use pelton_frame::Admit;

use super::row::{BLOCK, Scores};
use crate::math::exp_at_most_one;
use crate::simd::{LANES, Lanes, Simd};

/// exp(0) as an integer weight. 2^40 keeps all 24 bits of weights down to 2^-16 and something of those down to 2^-40, while a
/// vocabulary of 2^23 tokens stays below 2^64.
const ONE: f32 = (1_u64 << 40) as f32;
/// Below it, weights are cut to nothing: ln 2^-40 is -27.73.
const WEIGHTLESS: f32 = -27.75;
/// Scores down to which a nucleus may reach.
const STEPS: [f32; 8] = [-1.0, -2.0, -4.0, -6.0, -8.0, -10.0, -12.0, -16.0];

/// Whether this request draws from the whole vocabulary.
pub(super) fn keeps_all(params: &Admit, vocabulary: usize) -> bool {
    top_k(params, vocabulary).is_none() && top_p(params).is_none() && least_score(params).is_none()
}

fn top_k(params: &Admit, vocabulary: usize) -> Option<usize> {
    let k = params.top_k as usize;
    (k > 0 && k < vocabulary).then_some(k)
}

fn top_p(params: &Admit) -> Option<f64> {
    (params.top_p < 1.0).then_some(f64::from(params.top_p))
}

/// p ≥ min_p · (greatest p) is s ≥ ln(min_p), the greatest score being 0.
fn least_score(params: &Admit) -> Option<f32> {
    (params.min_p > 0.0).then(|| f64::from(params.min_p).ln().min(0.0) as f32)
}

/// The keys of the tokens that stay, in no particular order; at least one. Tokens of score -inf never stay.
#[inline(always)]
pub(super) fn candidates<S: Simd>(simd: S, params: &Admit, scores: Scores<'_>, keys: &mut Vec<u64>) {
    let least = least_score(params);
    match (top_k(params, scores.len()), top_p(params)) {
        (None, None) => return collect(simd, scores, least.unwrap_or(f32::MIN), keys),
        (None, Some(share)) => nucleus_of_all(simd, scores, share, keys),
        (Some(k), None) => best(simd, scores, k, keys),
        (Some(k), Some(share)) => {
            best(simd, scores, k, keys);
            let enough = enough(share, weight(simd, keys));
            keep_nucleus(simd, keys, enough);
        }
    }
    if let Some(least) = least {
        keys.retain(|&key| score(key) >= least);
    }
}

/// The token of a key.
#[inline(always)]
pub(super) fn id(key: u64) -> usize {
    key as u32 as usize
}

/// The score of a key.
#[inline(always)]
pub(super) fn score(key: u64) -> f32 {
    -f32::from_bits((key >> 32) as u32)
}

/// The `k` best, in no particular order; fewer if fewer are above -inf.
#[inline(always)]
fn best<S: Simd>(simd: S, scores: Scores<'_>, k: usize, keys: &mut Vec<u64>) {
    best_and_alike(simd, scores, k, keys);
    if k < keys.len() {
        keys.select_nth_unstable(k - 1);
        keys.truncate(k);
    }
}

/// The `k` best and all that have the score of the last of them.
#[inline(always)]
pub(super) fn best_and_alike<S: Simd>(simd: S, scores: Scores<'_>, k: usize, keys: &mut Vec<u64>) {
    if k == 0 {
        return keys.clear();
    }
    collect(simd, scores, scores.reached_by(k).unwrap_or(f32::MIN).max(f32::MIN), keys);
    if k < keys.len() {
        let (_, &mut last, _) = keys.select_nth_unstable(k - 1);
        keys.retain(|&key| score(key) >= score(last));
    }
}

/// The keys of all scores that are not below `least`.
#[inline(always)]
fn collect<S: Simd>(simd: S, scores: Scores<'_>, least: f32, keys: &mut Vec<u64>) {
    keys.clear();
    for block in scores.blocks_from(least) {
        for (chunk, values) in scores.block(simd, block).into_iter().enumerate() {
            if simd.max_lane(values) < least {
                continue;
            }
            let mut lanes = [0.0; LANES];
            simd.store(values, &mut lanes);
            let first = block * BLOCK + chunk * LANES;
            for (lane, score) in lanes.into_iter().enumerate() {
                if score >= least {
                    keys.push(u64::from(score.abs().to_bits()) << 32 | (first + lane) as u64);
                }
            }
        }
    }
}

/// How much weight is `share` of all. The best token always counts, so it is never nothing.
fn enough(share: f64, total: u64) -> u64 {
    ((share * total as f64).ceil() as u64).clamp(1, total)
}

/// The best of the whole vocabulary that make up `share` of its weight.
///
/// A first pass sums up all weight, and roughly that of tokens above some scores, so that only about as many tokens as it takes become keys.
#[inline(always)]
fn nucleus_of_all<S: Simd>(simd: S, scores: Scores<'_>, share: f64, keys: &mut Vec<u64>) {
    let nothing = simd.splat(0.0);
    let mut all = Weight::nothing(simd);
    let mut rough = [nothing; STEPS.len()];
    let mut rough_sum = nothing;
    for block in scores.blocks_from(WEIGHTLESS) {
        for values in scores.block(simd, block) {
            let weights = exp_at_most_one(simd, values);
            all.add(simd, weights);
            rough_sum = simd.add(rough_sum, weights);
            for (sum, &step) in rough.iter_mut().zip(&STEPS) {
                *sum = simd.add(*sum, simd.select_less(values, simd.splat(step), nothing, weights));
            }
        }
    }
    let enough = enough(share, all.total(simd));
    let rough_enough = share as f32 * simd.sum(rough_sum);
    let mut first = 0;
    for sum in rough {
        first += usize::from(simd.sum(sum) < rough_enough);
    }
    for &least in STEPS[first..].iter().chain([&WEIGHTLESS]) {
        collect(simd, scores, least, keys);
        if weight(simd, keys) >= enough {
            break;
        }
    }
    keep_nucleus(simd, keys, enough);
}

/// Keeps the fewest best that weigh `enough` together.
///
/// A selection by weight: half of what is left is looked at each time, so the whole is linear.
#[inline(always)]
fn keep_nucleus<S: Simd>(simd: S, keys: &mut Vec<u64>, enough: u64) {
    let mut missing = enough;
    let (mut kept, mut open) = (0, keys.len());
    while open - kept > 1 {
        let half = (open - kept) / 2;
        keys[kept..open].select_nth_unstable(half);
        let better = weight(simd, &keys[kept..kept + half]);
        if better >= missing {
            open = kept + half;
        } else {
            missing -= better;
            kept += half;
        }
    }
    keys.truncate(open);
}

/// Σ exp(score) of these keys, each cut to a whole multiple of 2^-40.
#[inline(always)]
fn weight<S: Simd>(simd: S, keys: &[u64]) -> u64 {
    let mut sum = Weight::nothing(simd);
    for keys in keys.chunks(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for (lane, &key) in lanes.iter_mut().zip(keys) {
            *lane = score(key);
        }
        sum.add(simd, exp_at_most_one(simd, simd.load(&lanes)));
    }
    sum.total(simd)
}

/// A sum of weights, in halves of 20 bits and what is above them, so that lanes of 32 bits hold some.
struct Weight<S: Simd> {
    upper: S::I,
    lower: S::I,
    /// Vectors that they hold.
    held: u32,
    total: u64,
}

impl<S: Simd> Weight<S> {
    const HALF: f32 = (1_u32 << 20) as f32;
    /// So many values of up to 2^20 are below 2^31.
    const MOST: u32 = 1 << 10;

    #[inline(always)]
    fn nothing(simd: S) -> Self {
        Self { upper: simd.splat_i32(0), lower: simd.splat_i32(0), held: 0, total: 0 }
    }

    #[inline(always)]
    fn add(&mut self, simd: S, exponentials: S::V) {
        let weights = simd.mul(exponentials, simd.splat(ONE));
        let upper = simd.whole(simd.mul(weights, simd.splat(1.0 / Self::HALF)));
        // Exact: what is left of a float when its upper bits are taken away.
        let rest = simd.sub(weights, simd.mul(simd.to_float(upper), simd.splat(Self::HALF)));
        self.upper = simd.add_i32(self.upper, upper);
        self.lower = simd.add_i32(self.lower, simd.whole(rest));
        self.held += 1;
        if self.held == Self::MOST {
            self.carry(simd);
        }
    }

    #[inline(always)]
    fn carry(&mut self, simd: S) {
        for (half, unit) in [(self.upper, 1 << 20), (self.lower, 1)] {
            let mut lanes: Lanes<u32> = [0; LANES];
            simd.store_words(half, &mut lanes);
            self.total += lanes.into_iter().map(u64::from).sum::<u64>() * unit;
        }
        (self.upper, self.lower, self.held) = (simd.splat_i32(0), simd.splat_i32(0), 0);
    }

    #[inline(always)]
    fn total(mut self, simd: S) -> u64 {
        self.carry(simd);
        self.total
    }
}
