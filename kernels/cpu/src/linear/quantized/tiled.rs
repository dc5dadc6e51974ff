//! Integers in tiles (AMX): the same exact sums of segments as elsewhere, 64 neighbours along K at a time.
//!
//! 1. Codes of 8 bits are tiles as they lie.
//! 2. Activations are packed as `[row block][segment][step][row]` of 64 bytes, blocks as in the other tiled product; a segment
//!    is filled up with zeros to whole steps. Where a segment is shorter than a step, the tiles are as short as it is.
//! 3. Two blocks at a time: sums of a segment begin in memory with −zero · Σ x, pass through the tiles once, and are added to the
//!    float32 sums by vectors. With short groups that last part takes longer than the products.

use std::ops::Range;

use bytemuck::Zeroable;

use super::activations::{Head, scale_of, widen};
use super::pack::nearest;
use super::tile::Write;
use super::{Activations, Bits, QuantizedWeight, Scheme};
use crate::Cpu;
use crate::amx;
use crate::amx::{Ahead, Amx, CodeQuads, Lie, SUM_COLUMNS, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
use crate::element::Element;
use crate::linear::{GROUP_ROWS, Rows};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// Vectors of 16 columns in a panel.
const VECTORS: usize = SUM_COLUMNS / LANES;
/// Bytes from the first two vectors of a word to the others.
const HALF: usize = 2 * LANES * size_of::<u32>();
/// One row of a block and one step.
type Words = [i8; 4 * TILE_WORDS];

/// Whether tiles take less time than vectors: both give the same bits. Few rows are bound by reading either way.
///
/// Tried and left: codes of 4 bits, unpacked for all rows of a group (groups of 64: 1.3 times as long with 96 rows). With short groups
/// the sums' way through memory takes longer than the products.
pub(super) fn is_faster(scheme: Scheme, rows: usize) -> bool {
    let is_long = scheme.group.is_none() && scheme.bits == Bits::Eight;
    is_long && scheme.activations == Activations::Int8 && rows >= 3
}

/// As `linear_quantized`, for a chunk of rows.
pub(super) fn multiply<E: Element>(cpu: &mut Cpu, amx: Amx, write: &Write<'_>, x: &[E], weight: &QuantizedWeight) {
    let (isa, depth, layout) = (cpu.isa, weight.depth(), weight.layout());
    assert_eq!(layout.width, VECTORS);
    let rows = Rows { rows: x.len() / depth, most: TILE_ROWS };
    let shape = TileShape { rows: rows.block(0).len(), words: layout.quads.min(TILE_WORDS) };
    let steps = layout.quads.div_ceil(TILE_WORDS);
    let groups = rows.blocks().div_ceil(GROUP_ROWS / TILE_ROWS);
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(rows.blocks(), x.len());
    let parts = cpu.parts(units, weight.columns() * depth / 2 * rows.blocks());

    let block_words = layout.segments * steps * shape.rows;
    let words_len = rows.blocks() * block_words * size_of::<Words>();
    let heads_len = rows.rows * layout.segments * size_of::<Head>();
    let (words, heads) = cpu.scratch.scratch::<u8>(words_len + heads_len).split_at_mut(words_len);
    let words: &mut [Words] = bytemuck::cast_slice_mut(words);
    let heads: &mut [Head] = bytemuck::cast_slice_mut(heads);
    let targets = (Shared::new(words), Shared::new(heads));
    cpu.pool.run(pack_parts, |thread| {
        for block in part(rows.blocks(), pack_parts, thread) {
            let rows = rows.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let words = unsafe { targets.0.piece(block * block_words..(block + 1) * block_words) };
            // SAFETY: as above.
            let heads = unsafe { targets.1.piece(rows.start * layout.segments..rows.end * layout.segments) };
            isa.run(Pack { words, heads, x: &x[rows.start * depth..rows.end * depth], weight, height: shape.rows });
        }
    });

    let (words, heads) = (&*words, &*heads);
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        isa.run(Panels { amx, shape, write, words, heads, weight, rows, steps, groups, units });
    });
}

/// Packs the rows of one block, and their heads, `[segment][row]`.
struct Pack<'a, E> {
    words: &'a mut [Words],
    heads: &'a mut [Head],
    x: &'a [E],
    weight: &'a QuantizedWeight,
    /// Rows of the block with its padding, which keeps what was there: no row sees another.
    height: usize,
}

impl<E: Element> Kernel for Pack<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (depth, layout) = (self.weight.depth(), self.weight.layout());
        let (rows, steps) = (self.x.len() / depth, layout.quads.div_ceil(TILE_WORDS));
        let mut wide = vec![0.0; layout.padded_depth()];
        for (row, x) in self.x.chunks_exact(depth).enumerate() {
            widen(&mut wide, x, self.weight.order());
            let whole = self.weight.has_whole_rows().then(|| scale_of(&wide));
            for (segment, x) in wide.chunks_exact(4 * layout.quads).enumerate() {
                let (scale, inverse) = whole.unwrap_or_else(|| scale_of(x));
                let mut sum = 0;
                for (step, x) in x.chunks(4 * TILE_WORDS).enumerate() {
                    let to = &mut self.words[(segment * steps + step) * self.height + row];
                    *to = Words::zeroed();
                    for (to, x) in to.iter_mut().zip(x) {
                        let code = nearest(x * inverse) as i8;
                        *to = code;
                        sum += i32::from(code);
                    }
                }
                self.heads[segment * rows + row] = Head { sum: sum as u32, scale };
            }
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of blocks, as in `linear`.
struct Panels<'a> {
    amx: Amx,
    shape: TileShape,
    write: &'a Write<'a>,
    words: &'a [Words],
    heads: &'a [Head],
    weight: &'a QuantizedWeight,
    rows: Rows,
    steps: usize,
    groups: usize,
    units: Range<usize>,
}

