//! out[t] = x[t] / sqrt(mean(x[t]²) + eps) · gain, alone or after the residual has been added to.
//!
//! Gains are float32 whatever the rest is: some models' are 1 + w, which another format would round.
//! The sum of squares is one float32 per lane and quarter, combined in one fixed tree; a thread has whole rows.

use crate::Cpu;
use crate::element::Element;
use crate::elementwise::Add;
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// `out[t] = norm(x[t]) · gain`. `out`: `[tokens, row]`, of which each row's first `width` are written; `x`: `[tokens, width]`; `gain`: `[width]`.
pub fn rms_norm<E: Element>(cpu: &mut Cpu, out: &mut [E], row: usize, x: &[E], gain: &[f32], eps: f32) {
    let (isa, width) = (cpu.isa, gain.len());
    assert!(row >= width && out.len() / row == x.len() / width);
    by_rows(cpu, out, row, |rows, out| {
        isa.run(Norm { out, row, x: &x[rows.start * width..rows.end * width], gain, eps });
    });
}

/// `x[t] = norm(x[t]) · gain`, where the caller has one tensor for both.
pub fn rms_norm_in_place<E: Element>(cpu: &mut Cpu, x: &mut [E], gain: &[f32], eps: f32) {
    let isa = cpu.isa;
    by_rows(cpu, x, gain.len(), |_, rows| {
        let mut row = vec![E::default(); gain.len()];
        for target in rows.chunks_exact_mut(gain.len()) {
            row.copy_from_slice(target);
            isa.run(Norm { out: target, row: gain.len(), x: &row, gain, eps });
        }
    });
}

/// `residual[t] += x[t]`, rounded to its format; `out[t] = norm(residual[t]) · gain`.
pub fn add_rms_norm<E: Element>(
    cpu: &mut Cpu,
    out: &mut [E],
    row: usize,
    residual: &mut [E],
    x: &[E],
    gain: &[f32],
    eps: f32,
) {
    let (isa, width) = (cpu.isa, gain.len());
    assert!(row >= width && out.len() / row == x.len() / width && residual.len() == x.len());
    let residual = Shared::new(residual);
    by_rows(cpu, out, row, |rows, out| {
        let range = rows.start * width..rows.end * width;
        // SAFETY: the ranges that `by_rows` hands to threads do not overlap.
        let residual = unsafe { residual.piece(range.clone()) };
        isa.run(Add { residual, x: &x[range] });
        isa.run(Norm { out, row, x: residual, gain, eps });
    });
}

/// Hands each thread some of the rows, `row` elements apart, and their elements.
pub(crate) fn by_rows<E: Element>(
    cpu: &mut Cpu,
    out: &mut [E],
    row: usize,
    work: impl Fn(std::ops::Range<usize>, &mut [E]) + Sync,
) {
    assert!(row > 0 && out.len().is_multiple_of(row));
    let rows = out.len() / row;
    let parts = cpu.parts(rows, out.len());
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let rows = part(rows, parts, thread);
        // SAFETY: parts do not overlap.
        let out = unsafe { out.piece(rows.start * row..rows.end * row) };
        work(rows, out);
    });
}

struct Norm<'a, E> {
    out: &'a mut [E],
    /// From a row of `out` to the next.
    row: usize,
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
        for (out, x) in self.out.chunks_exact_mut(self.row).zip(self.x.chunks_exact(width)) {
            let out = &mut out[..width];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Isa, gate_mul};

    /// `[tokens, row]` of which only the first `width` of each row have been written, as one behind the other.
    fn without_room(rows: &[f32], row: usize, width: usize) -> Vec<f32> {
        rows.chunks_exact(row)
            .flat_map(|row| {
                assert!(row[width..].iter().all(|room| room.is_nan()), "the room behind a row is nobody's");
                row[..width].to_vec()
            })
            .collect()
    }

    #[test]
    fn rows_may_have_room_behind_them() {
        let (tokens, width, row) = (7, 37, 48);
        let numbers = |seed: usize, count: usize| -> Vec<f32> {
            (0..count).map(|at| ((at * 37 + seed) % 101) as f32 / 50.0 - 1.0).collect()
        };
        let (x, gain) = (numbers(1, tokens * 2 * width), numbers(5, width));
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut cpu = Cpu::new(isa, threads);
                cpu.grain = 1;
                let mut both = |work: &dyn Fn(&mut Cpu, &mut [f32], usize)| {
                    let (mut plain, mut spaced) = (vec![f32::NAN; tokens * width], vec![f32::NAN; tokens * row]);
                    work(&mut cpu, &mut plain, width);
                    work(&mut cpu, &mut spaced, row);
                    assert!(plain.iter().all(|number| number.is_finite()));
                    assert_eq!(without_room(&spaced, row, width), plain, "{}", isa.name());
                };
                both(&|cpu, out, row| rms_norm(cpu, out, row, &x[..tokens * width], &gain, 1e-5));
                both(&|cpu, out, row| {
                    let mut residual = x[tokens * width..].to_vec();
                    add_rms_norm(cpu, out, row, &mut residual, &x[..tokens * width], &gain, 1e-5);
                });
                both(&|cpu, out, row| gate_mul(cpu, out, row, &x, width, Activation::Silu));
            }
        }
    }
}
