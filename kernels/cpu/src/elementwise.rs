//! What is done to each element by itself, in place: a sum of two tensors, a product with a number, a soft cap.

use crate::Cpu;
use crate::element::Element;
use crate::math::{filled, put, tanh};
use crate::simd::{Kernel, LANES, Simd};
use crate::split::{Shared, part};

/// `residual += x`, rounded to its format.
pub fn add<E: Element>(cpu: &mut Cpu, residual: &mut [E], x: &[E]) {
    assert_eq!(residual.len(), x.len());
    let isa = cpu.isa;
    by_parts(cpu, residual, 1, |range, residual| isa.run(Add { residual, x: &x[range] }));
}

/// `x *= factor`, rounded to its format.
pub fn scale<E: Element>(cpu: &mut Cpu, x: &mut [E], factor: f32) {
    let isa = cpu.isa;
    by_parts(cpu, x, 1, |_, x| isa.run(Scale { x, factor }));
}

/// `x = cap · tanh(x / cap)`.
pub fn soft_cap(cpu: &mut Cpu, x: &mut [f32], cap: f32) {
    let isa = cpu.isa;
    by_parts(cpu, x, 2, |_, x| isa.run(SoftCap { x, cap }));
}

/// Hands each thread a range of elements, and these elements. `weight`: how much work one is, against reading it.
pub(crate) fn by_parts<E: Element>(
    cpu: &mut Cpu,
    elements: &mut [E],
    weight: usize,
    work: impl Fn(std::ops::Range<usize>, &mut [E]) + Sync,
) {
    let count = elements.len();
    let vectors = count.div_ceil(LANES);
    let parts = cpu.parts(vectors, count * weight);
    if parts == 0 {
        return;
    }
    let elements = Shared::new(elements);
    cpu.pool.run(parts, |thread| {
        let vectors = part(vectors, parts, thread);
        let range = vectors.start * LANES..count.min(vectors.end * LANES);
        // SAFETY: parts do not overlap.
        work(range.clone(), unsafe { elements.piece(range) });
    });
}

/// Also what norms do to the residual first.
pub(crate) struct Add<'a, E> {
    pub(crate) residual: &'a mut [E],
    pub(crate) x: &'a [E],
}

impl<E: Element> Kernel for Add<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ((residuals, residual_tail), (xs, x_tail)) =
            (self.residual.as_chunks_mut::<LANES>(), self.x.as_chunks::<LANES>());
        for (residual, x) in residuals.iter_mut().zip(xs) {
            E::store(simd, simd.add(E::load(simd, residual), E::load(simd, x)), residual);
        }
        for (residual, x) in residual_tail.iter_mut().zip(x_tail) {
            *residual = E::from_f32(residual.to_f32() + x.to_f32());
        }
    }
}

struct Scale<'a, E> {
    x: &'a mut [E],
    factor: f32,
}

impl<E: Element> Kernel for Scale<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for x in self.x {
            *x = E::from_f32(x.to_f32() * self.factor);
        }
    }
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (cap, share) = (simd.splat(self.cap), simd.splat(1.0 / self.cap));
        for x in self.x.chunks_mut(LANES) {
            let capped = simd.mul(cap, tanh(simd, simd.mul(filled(simd, x, 0.0), share)));
            put(simd, capped, x);
        }
    }
}
