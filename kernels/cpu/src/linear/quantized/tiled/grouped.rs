//! Short groups, and codes of 4 bits, in tiles: what is added of a segment takes vectors longer than tiles take to multiply it.
//!
//! 1. Codes are laid out as tiles for all rows of a group of blocks, a piece of a panel at a time.
//! 2. A block and 16 columns at a time walk the piece, with sums in registers, and integers of some segments in memory: segments that come
//!    are multiplied before what came of this one is added, so that the processor does both at once.
//! 3. Codes of a tile lie side by side: spread over a page, some rows would stand where integers are being stored in another page, and a
//!    load waits for that (512 rows: 4.2 to 4.6 ms instead of 3.4 to 3.9).
//!
//! Tried and left: four tiles at once, whose sums or integers pass through memory (as long with groups of 64, longer with shorter ones).

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::super::{Bits, QuantizedWeight};
use super::{Heads, Panels, VECTORS};
use crate::amx::{CodeQuadTiles, Lie, SUM_COLUMNS, TILE_ROWS, TILE_WORDS, Tiles};
use crate::linear::quantized::tile::{FourBits, Word};
use crate::simd::{LANES, Lanes, Part, Simd};

/// Codes of a column in a piece, about: a panel's are 16 KiB then, 32 in groups of 32.
const PIECE: usize = 256;
/// Segments whose integers are in memory at once.
const UNDER_WAY: usize = 4;

/// A step of 16 columns: quads, row after row.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Tile([Lanes<u32>; TILE_WORDS]);

/// Integers of a block of rows and 16 columns.
type Held = [Lanes<u32>; TILE_ROWS];
/// Their sums.
type Sums = [Lanes<f32>; TILE_ROWS];

/// Segments of a piece.
fn segments_of_piece(weight: &QuantizedWeight) -> usize {
    (PIECE / (4 * weight.layout().quads)).max(1)
}

/// The room in which a thread lays out a piece.
pub(super) fn room_bytes(weight: &QuantizedWeight, steps: usize) -> usize {
    VECTORS * segments_of_piece(weight) * steps * size_of::<Tile>()
}

/// Some segments of 16 columns and one block.
#[derive(Clone, Copy)]
struct Place {
    panel: usize,
    vector: usize,
    block: usize,
    first: usize,
    last: usize,
}

