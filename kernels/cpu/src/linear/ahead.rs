//! Which weights are asked for while others are used.

use crate::simd::Simd;

/// A cache line.
const LINE: usize = 64;

/// A way to ask.
pub(super) trait Ahead: Copy {
    /// Asks for the share of one step.
    fn ask<S: Simd>(self, simd: S, step: usize);
}

/// None: one linear stream is what the processor foresees best by itself (Zen 4, one core: 28 GB/s at 4 rows; when asked for
/// 4 KiB or 8 KiB ahead, 20 to 27).
#[derive(Clone, Copy)]
pub(super) struct Nothing;

impl Ahead for Nothing {
    #[inline(always)]
    fn ask<S: Simd>(self, _: S, _: usize) {}
}

/// The next piece, spread over the row blocks that use this one, one after the other: else memory would rest while all but
/// the first of them compute.
#[derive(Clone, Copy)]
pub(super) struct NextPiece {
    start: *const u8,
    bytes_per_step: usize,
}

impl NextPiece {
    /// For one of the passes over a piece.
    #[inline(always)]
    pub(super) fn of<T>(piece: &[T], pass: usize, passes: usize) -> Self {
        let bytes_per_step = (size_of::<T>() / passes).next_multiple_of(LINE);
        let done = pass * piece.len() * bytes_per_step;
        let left = size_of_val(piece).saturating_sub(done);
        let start = piece.as_ptr().cast::<u8>().wrapping_add(size_of_val(piece) + done);
        Self { start, bytes_per_step: if left > 0 { bytes_per_step } else { 0 } }
    }
}

impl Ahead for NextPiece {
    #[inline(always)]
    fn ask<S: Simd>(self, simd: S, step: usize) {
        for line in (0..self.bytes_per_step).step_by(LINE) {
            simd.prefetch(self.start.wrapping_add(step * self.bytes_per_step + line));
        }
    }
}
