//! Where results go: in either format, as a value, so that the loops before them are compiled once.

use std::ops::Range;

use crate::element::{Bf16, Element, Format};
use crate::gate::{Activation, gated};
use crate::simd::{LANES, Simd};
use crate::split::Shared;

/// Numbers of a cache line, as bfloat16.
pub(super) const LINE: usize = 2 * LANES;

/// Rows of results.
pub(super) enum Out<'a> {
    Float32(Shared<'a, f32>),
    BFloat16(Shared<'a, Bf16>),
}

impl<'a> Out<'a> {
    pub(super) fn of<O: Element>(out: &'a mut [O]) -> Self {
        match O::FORMAT {
            Format::Float32 => Self::Float32(Shared::new(bytemuck::cast_slice_mut(out))),
            Format::BFloat16 => Self::BFloat16(Shared::new(bytemuck::cast_slice_mut(out))),
        }
    }

    /// These rows of it, each `columns` long.
    pub(super) fn rows(&mut self, rows: Range<usize>, columns: usize) -> Out<'_> {
        let range = rows.start * columns..rows.end * columns;
        match self {
            // SAFETY: `self` is borrowed as a whole for as long as this piece lives.
            Self::Float32(out) => Out::Float32(Shared::new(unsafe { out.piece(range) })),
            // SAFETY: as above.
            Self::BFloat16(out) => Out::BFloat16(Shared::new(unsafe { out.piece(range) })),
        }
    }

    /// Writes `sums` from `at` on, with the bias added, rounded once. `is_far`: past the caches, where that can be; the thread
    /// drains what it wrote so ([`Simd::drain`]) before others look.
    ///
    /// # Safety
    /// No other thread writes there.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd, E: Element>(
        &self,
        simd: S,
        at: usize,
        sums: &[f32],
        bias: Option<&[E]>,
        is_far: bool,
    ) {
        let range = at..at + sums.len();
        match self {
            // SAFETY: by the caller's promise.
            Self::BFloat16(out) if is_far && sums.len() == LINE => unsafe {
                let mut line = [Bf16::default(); LINE];
                rounded(simd, &mut line, sums, bias);
                simd.stream(&line, out.piece(range).first_chunk_mut().expect("as many as there are sums"));
            },
            // SAFETY: by the caller's promise.
            Self::Float32(out) => rounded(simd, unsafe { out.piece(range) }, sums, bias),
            // SAFETY: as above.
            Self::BFloat16(out) => rounded(simd, unsafe { out.piece(range) }, sums, bias),
        }
    }
}

/// What becomes of the sums of gates and of what they are gates of, a line of each at a time.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only tiles are gated"))]
pub(super) struct Gate {
    pub(super) activation: Activation,
    /// From a row of results to the next.
    pub(super) row: usize,
}

impl Out<'_> {
    /// Writes a line from `at` on of what `gate_mul` makes of both once they are rounded. Otherwise as `write`.
    ///
    /// # Safety
    /// No other thread writes there.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only tiles are gated"))]
    pub(super) unsafe fn write_gated<S: Simd>(
        &self,
        simd: S,
        at: usize,
        [gate, up]: [(&[f32], Option<&[Bf16]>); 2],
        activation: Activation,
        is_far: bool,
    ) {
        let Self::BFloat16(out) = self else { unreachable!("what is gated is of the program's format") };
        let (mut gates, mut ups, mut line) =
            ([Bf16::default(); LINE], [Bf16::default(); LINE], [Bf16::default(); LINE]);
        rounded(simd, &mut gates, gate.0, gate.1);
        rounded(simd, &mut ups, up.0, up.1);
        let vectors = gates.as_chunks().0.iter().zip(ups.as_chunks().0);
        for (out, (gate, up)) in line.as_chunks_mut().0.iter_mut().zip(vectors) {
            gated(simd, out, gate, up, activation);
        }
        // SAFETY: by the caller's promise.
        let out = unsafe { out.piece(at..at + LINE) }.first_chunk_mut().expect("a line");
        if is_far { simd.stream(&line, out) } else { *out = line }
    }
}

#[inline(always)]
fn rounded<S: Simd, E: Element, O: Element>(simd: S, out: &mut [O], sums: &[f32], bias: Option<&[E]>) {
    let (out_vectors, out_rest) = out.as_chunks_mut::<LANES>();
    let (sum_vectors, sum_rest) = sums.as_chunks::<LANES>();
    match bias {
        // Loops: a closure might be compiled without the class's instructions.
        None => {
            for (out, sums) in out_vectors.iter_mut().zip(sum_vectors) {
                O::store(simd, simd.load(sums), out);
            }
            for (out, &sum) in out_rest.iter_mut().zip(sum_rest) {
                *out = O::from_f32(sum);
            }
        }
        Some(bias) => {
            let (bias_vectors, bias_rest) = bias.as_chunks::<LANES>();
            for ((out, sums), bias) in out_vectors.iter_mut().zip(sum_vectors).zip(bias_vectors) {
                O::store(simd, simd.add(simd.load(sums), E::load(simd, bias)), out);
            }
            for ((out, &sum), bias) in out_rest.iter_mut().zip(sum_rest).zip(bias_rest) {
                *out = O::from_f32(sum + bias.to_f32());
            }
        }
    }
}
