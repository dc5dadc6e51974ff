//! out = silu(gate) · up, with silu(x) = x / (1 + e^-x); gate and up are the halves of one row.

use crate::Cpu;
use crate::element::Element;
use crate::math::exp;
use crate::simd::{Kernel, LANES, Simd};
use crate::split::{Shared, part};

/// `out[t][i] = silu(gate_up[t][i]) · gate_up[t][width + i]`. `out`: `[tokens, width]`; `gate_up`: `[tokens, 2 · width]`.
pub fn silu_mul<E: Element>(cpu: &mut Cpu, out: &mut [E], gate_up: &[E], width: usize) {
    assert_eq!(gate_up.len(), 2 * out.len());
    assert!(width > 0 && out.len().is_multiple_of(width));
    // The unit of work is a vector within a row, so that threads share even a single row's work.
    let vectors = width.div_ceil(LANES);
    let units = out.len() / width * vectors;
    // An element with its exp and division weighs about as much as two that are only read and added.
    let parts = cpu.parts(units, out.len() * 2);
    let isa = cpu.isa;
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        let mut unit = units.start;
        while unit < units.end {
            let (row, first) = (unit / vectors, unit % vectors);
            let last = vectors.min(first + units.end - unit);
            let (from, to) = (first * LANES, width.min(last * LANES));
            let halves = &gate_up[row * 2 * width..(row + 1) * 2 * width];
            // SAFETY: the parts are disjoint ranges of units, and a unit is 16 columns (or the last ones) of one row.
            let out = unsafe { out.piece(row * width + from..row * width + to) };
            isa.run(SiluMul { out, gate: &halves[from..to], up: &halves[width + from..width + to] });
            unit += last - first;
        }
    });
}

struct SiluMul<'a, E> {
    out: &'a mut [E],
    gate: &'a [E],
    up: &'a [E],
}

impl<E: Element> Kernel for SiluMul<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for ((out, gate), up) in self.out.chunks_mut(LANES).zip(self.gate.chunks(LANES)).zip(self.up.chunks(LANES)) {
            let mut lanes = [[E::default(); LANES]; 2];
            lanes[0][..gate.len()].copy_from_slice(gate);
            lanes[1][..up.len()].copy_from_slice(up);
            let (gate, up) = (E::load(simd, &lanes[0]), E::load(simd, &lanes[1]));
            let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
            let sigmoid = simd.div(one, simd.add(one, exp(simd, simd.sub(zero, gate))));
            let mut result = [E::default(); LANES];
            E::store(simd, simd.mul(simd.mul(gate, sigmoid), up), &mut result);
            out.copy_from_slice(&result[..out.len()]);
        }
    }
}
