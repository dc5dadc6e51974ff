//! Where results go: in either format, as a value, so that the loops before them are compiled once.

use std::ops::Range;

use crate::element::{Bf16, Element, Format};
use crate::simd::{LANES, Simd};
use crate::split::Shared;

/// Numbers of a cache line, as bfloat16.
const LINE: usize = 2 * LANES;

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
