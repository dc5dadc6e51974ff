//! out = act(gate) · up, where gate and up are the halves of one row:
//!
//! ```text
//!   silu(x)      x / (1 + e^-x)
//!   gelu(x)      x / (1 + e^-2u), u = √(2/π) · (x + 0.044715 x³): the "tanh" form, x/2 · (1 + tanh u), with one division
//!   gelu_erf(x)  x · Φ(x), with the normal distribution's Φ
//! ```

use crate::Cpu;
use crate::element::Element;
use crate::math::{exp, normal_cdf};
use crate::norm::padded;
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// What is done to the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// The tanh form of x · Φ(x).
    Gelu,
    /// x · Φ(x).
    GeluErf,
}

/// `out[t][i] = act(gate_up[t][i]) · gate_up[t][width + i]`. `out`: `[tokens, row]`, of which each row's first `width` are written; `gate_up`:
/// `[tokens, 2 · width]`.
pub fn gate_mul<E: Element>(
    cpu: &mut Cpu,
    out: &mut [E],
    row: usize,
    gate_up: &[E],
    width: usize,
    activation: Activation,
) {
    assert!(width > 0 && row >= width && out.len().is_multiple_of(row));
    assert_eq!(gate_up.len(), out.len() / row * 2 * width);
    // The unit of work is a vector within a row, so that threads share even a single row's work.
    let vectors = width.div_ceil(LANES);
    let units = out.len() / row * vectors;
    // An element with its exp and division weighs about as much as two that are only read and added.
    let parts = cpu.parts(units, out.len() * 2);
    let isa = cpu.isa;
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        let mut unit = units.start;
        while unit < units.end {
            let (token, first) = (unit / vectors, unit % vectors);
            let last = vectors.min(first + units.end - unit);
            let (from, to) = (first * LANES, width.min(last * LANES));
            let halves = &gate_up[token * 2 * width..(token + 1) * 2 * width];
            // SAFETY: the parts are disjoint ranges of units, and a unit is 16 columns (or the last ones) of one row.
            let out = unsafe { out.piece(token * row + from..token * row + to) };
            let (gate, up) = (&halves[from..to], &halves[width + from..width + to]);
            isa.run(GateMul { out, gate, up, activation });
            unit += last - first;
        }
    });
}

struct GateMul<'a, E> {
    out: &'a mut [E],
    gate: &'a [E],
    up: &'a [E],
    activation: Activation,
}

impl<E: Element> Kernel for GateMul<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (outs, out_tail) = self.out.as_chunks_mut::<LANES>();
        let (gates, gate_tail) = self.gate.as_chunks::<LANES>();
        let (ups, up_tail) = self.up.as_chunks::<LANES>();
        for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
            gated::<S, E>(simd, out, gate, up, self.activation);
        }
        if !out_tail.is_empty() {
            let mut last = [E::default(); LANES];
            gated::<S, E>(simd, &mut last, &padded(gate_tail), &padded(up_tail), self.activation);
            out_tail.copy_from_slice(&last[..out_tail.len()]);
        }
    }
}

#[inline(always)]
pub(crate) fn gated<S: Simd, E: Element>(
    simd: S,
    out: &mut Lanes<E>,
    gate: &Lanes<E>,
    up: &Lanes<E>,
    activation: Activation,
) {
    let (gate, up) = (E::load(simd, gate), E::load(simd, up));
    let share = match activation {
        Activation::Silu => sigmoid(simd, simd.sub(simd.splat(0.0), gate)),
        Activation::Gelu => sigmoid(simd, minus_2u(simd, gate)),
        Activation::GeluErf => normal_cdf(simd, gate),
    };
    E::store(simd, simd.mul(simd.mul(gate, share), up), out);
}

/// 1 / (1 + e^power)
#[inline(always)]
fn sigmoid<S: Simd>(simd: S, power: S::V) -> S::V {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, power)))
}

/// -2 √(2/π) · (x + 0.044715 x³)
#[inline(always)]
pub(crate) fn minus_2u<S: Simd>(simd: S, x: S::V) -> S::V {
    const MINUS_2_SQRT_2_PI: f32 = -1.595_769;
    let cubic = simd.fma(simd.mul(x, x), simd.splat(0.044_715), simd.splat(1.0));
    simd.mul(simd.mul(x, cubic), simd.splat(MINUS_2_SQRT_2_PI))
}
