//! out[t] = x[t] / sqrt(mean(x[t]²) + eps) · gain, alone or after the residual has been added to.
//!
//! Gains are float32 whatever the rest is: some models' are 1 + w, which another format would round.
//! The sum of squares is one float32 per lane and quarter, combined in one fixed tree; a thread has whole rows.

use crate::element::Element;
use crate::elementwise::Add;
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};
use crate::{Cpu, Isa};

/// `out[t] = norm(x[t]) · gain`. `out`, `x`: `[tokens, width]`; `gain`: `[width]`.
pub fn rms_norm<E: Element>(cpu: &mut Cpu, out: &mut [E], x: &[E], gain: &[f32], eps: f32) {
    assert_eq!(out.len(), x.len());
    let isa = cpu.isa;
    by_rows(cpu, out, gain.len(), |range, out| norm_rows(isa, out, &x[range], gain, eps));
}

/// `x[t] = norm(x[t]) · gain`, where the caller has one tensor for both.
pub fn rms_norm_in_place<E: Element>(cpu: &mut Cpu, x: &mut [E], gain: &[f32], eps: f32) {
    let isa = cpu.isa;
    by_rows(cpu, x, gain.len(), |_, rows| {
        let mut row = vec![E::default(); gain.len()];
        for target in rows.chunks_exact_mut(gain.len()) {
            row.copy_from_slice(target);
            norm_rows(isa, target, &row, gain, eps);
        }
    });
}

/// `residual[t] += x[t]`, rounded to its format; `out[t] = norm(residual[t]) · gain`.
pub fn add_rms_norm<E: Element>(cpu: &mut Cpu, out: &mut [E], residual: &mut [E], x: &[E], gain: &[f32], eps: f32) {
    assert!(out.len() == x.len() && residual.len() == x.len());
    let isa = cpu.isa;
    let residual = Shared::new(residual);
    by_rows(cpu, out, gain.len(), |range, out| {
        // SAFETY: the ranges that `by_rows` hands to threads do not overlap.
        let residual = unsafe { residual.piece(range.clone()) };
        isa.run(Add { residual, x: &x[range] });
        norm_rows(isa, out, residual, gain, eps);
    });
}

/// Hands each thread some of the rows: their range of elements, and the elements themselves.
pub(crate) fn by_rows<E: Element>(
    cpu: &mut Cpu,
    out: &mut [E],
    width: usize,
    work: impl Fn(std::ops::Range<usize>, &mut [E]) + Sync,
) {
    assert!(width > 0 && out.len().is_multiple_of(width));
    let rows = out.len() / width;
    let parts = cpu.parts(rows, out.len());
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let rows = part(rows, parts, thread);
        let range = rows.start * width..rows.end * width;
        // SAFETY: parts do not overlap.
        work(range.clone(), unsafe { out.piece(range) });
    });
}

fn norm_rows<E: Element>(isa: Isa, out: &mut [E], x: &[E], gain: &[f32], eps: f32) {
    isa.run(Norm { out, x, gain, eps });
}

struct Norm<'a, E> {
    out: &'a mut [E],
    x: &'a [E],
    gain: &'a [f32],
    eps: f32,
}

impl<E: Element> Kernel for Norm<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.gain.len();
        let (gains, gain_tail) = self.gain.as_chunks::<LANES>();
        for (out, x) in self.out.chunks_exact_mut(width).zip(self.x.chunks_exact(width)) {
            let scale = simd.splat(scale_of(simd, x, self.eps));
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            let (xs, x_tail) = x.as_chunks::<LANES>();
            for ((out, x), gain) in outs.iter_mut().zip(xs).zip(gains) {
                let value = simd.mul(simd.mul(E::load(simd, x), scale), simd.load(gain));
                E::store(simd, value, out);
            }
            if !x_tail.is_empty() {
                let (x, gain) = (E::load(simd, &padded(x_tail)), simd.load(&padded(gain_tail)));
                let mut last = [E::default(); LANES];
                E::store(simd, simd.mul(simd.mul(x, scale), gain), &mut last);
                out_tail.copy_from_slice(&last[..out_tail.len()]);
            }
        }
    }
}

/// What a row is multiplied with, but for its gains.
#[inline(always)]
pub(crate) fn scale_of<S: Simd, E: Element>(simd: S, x: &[E], eps: f32) -> f32 {
    1.0 / (sum_of_squares(simd, x) / x.len() as f32 + eps).sqrt()
}

/// Σ x², in four accumulators per lane: one alone would wait for its own latency at each addition.
#[inline(always)]
fn sum_of_squares<S: Simd, E: Element>(simd: S, x: &[E]) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (quads, rest) = chunks.as_chunks::<4>();
    let mut sums = [simd.splat(0.0); 4];
    for quad in quads {
        for (sum, chunk) in sums.iter_mut().zip(quad) {
            let x = E::load(simd, chunk);
            *sum = simd.fma(x, x, *sum);
        }
    }
    for (sum, chunk) in sums.iter_mut().zip(rest) {
        let x = E::load(simd, chunk);
        *sum = simd.fma(x, x, *sum);
    }
    if !tail.is_empty() {
        let x = E::load(simd, &padded(tail));
        sums[3] = simd.fma(x, x, sums[3]);
    }
    simd.sum(simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3])))
}

/// The last, incomplete vector of a row, filled up with zeros.
#[inline(always)]
pub(crate) fn padded<E: Copy + Default>(tail: &[E]) -> Lanes<E> {
    let mut lanes = [E::default(); LANES];
    lanes[..tail.len()].copy_from_slice(tail);
    lanes
}
