//! What becomes of weights that come next while others are used: they are asked for, and short ones are lengthened.

use std::slice::IterMut;

use super::short::{Exponents, Piece, Short, Unit};
use crate::simd::Simd;

/// A cache line.
const LINE: usize = 64;

/// What is to be done beside a tile's products.
pub(super) trait Ahead {
    /// Does the share of one step.
    fn step<S: Simd>(&mut self, simd: S, step: usize);
}

/// Lines that lie further on are asked for.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    start: *const u8,
    bytes_per_step: usize,
}

/// How far on, in one linear stream.
const FURTHER: usize = 4 << 10;

impl Lines {
    /// Those of the next piece, for one of the passes over this one: spread over the row blocks that use it, one after the other, else
    /// memory would rest while all but the first of them compute.
    #[inline(always)]
    pub(super) fn of_next_piece<T>(piece: &[T], pass: usize, passes: usize) -> Self {
        let bytes_per_step = (size_of::<T>() / passes).next_multiple_of(LINE);
        let done = pass * piece.len() * bytes_per_step;
        let left = size_of_val(piece).saturating_sub(done);
        let start = piece.as_ptr().cast::<u8>().wrapping_add(size_of_val(piece) + done);
        Self { start, bytes_per_step: if left > 0 { bytes_per_step } else { 0 } }
    }

    /// Those a fixed way on, for the only pass over a piece; none, if the processor foresees one linear stream best by itself.
    #[inline(always)]
    pub(super) fn further_on<T>(piece: &[T], foresees: bool) -> Self {
        let start = piece.as_ptr().cast::<u8>().wrapping_add(FURTHER);
        Self { start, bytes_per_step: if foresees { 0 } else { size_of::<T>().next_multiple_of(LINE) } }
    }
}

impl Ahead for Lines {
    #[inline(always)]
    fn step<S: Simd>(&mut self, simd: S, step: usize) {
        for line in (0..self.bytes_per_step).step_by(LINE) {
            simd.prefetch(self.start.wrapping_add(step * self.bytes_per_step + line));
        }
    }
}

/// Lengthens the next piece, spread in the same way: where each unit then lies in the second-level cache, one pass alone would
/// wait for that cache.
pub(super) struct Lengthen<'a> {
    short: Short<'a>,
    exponents: &'a Exponents,
    /// The number of the unit that is lengthened next.
    unit: usize,
    to: IterMut<'a, Unit>,
    /// Steps from one unit to the next, and until the next.
    each: usize,
    left: usize,
}

/// Short units are asked for so far ahead of those that are lengthened: between them and the products the processor's own foresight
/// is too short (Zen 5, two cores, 1 to 6 rows: 28 to 32 GB/s without, 40 to 44 with 4 or 8 KiB; 16 KiB are no better).
const FURTHER_UNITS: usize = (8 << 10) / (3 * LINE);

impl<'a> Lengthen<'a> {
    /// The share of one of `passes`, of so many steps each.
    #[inline(always)]
    pub(super) fn of(
        short: Short<'a>,
        piece: Piece,
        to: &'a mut [Unit],
        (pass, passes, steps): (usize, usize, usize),
    ) -> Self {
        let share = steps.div_ceil(passes);
        let first = to.len().min(pass * share);
        let unit = short.first_unit(piece.panel) + piece.from + first;
        let exponents = short.exponents(piece.panel);
        Self { short, exponents, unit, to: to[first..].iter_mut(), each: passes, left: 0 }
    }
}

impl Ahead for Lengthen<'_> {
    #[inline(always)]
    fn step<S: Simd>(&mut self, simd: S, _: usize) {
        if self.left == 0 {
            self.left = self.each;
            if let Some(to) = self.to.next() {
                for line in self.short.addresses(self.unit + FURTHER_UNITS) {
                    simd.prefetch(line);
                }
                simd.lengthen(self.short.unit(self.unit), self.exponents, to);
                self.unit += 1;
            }
        }
        self.left -= 1;
    }
}