/// Sums of one row, as integers of a segment or as floats.
type Sums<T> = [Lanes<T>; VECTORS];

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // SAFETY: the only one that this thread has: nothing below makes another.
        let tiles = unsafe { self.amx.tiles(self.shape) };
        let most = self.rows.blocks().min(GROUP_ROWS / TILE_ROWS) * self.shape.rows;
        let mut held: Vec<Sums<u32>> = vec![[[0; LANES]; VECTORS]; 2 * self.shape.rows];
        let mut sums: Vec<Sums<f32>> = vec![[[0.0; LANES]; VECTORS]; most];
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = part(self.rows.blocks(), self.groups, group);
            let sums = &mut sums[..blocks.len() * self.shape.rows];
            sums.fill([[0.0; LANES]; VECTORS]);
            for segment in 0..self.weight.layout().segments {
                let (header, words) = self.segment(panel, segment);
                for (sums, first) in sums.chunks_mut(2 * self.shape.rows).zip(blocks.clone().step_by(2)) {
                    let some = first..blocks.end.min(first + 2);
                    let held = &mut held[..sums.len()];
                    self.start(header, segment, some.clone(), held);
                    self.multiply(&tiles, segment, some.clone(), words, bytemuck::cast_slice_mut(held));
                    self.finish(simd, header, segment, some, held, sums);
                }
            }
            for (block, sums) in blocks.zip(sums.chunks_exact(self.shape.rows)) {
                let rows = self.rows.block(block);
                let sums = &sums[..rows.len()];
                (self.write)(rows.start, panel * SUM_COLUMNS, SUM_COLUMNS, sums.as_flattened().as_flattened());
            }
        }
    }
}

impl Panels<'_> {
    /// A segment's scales and zero points, and its codes as tiles.
    #[inline(always)]
    fn segment(&self, panel: usize, segment: usize) -> (&[Sums<u32>], &[u8]) {
        let vectors = self.weight.segment(panel, segment).as_chunks::<VECTORS>().0;
        let (header, words) = vectors.split_at(self.weight.layout().header);
        (header, bytemuck::cast_slice(words))
    }

    /// −zero · Σ x for all sums of these blocks.
    #[inline(always)]
    fn start(&self, header: &[Sums<u32>], segment: usize, blocks: Range<usize>, held: &mut [Sums<u32>]) {
        let zero = self.weight.scheme().bits.zero();
        for (block, held) in blocks.zip(held.chunks_exact_mut(self.shape.rows)) {
            for (held, head) in held.iter_mut().zip(self.heads_of(segment, block)) {
                let sum = head.sum as i32;
                match header.get(1) {
                    None => held.as_flattened_mut().fill((-zero * sum) as u32),
                    Some(zeros) => {
                        for (held, &zero) in held.as_flattened_mut().iter_mut().zip(zeros.as_flattened()) {
                            *held = (zero as i32 * -sum) as u32;
                        }
                    }
                }
            }
        }
    }

    /// A segment's products of one block or two.
    #[inline(always)]
    fn multiply(&self, tiles: &Tiles, segment: usize, blocks: Range<usize>, words: &[u8], held: &mut [u32]) {
        let segment_words = self.steps * self.shape.rows;
        let x = |block: usize| -> &[u8] {
            let start = (block * self.weight.layout().segments + segment) * segment_words;
            bytemuck::cast_slice(&self.words[start..start + segment_words])
        };
        let lie = Lie::by_steps(self.shape.rows);
        if blocks.len() == 1 {
            let held = amx::Sums::added(held);
            return tiles.one_by_four::<CodeQuads>(held, x(blocks.start), lie, words, HALF, Ahead::NOTHING, self.steps);
        }
        for side in 0..2 {
            let held = amx::Sums::added(&mut held[side * SUM_COLUMNS / 2..]);
            let x = [x(blocks.start), x(blocks.start + 1)];
            tiles.two_by_two::<CodeQuads>(held, x, lie, &words[side * HALF..], Ahead::NOTHING, self.steps);
        }
    }

    /// Adds a segment's sums, times the scales of their columns and rows.
    #[inline(always)]
    fn finish<S: Simd>(
        &self,
        simd: S,
        header: &[Sums<u32>],
        segment: usize,
        blocks: Range<usize>,
        held: &[Sums<u32>],
        sums: &mut [Sums<f32>],
    ) {
        let height = self.shape.rows;
        for (block, (held, sums)) in blocks.zip(held.chunks_exact(height).zip(sums.chunks_exact_mut(height))) {
            for ((held, sums), head) in held.iter().zip(sums).zip(self.heads_of(segment, block)) {
                let x_scale = simd.splat(head.scale);
                for ((held, sum), scales) in held.iter().zip(sums).zip(&header[0]) {
                    let scales = simd.load(bytemuck::cast_ref(scales));
                    let held = simd.to_float(simd.load_words(held));
                    simd.store(simd.fma(held, simd.mul(scales, x_scale), simd.load(sum)), sum);
                }
            }
        }
    }

    /// Of the rows of one block.
    #[inline(always)]
    fn heads_of(&self, segment: usize, block: usize) -> &[Head] {
        let rows = self.rows.block(block);
        let first = rows.start * self.weight.layout().segments + segment * rows.len();
        &self.heads[first..first + rows.len()]
    }
}
