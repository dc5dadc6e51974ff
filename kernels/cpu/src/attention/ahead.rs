//! Keys or values that are asked for while others are computed with.

use crate::simd::Simd;

/// Tokens that may lie side by side.
const SIDE_BY_SIDE: usize = 16;
/// Blocks of which parts are asked for in turn, each of keys and of values.
const IN_TURN: usize = 8;
/// What is asked for at once.
const PART_BYTES: usize = 128;

/// Keys and values of a piece, and which of them are still to be asked for.
///
/// Not one after the other, but a part of each block's first key and value, then another, then of each block's second ones: of one page
/// after the other memory gives little at a time, whoever asks, and of few in turn less than of many. And little by little: who asks for
/// more than a core may wait for waits himself.
#[derive(Default)]
pub(super) struct Asked {
    places: Vec<usize>,
    /// Parts of a head.
    parts: usize,
    /// A part of one token of each block: how many there are, and the next.
    columns: usize,
    column: usize,
    /// How many are due, and how many more are at each call of [`Self::ask`], in 1/65,536.
    due: usize,
    pace: usize,
}

impl Asked {
    /// These are to be asked for, each of `bytes`; what was left of others is not.
    #[inline(always)]
    pub(super) fn set(&mut self, places: &[usize], bytes: usize) {
        self.places.clear();
        self.places.extend_from_slice(places);
        self.parts = bytes.div_ceil(PART_BYTES);
        self.columns = self.places.len().div_ceil(IN_TURN * SIDE_BY_SIDE) * SIDE_BY_SIDE * self.parts;
        (self.column, self.due, self.pace) = (0, 0, 0);
    }

    /// Whether all was asked for, from the key at this place on.
    #[inline(always)]
    pub(super) fn has_asked_from(&self, place: usize) -> bool {
        self.places.first() == Some(&place) && self.column == self.columns
    }

    /// What is left is asked for in so many calls.
    #[inline(always)]
    pub(super) fn spread(&mut self, calls: usize) {
        self.due = self.column << 16;
        self.pace = ((self.columns - self.column) << 16).div_ceil(calls.max(1));
    }

    /// Asks for what is due of what lies in these caches.
    #[inline(always)]
    pub(super) fn ask<S: Simd, H, const N: usize>(&mut self, simd: S, caches: [&[H]; N]) {
        self.due += self.pace;
        let due = (self.due >> 16).min(self.columns);
        while self.column < due {
            let (row, part) = (self.column / self.parts, self.column % self.parts);
            let first = row / SIDE_BY_SIDE * SIDE_BY_SIDE * IN_TURN + row % SIDE_BY_SIDE;
            let of_turn = self.places.get(first..).unwrap_or(&[]).iter().step_by(SIDE_BY_SIDE).take(IN_TURN);
            for &place in of_turn {
                for cache in caches {
                    let part = cache.as_ptr().wrapping_add(place).cast::<u8>().wrapping_add(part * PART_BYTES);
                    simd.prefetch(part);
                    simd.prefetch(part.wrapping_add(PART_BYTES / 2));
                }
            }
            self.column += 1;
        }
    }
}
