//! out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) · gain + bias, alone or after the residual has been added to.
//!
//! Also group by group: neighbouring columns of a token normed by themselves, each with its own part of the gain (queries
//! and keys by head). Gains and biases are float32 whatever the rest is.
//! In two passes over a row, which lies in the first-level cache by then: the variance as mean(x²) - mean(x)² would lose its
//! bits where the mean is large. Each sum is one float32 per lane and quarter, combined in one fixed tree; a thread has whole rows.

use crate::element::Element;
use crate::elementwise::Add;
use crate::norm::{by_rows, padded};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::Shared;
use crate::{Cpu, Isa};

/// What a layer norm is besides its input.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// `[width]`.
    pub gain: &'a [f32],
    /// `[width]`, if there is one.
    pub bias: Option<&'a [f32]>,
    /// Is added to the variance.
    pub eps: f32,
    /// How many neighbouring columns are normed together: a divisor of the width, which is the usual case.
    pub group: usize,
}

impl LayerNorm<'_> {
    fn check(&self) {
        assert!(self.group > 0 && self.gain.len().is_multiple_of(self.group));
        assert!(self.bias.is_none_or(|bias| bias.len() == self.gain.len()));
    }
}

/// `out[t] = norm(x[t]) · gain + bias`. `out`, `x`: `[tokens, width]`.
pub fn layer_norm<E: Element>(cpu: &mut Cpu, out: &mut [E], x: &[E], norm: LayerNorm<'_>) {
    assert_eq!(out.len(), x.len());
    norm.check();
    let isa = cpu.isa;
    let width = norm.gain.len();
    by_rows(cpu, out, width, |rows, out| norm_rows(isa, out, &x[rows.start * width..rows.end * width], norm));
}

/// `residual[t] += x[t]`, rounded to its format; `out[t] = norm(residual[t]) · gain + bias`.
pub fn add_layer_norm<E: Element>(cpu: &mut Cpu, out: &mut [E], residual: &mut [E], x: &[E], norm: LayerNorm<'_>) {
    assert!(out.len() == x.len() && residual.len() == x.len());
    norm.check();
    let isa = cpu.isa;
    let residual = Shared::new(residual);
    let width = norm.gain.len();
    by_rows(cpu, out, width, |rows, out| {
        let range = rows.start * width..rows.end * width;
        // SAFETY: the ranges that `by_rows` hands to threads do not overlap.
        let residual = unsafe { residual.piece(range.clone()) };
        isa.run(Add { residual, x: &x[range] });
        norm_rows(isa, out, residual, norm);
    });
}

fn norm_rows<E: Element>(isa: Isa, out: &mut [E], x: &[E], norm: LayerNorm<'_>) {
    isa.run(Norm { out, x, norm });
}

struct Norm<'a, E> {
    out: &'a mut [E],
    x: &'a [E],
    norm: LayerNorm<'a>,
}

impl<E: Element> Kernel for Norm<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let LayerNorm { gain, bias, eps, group } = self.norm;
        let groups = gain.len() / group;
        let rows = self.out.chunks_exact_mut(group).zip(self.x.chunks_exact(group));
        for (row, (out, x)) in rows.enumerate() {
            let own = row % groups * group..(row % groups + 1) * group;
            let mean = sum(simd, x, 0.0, |value| value) / group as f32;
            let shift = simd.splat(mean);
            let squares = sum(simd, x, mean, |value| {
                let off = simd.sub(value, shift);
                simd.mul(off, off)
            });
            let scale = simd.splat(1.0 / (squares / group as f32 + eps).sqrt());
            let normed = |x: &Lanes<E>, gain: &Lanes<f32>, bias: Option<&Lanes<f32>>| {
                let value = simd.mul(simd.sub(E::load(simd, x), shift), scale);
                match bias {
                    Some(bias) => simd.fma(value, simd.load(gain), simd.load(bias)),
                    None => simd.mul(value, simd.load(gain)),
                }
            };
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            let (xs, x_tail) = x.as_chunks::<LANES>();
            let (gains, gain_tail) = gain[own.clone()].as_chunks::<LANES>();
            let (biases, bias_tail) = bias.map_or(&[][..], |bias| &bias[own]).as_chunks::<LANES>();
            for (at, (out, x)) in outs.iter_mut().zip(xs).enumerate() {
                E::store(simd, normed(x, &gains[at], biases.get(at)), out);
            }
            if !x_tail.is_empty() {
                let bias = bias.map(|_| padded(bias_tail));
                let mut last = [E::default(); LANES];
                E::store(simd, normed(&padded(x_tail), &padded(gain_tail), bias.as_ref()), &mut last);
                out_tail.copy_from_slice(&last[..out_tail.len()]);
            }
        }
    }
}

/// Σ each(x), in four accumulators per lane: one alone would wait for its own latency at each addition. `fill` stands where
/// the last vector has no value: one of which `each` makes 0.
#[inline(always)]
fn sum<S: Simd, E: Element>(simd: S, x: &[E], fill: f32, each: impl Fn(S::V) -> S::V) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (quads, rest) = chunks.as_chunks::<4>();
    let mut sums = [simd.splat(0.0); 4];
    for quad in quads {
        for (sum, chunk) in sums.iter_mut().zip(quad) {
            *sum = simd.add(*sum, each(E::load(simd, chunk)));
        }
    }
    for (sum, chunk) in sums.iter_mut().zip(rest) {
        *sum = simd.add(*sum, each(E::load(simd, chunk)));
    }
    if !tail.is_empty() {
        let mut values = [fill; LANES];
        for (value, x) in values.iter_mut().zip(tail) {
            *value = x.to_f32();
        }
        sums[3] = simd.add(sums[3], each(simd.load(&values)));
    }
    simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}
