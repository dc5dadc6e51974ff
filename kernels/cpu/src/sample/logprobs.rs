//! Log-probabilities of the raw model: logit - ln Σ exp(logits), before anything that a request changes.

use super::row::{Row, Scores};
use super::select::{best_and_alike, id, score};
use crate::math::{exp_at_most_one, filled};
use crate::simd::{LANES, Simd};

/// Float32 sums are carried over into float64 after so many tokens: 16 lanes then hold 256 addends each.
const SPAN: usize = 256 * LANES;

/// Fills `likeliest` (ids, log-probabilities) best first, and returns the log-probability of `token`.
#[inline(always)]
pub(super) fn report<S: Simd>(
    simd: S,
    row: Row<'_>,
    token: usize,
    likeliest: (&mut [i32], &mut [f32]),
    keys: &mut Vec<u64>,
) -> f32 {
    let scores = row.scored(1.0);
    let logprob = logprob_of(simd, scores);
    let (ids, logprobs) = likeliest;
    best_and_alike(simd, scores, ids.len(), keys);
    // Logits far below the greatest may have one score where they differ.
    let logit = |key| scores.row.logits[id(key)];
    let order = |&one: &u64, &other: &u64| {
        logit(other).partial_cmp(&logit(one)).expect("the row is finite").then(id(one).cmp(&id(other)))
    };
    if ids.len() < keys.len() {
        keys.select_nth_unstable_by(ids.len(), order);
        keys.truncate(ids.len());
    }
    keys.sort_unstable_by(order);
    for ((to_id, to_logprob), &key) in ids.iter_mut().zip(logprobs).zip(&*keys) {
        *to_id = id(key) as i32;
        *to_logprob = logprob(score(key));
    }
    logprob(scores.of(token))
}

/// Fills in the log-probabilities of `told` (ids, log-probabilities), and returns that of `token`.
#[inline(always)]
pub(super) fn tell<S: Simd>(simd: S, row: Row<'_>, token: usize, told: (&[i32], &mut [f32])) -> f32 {
    let scores = row.scored(1.0);
    let logprob = logprob_of(simd, scores);
    let (ids, logprobs) = told;
    for (to_logprob, &id) in logprobs.iter_mut().zip(ids) {
        *to_logprob = logprob(scores.of(id as usize));
    }
    logprob(scores.of(token))
}

/// What makes a log-probability of a score.
#[inline(always)]
fn logprob_of<S: Simd>(simd: S, scores: Scores<'_>) -> impl Fn(f32) -> f32 + use<S> {
    let greatest = simd.splat(scores.row.greatest);
    let mut total = 0.0;
    for span in scores.row.logits.chunks(SPAN) {
        let mut sum = simd.splat(0.0);
        for chunk in span.chunks(LANES) {
            sum = simd.add(sum, exp_at_most_one(simd, simd.sub(filled(simd, chunk, f32::NEG_INFINITY), greatest)));
        }
        total += f64::from(simd.sum(sum));
    }
    let log_sum = f64::ln(total);
    move |score: f32| (f64::from(score) - log_sum) as f32
}
