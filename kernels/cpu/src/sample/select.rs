//! top-k, top-p, min-p: which tokens stay, without sorting the vocabulary.
//!
//! A candidate is a *key*: the magnitude of its score (scores are at most 0) above its id, so that smaller keys are better and
//! the lower id wins a tie. Keys differ, so every selection has one answer. Weights are integers, so every sum has one too,
//! whatever the order in which a selection comes across them.

use pelton_frame::Admit;

use crate::math::{exp, filled};
use crate::simd::{LANES, Simd};

/// Tokens that share one entry of the table of maxima in [`best`].
const BLOCK: usize = 64;
/// exp(0) as an integer weight. 2^40 keeps all 24 bits of weights down to 2^-16 and something of those down to 2^-40, while a
/// vocabulary of 2^23 tokens stays below 2^64.
const ONE: f32 = (1_u64 << 40) as f32;

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
pub(super) fn candidates<S: Simd>(simd: S, params: &Admit, scores: &[f32], keys: &mut Vec<u64>) {
    match (top_k(params, scores.len()), top_p(params)) {
        (None, None) => collect(simd, scores, f32::MIN, keys),
        (None, Some(share)) => nucleus_of_all(simd, scores, share, keys),
        (Some(k), None) => best(simd, scores, k, keys),
        (Some(k), Some(share)) => {
            best(simd, scores, k, keys);
            let enough = enough(share, weight(simd, keys));
            keep_nucleus(simd, keys, enough);
        }
    }
    if let Some(least) = least_score(params) {
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
pub(super) fn best<S: Simd>(simd: S, scores: &[f32], k: usize, keys: &mut Vec<u64>) {
    if k == 0 {
        return keys.clear();
    }
    // k blocks have a token as good as the k-th best of the blocks' maxima, so the k best tokens are not worse than that.
    let blocks = scores.len().div_ceil(BLOCK);
    let mut least = f32::MIN;
    if k < blocks {
        let mut maxima: Vec<f32> = Vec::with_capacity(blocks);
        for block in scores.chunks(BLOCK) {
            let mut greatest = simd.splat(f32::NEG_INFINITY);
            for chunk in block.chunks(LANES) {
                greatest = simd.max(greatest, filled(simd, chunk, f32::NEG_INFINITY));
            }
            maxima.push(simd.max_lane(greatest));
        }
        let (_, &mut kth, _) = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        least = least.max(kth);
    }
    collect(simd, scores, least, keys);
    if k < keys.len() {
        keys.select_nth_unstable(k - 1);
        keys.truncate(k);
    }
}

/// The keys of all scores that are not below `least`.
#[inline(always)]
fn collect<S: Simd>(simd: S, scores: &[f32], least: f32, keys: &mut Vec<u64>) {
    keys.clear();
    for (chunk, scores) in scores.chunks(LANES).enumerate() {
        if simd.max_lane(filled(simd, scores, f32::NEG_INFINITY)) < least {
            continue;
        }
        for (lane, &score) in scores.iter().enumerate() {
            if score >= least {
                keys.push(u64::from(score.abs().to_bits()) << 32 | (chunk * LANES + lane) as u64);
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
/// Weights are first summed up by buckets of scores, so that only the tokens of the better buckets become keys.
#[inline(always)]
fn nucleus_of_all<S: Simd>(simd: S, scores: &[f32], share: f64, keys: &mut Vec<u64>) {
    // Weights end at exp(-28): bucket 223 of 1/8 each. The last bucket takes all that is lower, and weighs nothing.
    const PER_UNIT: f32 = 8.0;
    let mut buckets = [0_u64; 256];
    for chunk in scores.chunks(LANES) {
        let scores = filled(simd, chunk, f32::NEG_INFINITY);
        let (mut weights, mut places) = ([0.0; LANES], [0.0; LANES]);
        simd.store(weights_of(simd, scores), &mut weights);
        simd.store(simd.mul(scores, simd.splat(-PER_UNIT)), &mut places);
        for (&weight, &place) in weights.iter().zip(&places) {
            buckets[(place as usize).min(255)] += weight as u64;
        }
    }
    let enough = enough(share, buckets.iter().sum());
    let mut so_far = 0;
    let last = buckets.iter().take_while(|&&weight| {
        let is_missing = so_far < enough;
        so_far += weight;
        is_missing
    });
    let least = -(last.count() as f32) / PER_UNIT; // of the next bucket, but a key too many does no harm
    collect(simd, scores, least, keys);
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
    let mut total = 0;
    for keys in keys.chunks(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for (lane, &key) in lanes.iter_mut().zip(keys) {
            *lane = score(key);
        }
        let weights = weights_of(simd, simd.load(&lanes));
        simd.store(weights, &mut lanes);
        total += lanes.iter().map(|&weight| weight as u64).sum::<u64>();
    }
    total
}

/// exp(score) in multiples of 2^-40, not yet cut to whole numbers.
#[inline(always)]
fn weights_of<S: Simd>(simd: S, scores: S::V) -> S::V {
    simd.mul(exp(simd, scores), simd.splat(ONE))
}
