//! Gumbel-max: the token with the greatest score + noise is a draw from softmax(scores).
//!
//! Noise g = -ln(-ln u) for uniform u is a function of (seed, position, token) alone, so whoever draws for this token here,
//! draws this. 64 tokens share 16 counters: token t has word `t / 16 % 4` of Philox at the counter
//! (t / 64 · 16 + t % 16, position, 0, 0) and the key seed, so that 16 neighbours are one word of 16 neighbouring counters.

use pelton_frame::Admit;

use super::row::{BLOCK, Scores};
use super::select::{id, score};
use crate::math::{exp, ln, ln_one_minus};
use crate::philox::philox_lanes;
use crate::simd::{LANES, Lanes, Simd};

// A block's noise is made at once: 16 counters of 4 words.
const _: () = assert!(BLOCK == 4 * LANES);
/// No noise exceeds it: -ln(-ln(1 - 2^-32)) is 22.18.
const GREATEST_NOISE: f32 = 22.25;

/// The noise of one draw.
pub(super) struct Noise {
    seed: [u32; 2],
    position: u32,
}

/// The greatest so far; of equals, the lowest id.
struct Best {
    value: f32,
    token: usize,
}

impl Best {
    #[inline(always)]
    fn offer(&mut self, value: f32, token: usize) {
        if value > self.value || (value == self.value && token < self.token) {
            *self = Self { value, token };
        }
    }
}

impl Noise {
    pub(super) fn new(params: &Admit, position: i32) -> Self {
        Self { seed: [params.seed_lo, params.seed_hi], position: position as u32 }
    }

    /// The best token of the whole vocabulary. `likeliest` has score 0.
    #[inline(always)]
    pub(super) fn best_of_all<S: Simd>(&self, simd: S, scores: Scores<'_>, likeliest: usize) -> usize {
        // The likeliest goes first: what it reaches, most other blocks cannot reach with any noise, and are passed over.
        let first = likeliest / BLOCK;
        let mut best = Best { value: f32::NEG_INFINITY, token: likeliest };
        self.offer_block(simd, scores, first, &mut best);
        for block in scores.blocks_from(best.value - GREATEST_NOISE) {
            // It may be out of reach by now.
            if block != first && scores.greatest_of(block) + GREATEST_NOISE >= best.value {
                self.offer_block(simd, scores, block, &mut best);
            }
        }
        best.token
    }

    /// The best token of some candidates.
    #[inline(always)]
    pub(super) fn best_of<S: Simd>(&self, simd: S, keys: &[u64]) -> usize {
        let mut best = Best { value: f32::NEG_INFINITY, token: id(keys[0]) };
        for keys in keys.chunks(LANES) {
            let mut counters = [0; LANES];
            for (counter, &key) in counters.iter_mut().zip(keys) {
                *counter = (id(key) / BLOCK * LANES + id(key) % LANES) as u32;
            }
            let words = self.words(counters);
            let mut chosen = [0; LANES];
            for (lane, &key) in keys.iter().enumerate() {
                chosen[lane] = words[id(key) / LANES % 4][lane];
            }
            let mut noise = [0.0; LANES];
            simd.store(gumbel(simd, uniform_of(simd, &chosen)), &mut noise);
            for (&key, noise) in keys.iter().zip(noise) {
                best.offer(score(key) + noise, id(key));
            }
        }
        best.token
    }

    #[inline(always)]
    fn offer_block<S: Simd>(&self, simd: S, scores: Scores<'_>, block: usize, best: &mut Best) {
        let mut counters = [0; LANES];
        for (lane, counter) in counters.iter_mut().enumerate() {
            *counter = (block * LANES + lane) as u32;
        }
        let words = self.words(counters);
        let mut uniform = [simd.splat(0.0); BLOCK / LANES];
        let mut least_negated = simd.splat(-1.0); // of all v
        for (uniform, words) in uniform.iter_mut().zip(&words) {
            *uniform = uniform_of(simd, words);
            least_negated = simd.max(least_negated, simd.sub(simd.splat(0.0), *uniform));
        }
        // Noise exceeds g where v < 1 - exp(-exp(-g)), which is less than exp(-g); a thousandth is more than all rounding.
        let reach = simd.splat((scores.greatest_of(block) - best.value).min(1.0));
        if -simd.max_lane(least_negated) > 1.001 * simd.max_lane(exp(simd, reach)) {
            return;
        }
        for (at, (scores, uniform)) in scores.block(simd, block).into_iter().zip(uniform).enumerate() {
            let values = simd.add(scores, gumbel(simd, uniform));
            if simd.max_lane(values) >= best.value {
                let mut lanes = [0.0; LANES];
                simd.store(values, &mut lanes);
                for (lane, value) in lanes.into_iter().enumerate() {
                    best.offer(value, block * BLOCK + at * LANES + lane);
                }
            }
        }
    }

    #[inline(always)]
    fn words(&self, counters: Lanes<u32>) -> [Lanes<u32>; 4] {
        philox_lanes([counters, [self.position; LANES], [0; LANES], [0; LANES]], self.seed)
    }
}

/// v: the upper 31 bits of each word as a number in (0, 1).
#[inline(always)]
fn uniform_of<S: Simd>(simd: S, words: &Lanes<u32>) -> S::V {
    let mut halves = [0; LANES];
    for (half, &word) in halves.iter_mut().zip(words) {
        *half = (word >> 1) as i32;
    }
    let v = simd.mul(simd.add(simd.load_i32(&halves), simd.splat(0.5)), simd.splat(1.0 / 2_147_483_648.0));
    simd.min(v, simd.splat(1.0 - f32::EPSILON / 2.0)) // a v that was rounded up to 1 has no logarithm
}

/// -ln(-ln(1 - v)).
///
/// Written with 1 - v for u, because great noise comes from u near 1, where v has more bits than u.
#[inline(always)]
fn gumbel<S: Simd>(simd: S, v: S::V) -> S::V {
    let zero = simd.splat(0.0);
    let exponential = simd.sub(zero, ln_one_minus(simd, v));
    simd.sub(zero, ln(simd, exponential))
}
