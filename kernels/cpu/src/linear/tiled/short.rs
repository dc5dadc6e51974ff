//! Short weights in tiles: half a panel after the other, a piece along K at a time, and the next piece is lengthened beside the products.

use std::ops::Range;

use super::{Cut, HALF, PIECE, Panels, SUM_COLUMNS};
use crate::amx::{Beside, STEP_UNITS, Sums, Tiles};
use crate::linear::short::{Piece, Rooms, Short, Turn, Unit};
use crate::simd::Simd;
use crate::split::part;

/// Steps of a piece that few pairs of blocks use: two rooms of 8 KiB stay in the first-level cache beside activations (two rooms of 16 KiB
/// were 0.7 of that rate).
const SHORT_PIECE: usize = 4;
/// So many pairs are few. More would rather load and store their sums less often.
const FEW_PAIRS: usize = 2;

/// Steps of a piece that so many blocks use.
pub(super) fn piece_of(blocks: usize) -> usize {
    if blocks / 2 <= FEW_PAIRS { SHORT_PIECE } else { PIECE }
}

/// Units of the two rooms.
pub(super) fn room_units(cut: Cut) -> usize {
    2 * cut.piece * STEP_UNITS
}

/// Where a walk is.
#[derive(Clone, Copy)]
struct At {
    /// Of blocks of rows.
    group: usize,
    /// Behind the last panel of the group that belongs to this thread, and the panels whose sums wait together: from, to.
    own_end: usize,
    together: (usize, usize),
    panel: usize,
    side: usize,
    /// Steps from, to; and how many pieces they are cut into.
    stretch: (usize, usize),
    pieces: usize,
    piece: usize,
    /// Of the piece: from, to.
    steps: (usize, usize),
}

impl At {
    /// The unit of weights at which the piece begins and ends.
    #[inline(always)]
    fn units(&self) -> Piece {
        let (from, to) = self.steps;
        Piece { panel: 2 * self.panel + self.side, from: from * STEP_UNITS, to: to * STEP_UNITS }
    }
}

/// The order in which pieces are used.
struct Walk {
    cut: Cut,
    panels: usize,
    /// As in [`Panels`].
    units: Range<usize>,
}

impl Walk {
    /// The first of the units from `unit` on.
    fn begin(&self, unit: usize) -> Option<At> {
        let group = unit / self.panels;
        let first = group * self.panels;
        let is_there = unit < self.units.end;
        is_there.then(|| self.begin_together(group, self.panels.min(self.units.end - first), unit - first))
    }

    fn begin_together(&self, group: usize, own_end: usize, panel: usize) -> At {
        let together = (panel, own_end.min(panel + self.cut.together));
        let none = (0, 0);
        let at = At { group, own_end, together, panel, side: 0, stretch: none, pieces: 0, piece: 0, steps: none };
        self.begin_stretch(at, 0)
    }

    fn begin_stretch(&self, at: At, from: usize) -> At {
        let stretch = (from, self.cut.steps.min(from + self.cut.stretch));
        let pieces = (stretch.1 - from).div_ceil(self.cut.piece);
        self.begin_side(At { panel: at.together.0, stretch, pieces, ..at }, 0)
    }

    fn begin_side(&self, at: At, side: usize) -> At {
        let steps = part(at.stretch.1 - at.stretch.0, at.pieces, 0);
        At { side, piece: 0, steps: (at.stretch.0, at.stretch.0 + steps.end), ..at }
    }

    /// Whether the sums of both halves have all their steps behind this piece.
    #[inline(always)]
    fn is_complete(&self, at: &At) -> bool {
        at.side == 1 && at.steps.1 == self.cut.steps
    }

    #[inline(always)]
    fn after(&self, at: &At) -> Option<At> {
        if at.piece + 1 < at.pieces {
            let steps = part(at.stretch.1 - at.stretch.0, at.pieces, at.piece + 1);
            return Some(At { piece: at.piece + 1, steps: (at.steps.1, at.stretch.0 + steps.end), ..*at });
        }
        self.after_side(at)
    }

    #[cold]
    fn after_side(&self, at: &At) -> Option<At> {
        if at.side == 0 {
            Some(self.begin_side(*at, 1))
        } else if at.panel + 1 < at.together.1 {
            Some(self.begin_side(At { panel: at.panel + 1, ..*at }, 0))
        } else if at.stretch.1 < self.cut.steps {
            Some(self.begin_stretch(*at, at.stretch.1))
        } else if at.together.1 < at.own_end {
            Some(self.begin_together(at.group, at.own_end, at.together.1))
        } else {
            self.begin((at.group + 1) * self.panels)
        }
    }
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
            rooms.enter(simd, at.units(), next.as_ref().map(At::units));
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
    fn piece(&self, tiles: &Tiles, rooms: &mut Rooms<'_>, blocks: Range<usize>, at: &At, sums: &mut [f32]) -> usize {
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
    use super::super::Blocks;
    use super::*;

    #[test]
    fn a_walk_comes_to_each_step_of_each_half_once_and_writes_what_is_whole() {
        for (rows, steps, panels, parts) in
            [(1, 9, 3, 2), (16, 96, 5, 2), (20, 7, 1, 3), (500, 65, 9, 3), (512, 500, 40, 2), (300, 1, 2, 5)]
        {
            let cut = Cut::new(rows, steps, panels, parts, true);
            let all = panels * cut.groups;
            let mut seen = vec![0; all * 2 * steps];
            let mut written = vec![0; all];
            for number in 0..parts {
                let walk = Walk { cut, panels, units: part(all, parts, number) };
                let mut here = walk.begin(walk.units.start);
                while let Some(at) = here {
                    let unit = at.group * panels + at.panel;
                    assert!(walk.units.contains(&unit) && (at.together.0..at.together.1).contains(&at.panel));
                    assert!(at.together.1 - at.together.0 <= cut.together && at.steps.1 - at.steps.0 <= cut.piece);
                    for step in at.steps.0..at.steps.1 {
                        let place = (unit * 2 + at.side) * steps + step;
                        assert!(step == 0 || seen[place - 1] == 1, "a sum takes in what comes first");
                        seen[place] += 1;
                    }
                    if walk.is_complete(&at) {
                        let both = &seen[unit * 2 * steps..(unit + 1) * 2 * steps];
                        assert!(both.iter().all(|&times| times == 1), "a sum is written when it is whole");
                        written[unit] += 1;
                    }
                    here = walk.after(&at);
                }
            }
            assert!(
                seen.iter().chain(&written).all(|&times| times == 1),
                "{rows} rows, {steps} steps, {panels} panels, {parts} parts"
            );
        }
    }

    #[test]
    fn few_blocks_have_short_pieces() {
        let piece = |rows| Cut::new(rows, 100, 9, 1, true).piece;
        assert_eq!([1, 16, 32, 64, 65, 500].map(piece), [4, 4, 4, 4, 8, 8]);
        assert_eq!(Blocks::new(64).count, 4);
    }
}