impl Panels<'_> {
    /// As `Panels::run`.
    #[inline(always)]
    pub(super) fn run_grouped<S: Simd>(
        &self,
        simd: S,
        tiles: &Tiles,
        room: &mut [u8],
        held: &mut [u32],
        sums: &mut [f32],
    ) {
        let (segments, piece) = (self.weight.layout().segments, segments_of_piece(self.weight));
        let room: &mut [Tile] = bytemuck::cast_slice_mut(room);
        let sums: &mut [[Sums; VECTORS]] = bytemuck::cast_slice_mut(sums);
        let held: &mut [Held; UNDER_WAY] =
            bytemuck::cast_slice_mut(held).first_chunk_mut().expect("as many as rows take");
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = self.blocks.group(self.groups, group);
            let sums = &mut sums[..blocks.len()];
            sums.as_flattened_mut().fill([[0.0; LANES]; TILE_ROWS]);
            for first in (0..segments).step_by(piece) {
                let last = segments.min(first + piece) - 1;
                self.lay_out(simd, panel, first..last + 1, room);
                for (block, sums) in blocks.clone().zip(sums.iter_mut()) {
                    for (vector, sums) in sums.iter_mut().enumerate() {
                        let place = Place { panel, vector, block, first, last };
                        let room = &room[vector * piece * self.steps..];
                        simd.apart(Walk { panels: self, tiles, place, room, held, sums });
                    }
                }
            }
            self.write_blocks(simd, panel, blocks, sums);
        }
    }

    /// Multiplies one segment.
    #[inline(always)]
    fn multiply(&self, tiles: &Tiles, place: Place, segment: usize, room: &[Tile], held: &mut Held) {
        let words = bytemuck::cast_slice(&room[(segment - place.first) * self.steps..]);
        let x = self.x(segment, place.block, 0, self.steps);
        tiles.one_by_one::<CodeQuadTiles>(held, x, Lie::by_steps(self.shape.rows), words, self.steps);
    }

    /// Brings a piece's codes into the room: `[vector][segment][step]`. Of a tile's rows that are not filled nothing is used.
    #[inline(always)]
    fn lay_out<S: Simd>(&self, simd: S, panel: usize, piece: Range<usize>, room: &mut [Tile]) {
        let (layout, steps, first) = (self.weight.layout(), self.steps, piece.start);
        let of_vector = segments_of_piece(self.weight) * steps;
        for segment in piece {
            let (header, words) = self.segment(panel, segment);
            debug_assert_eq!(header.len(), layout.header);
            let (words, _) = bytemuck::cast_slice::<_, Lanes<u32>>(words).as_chunks::<VECTORS>();
            for (at, words) in words[..layout.words].iter().enumerate() {
                for (vector, word) in words.iter().enumerate() {
                    let tiles = &mut room[vector * of_vector + (segment - first) * steps..][..steps];
                    let word = simd.load_words(word);
                    match self.weight.scheme().bits {
                        Bits::Eight => simd.store_words(word, &mut tiles[at / TILE_WORDS].0[at % TILE_WORDS]),
                        Bits::Four => {
                            for quad in 0..2 {
                                let row = 2 * at + quad;
                                let to = &mut tiles[row / TILE_WORDS].0[row % TILE_WORDS];
                                simd.store_words(FourBits::quad(simd, word, quad), to);
                            }
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn write_blocks<S: Simd>(&self, simd: S, panel: usize, blocks: Range<usize>, sums: &[[Sums; VECTORS]]) {
        for (block, sums) in blocks.zip(sums) {
            for (at, row) in self.blocks.block(block).enumerate() {
                let sums = [sums[0][at], sums[1][at], sums[2][at], sums[3][at]];
                for (half, sums) in sums.as_chunks::<{ VECTORS / 2 }>().0.iter().enumerate() {
                    let (sums, width) = (sums.as_flattened(), SUM_COLUMNS / 2);
                    let place = (row, panel * SUM_COLUMNS + half * width);
                    // SAFETY: this panel's columns of these rows belong to this unit of work alone.
                    unsafe { self.results.write(simd, place, width, sums, self.is_far) };
                }
            }
        }
    }
}

/// What some segments add to the sums of a block and 16 columns.
struct Walk<'a, 'p> {
    panels: &'a Panels<'p>,
    tiles: &'a Tiles,
    place: Place,
    room: &'a [Tile],
    held: &'a mut [Held; UNDER_WAY],
    sums: &'a mut Sums,
}

impl<S: Simd> Part<S> for Walk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self, simd: S) {
        let Self { panels, tiles, place, room, held, sums } = self;
        // Loops of a known length, or the sums would pass through the stack.
        let mut totals = [simd.splat(0.0); TILE_ROWS];
        for (total, sums) in totals.iter_mut().zip(sums.iter()) {
            *total = simd.load(sums);
        }
        for segment in place.first..=place.last.min(place.first + UNDER_WAY - 2) {
            panels.multiply(tiles, place, segment, room, &mut held[segment % UNDER_WAY]);
        }
        for segment in place.first..=place.last {
            let next = segment + UNDER_WAY - 1;
            if next <= place.last {
                panels.multiply(tiles, place, next, room, &mut held[next % UNDER_WAY]);
            }
            let (header, _) = panels.segment(place.panel, segment);
            let heads: &Heads = &panels.heads[place.block * panels.weight.layout().segments + segment];
            let scales = simd.load(bytemuck::cast_ref(&header[0][place.vector]));
            let rows = totals.iter_mut().zip(&held[segment % UNDER_WAY]).zip(heads);
            if let Some(zeros) = header.get(1) {
                let zeros = simd.load_words(&zeros[place.vector]);
                for ((total, held), head) in rows {
                    let start = simd.mul_i32(zeros, simd.splat_i32(head.sum as i32));
                    let held = simd.to_float(simd.add_i32(simd.load_words(held), start));
                    *total = simd.fma(held, simd.mul(scales, simd.splat(head.scale)), *total);
                }
            } else {
                for ((total, held), head) in rows {
                    let held = simd.to_float(simd.add_i32(simd.load_words(held), simd.splat_i32(head.sum as i32)));
                    *total = simd.fma(held, simd.mul(scales, simd.splat(head.scale)), *total);
                }
            }
        }
        for (total, sums) in totals.iter().zip(sums) {
            simd.store(*total, sums);
        }
    }
}
