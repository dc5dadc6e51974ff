//! Keys or values that are asked for while others are computed with.

use crate::simd::Simd;

/// Tokens that may lie side by side.
const SIDE_BY_SIDE: usize = 16;
/// What is asked for at once.
const PART_BYTES: usize = 128;

/// Heads of a piece, and which of them are still to be asked for.
///
/// Not one after the other, but a part of each block's first head, then another, then of each block's second one: of one page after
/// the other memory gives little at a time, whoever asks.
#[derive(Default)]
pub(super) struct Asked {
    places: Vec<usize>,
    /// Parts of a head.
    parts: usize,
    /// The next to be asked for: block, then part, then token are what changes first.
    block: usize,
    part: usize,
    token: usize,
}

impl Asked {
    /// These are to be asked for, each of `bytes`; what was left of others is not.
    #[inline(always)]
    pub(super) fn set(&mut self, places: &[usize], bytes: usize) {
        self.places.clear();
        self.places.extend_from_slice(places);
        self.parts = bytes.div_ceil(PART_BYTES);
        (self.block, self.part, self.token) = (0, 0, 0);
    }

    /// In how many parts all of them are asked for.
    pub(super) fn parts(&self) -> usize {
        self.places.len().next_multiple_of(SIDE_BY_SIDE) * self.parts
    }

    /// Asks for some parts of what is in this cache.
    #[inline(always)]
    pub(super) fn ask<S: Simd, H>(&mut self, simd: S, cache: &[H], parts: usize) {
        if self.token == SIDE_BY_SIDE || self.places.is_empty() {
            return;
        }
        for _ in 0..parts {
            if let Some(&place) = self.places.get(self.block * SIDE_BY_SIDE + self.token) {
                let part = cache.as_ptr().wrapping_add(place).cast::<u8>().wrapping_add(self.part * PART_BYTES);
                simd.prefetch(part);
                simd.prefetch(part.wrapping_add(PART_BYTES / 2));
            }
            self.block += 1;
            if self.block * SIDE_BY_SIDE >= self.places.len() {
                self.block = 0;
                self.part += 1;
                if self.part == self.parts {
                    self.part = 0;
                    self.token += 1;
                    if self.token == SIDE_BY_SIDE {
                        return;
                    }
                }
            }
        }
    }
}
