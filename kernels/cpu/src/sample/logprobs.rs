//! Log-probabilities of the raw model: logit - ln Σ exp(logits), before anything that a request changes.

use super::select::{best, id, score};
use super::{scale, survey};
use crate::math::{exp, filled};
use crate::simd::{LANES, Simd};

/// Float32 sums are carried over into float64 after so many tokens: 16 lanes then hold 256 addends each.
const SPAN: usize = 256 * LANES;

/// Fills `likeliest` (ids, log-probabilities) best first, and returns the log-probability of `token`.
#[inline(always)]
pub(super) fn report<S: Simd>(
    simd: S,
    logits: &[f32],
    token: usize,
    likeliest: (&mut [i32], &mut [f32]),
    scores: &mut [f32],
    keys: &mut Vec<u64>,
) -> f32 {
    let logprob = of_scores(simd, logits, scores);
    let (ids, logprobs) = likeliest;
    best(simd, scores, ids.len(), keys);
    keys.sort_unstable();
    for ((to_id, to_logprob), &key) in ids.iter_mut().zip(logprobs).zip(&*keys) {
        *to_id = id(key) as i32;
        *to_logprob = logprob(score(key));
    }
    logprob(scores[token])
}

/// Fills in the log-probabilities of `told` (ids, log-probabilities), and returns that of `token`.
#[inline(always)]
pub(super) fn tell<S: Simd>(
    simd: S,
    logits: &[f32],
    token: usize,
    told: (&[i32], &mut [f32]),
    scores: &mut [f32],
) -> f32 {
    let logprob = of_scores(simd, logits, scores);
    let (ids, logprobs) = told;
    for (to_logprob, &id) in logprobs.iter_mut().zip(ids) {
        *to_logprob = logprob(scores[id as usize]);
    }
    logprob(scores[token])
}

/// Makes `scores` logits less the greatest, and returns what makes a log-probability of one.
#[inline(always)]
fn of_scores<S: Simd>(simd: S, logits: &[f32], scores: &mut [f32]) -> impl Fn(f32) -> f32 + use<S> {
    let (greatest, _) = survey(simd, logits);
    scores.copy_from_slice(logits);
    scale(simd, scores, greatest, 1.0);
    let log_sum = sum_of_exponentials(simd, scores).ln();
    move |score: f32| (f64::from(score) - log_sum) as f32
}

#[inline(always)]
fn sum_of_exponentials<S: Simd>(simd: S, scores: &[f32]) -> f64 {
    let mut total = 0.0;
    for span in scores.chunks(SPAN) {
        let mut sum = simd.splat(0.0);
        for chunk in span.chunks(LANES) {
            sum = simd.add(sum, exp(simd, filled(simd, chunk, f32::NEG_INFINITY)));
        }
        total += f64::from(simd.sum(sum));
    }
    total
}
