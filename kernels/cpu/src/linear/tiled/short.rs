//! Short weights in tiles: half a panel after the other, a piece along K at a time, and the next piece is lengthened beside the products.

use std::ops::Range;

use super::walk::Walk;
use super::{HALF, PIECE, Panels, SUM_COLUMNS};
use crate::amx::{Beside, Sums, Tiles};
use crate::linear::short::{Rooms, Short, Turn, Unit};
use crate::simd::Simd;

/// Steps of a piece that few pairs of blocks use: two rooms of 8 KiB stay in the first-level cache beside activations (two rooms of 16 KiB
/// were 0.7 of that rate).
const SHORT_PIECE: usize = 4;
/// So many pairs are few. More would rather load and store their sums less often.
const FEW_PAIRS: usize = 2;

/// Steps of a piece that so many blocks use.
pub(super) fn piece_of(blocks: usize) -> usize {
    if blocks / 2 <= FEW_PAIRS { SHORT_PIECE } else { PIECE }
}

impl Panels<'_> {
    /// As `Panels::run` of weights that lie as they are.
    #[inline(always)]
    pub(super) fn run_short<S: Simd>(
        &self,
        simd: S,
        tiles: &Tiles,
        short: Short<'_>,
        room: &mut [Unit],
        sums: &mut [f32],
    ) {
        let walk = Walk { cut: self.cut, panels: self.weight.panels(), units: self.units.clone() };
        let mut rooms = Rooms::new(short, room);
        let (mut here, size) = (walk.begin(self.units.start), self.cut.sums());
        while let Some(at) = here {
            let next = walk.after(&at);
            let blocks = self.cut.group(at.group);
            let of_panel = &mut sums[(at.panel - at.together.0) * size..][..size];
            rooms.enter(simd, at.units(self.halves), next.as_ref().map(|next| next.units(self.halves)));
            let done = self.piece(tiles, &mut rooms, blocks.clone(), &at, of_panel);
            rooms.leave(simd, done);
            if walk.is_complete(&at) {
                self.write(simd, blocks, at.panel, of_panel);
            }
            here = next;
        }
    }

    /// The products of one piece with all blocks; how many units of the next are lengthened is returned.
    #[inline(always)]
    fn piece(
        &self,
        tiles: &Tiles,
        rooms: &mut Rooms<'_>,
        blocks: Range<usize>,
        at: &super::walk::At,
        sums: &mut [f32],
    ) -> usize {
        let (height, count) = (self.cut.blocks.height(), at.steps.1 - at.steps.0);
        let (first, lie) = (blocks.start, self.x.lie(self.cut));
        let x = |block: usize| self.x.block(self.cut, first + block, at.stretch.0, at.steps.0);
        let short = rooms.short;
        let Turn { weights, next, mut to } = rooms.turn();
        let (lines, first_line) = short.lines(next.panel);
        let first_unit = first_line + next.from;
        let exponents = short.exponents(next.panel);
        let passes = blocks.len().div_ceil(2);
        let mut each = to.len().div_ceil(passes * count);
        let sums: &mut [u32] = bytemuck::cast_slice_mut(sums);
        let are_fresh = at.steps.0 == 0;
        let mut done = 0;
        for pass in 0..passes {
            if each * count > to.len() {
                each = to.len() / count;
            }
            let (here, behind) = to.split_at_mut(each * count);
            let beside = Beside { lines, first: first_unit + done, exponents, to: here, each };
            (to, done) = (behind, done + each * count);
            if self.cut.blocks.count == 1 {
                let sums = Sums { sums: &mut sums[at.side * HALF..], row: SUM_COLUMNS, are_fresh };
                tiles.one_by_two_beside(sums, x(0), lie, weights, beside, count);
            } else {
                let sums = Sums { sums: &mut sums[(2 * pass + at.side) * 2 * height * HALF..], row: HALF, are_fresh };
                tiles.two_by_two_beside(sums, [x(2 * pass), x(2 * pass + 1)], lie, weights, beside, count);
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Blocks, Cut};

    #[test]
    fn few_blocks_have_short_pieces() {
        let piece = |rows| Cut::new(rows, 100, 9, 1, true).piece;
        assert_eq!([1, 16, 32, 64, 65, 500].map(piece), [4, 4, 4, 4, 8, 8]);
        assert_eq!(Blocks::new(64).count, 4);
    }
}
