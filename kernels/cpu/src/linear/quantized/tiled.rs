//! Integers in tiles (AMX): the same exact sums of segments as elsewhere, 64 neighbours along K at a time.
//!
//! 1. Codes of 8 bits are tiles as they lie.
//! 2. Activations are packed as `[row block][segment][step][row]` of 64 bytes, blocks as in the other tiled product; a segment
//!    is filled up with zeros to whole steps. Where a segment is shorter than a step, the tiles are as short as it is.
//! 3. Sums of a segment get −zero · Σ x and are added to the float32 sums by vectors. With short groups that is most of the work: see [`grouped`].
//! 4. More than 16 rows go two blocks at a time, but for short groups. A piece of a panel's codes stays near while all blocks of a group use it; and the one that
//!    comes next is asked for beside the products, four pages in turn, as in the product of bfloat16.

mod grouped;

use std::ops::Range;

use bytemuck::Zeroable;

use super::activations::{Head, scale_of, widen};
use super::round::nearest;
use super::{Activations, Bits, QuantizedWeight, Results, Scheme};
use crate::Cpu;
use crate::amx::{Ahead, Amx, CodeQuads, Lie, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
use crate::element::Element;
use crate::linear::tiled::{Blocks, FAR_BYTES, piece_of};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Own, Shared, part};

/// Vectors of 16 columns in a panel.
const VECTORS: usize = SUM_COLUMNS / LANES;
/// Columns of a pair of blocks at a time.
const HALF: usize = SUM_COLUMNS / 2;
/// Bytes from the first two vectors of a word to the others.
const HALF_BYTES: usize = HALF * size_of::<u32>();
/// Codes of a step.
const STEP_BYTES: usize = 4096;
/// A cache line.
const LINE: usize = 64;
/// Four pages are asked for in turn.
const PAGE: usize = 4096;
const FOUR_PAGES: usize = 4 * PAGE;
/// One row of a block and one step.
type Words = [i8; 4 * TILE_WORDS];

/// Whether tiles take less time than vectors for so many rows that are packed at once: both give the same bits. With one row and two it is how
/// memory is read. Groups of 32 and more, and 4 bits, gain by it with many rows (with 32 rows products take 0.9 of the time, whole steps as
/// long).
pub(super) fn is_faster(scheme: Scheme, rows: usize) -> bool {
    let is_short = scheme.group.is_some_and(|group| group < 2 * TILE_ROWS);
    scheme.activations == Activations::Int8 && (are_tiles(scheme) || !is_short && rows > 2 * TILE_ROWS)
}

/// Whether codes are tiles as they lie, and segments long.
fn are_tiles(scheme: Scheme) -> bool {
    scheme.group.is_none() && scheme.bits == Bits::Eight
}

/// As `linear_quantized`, for a chunk of rows.
pub(super) fn multiply<E: Element>(cpu: &mut Cpu, amx: Amx, results: &Results<'_>, x: &[E], weight: &QuantizedWeight) {
    let (isa, depth, layout) = (cpu.isa, weight.depth(), weight.layout());
    assert_eq!(layout.width, VECTORS);
    let rows = x.len() / depth;
    if rows == 0 {
        return;
    }
    let blocks = Blocks::new(rows);
    let shape = TileShape::new(blocks.height(), layout.quads.min(TILE_WORDS));
    let steps = layout.quads.div_ceil(TILE_WORDS);
    let groups = blocks.groups(weight.panels(), cpu.threads());
    let units = weight.panels() * groups;
    let pack_parts = cpu.parts(blocks.count, x.len());
    let parts = cpu.parts(units, weight.columns() * depth / 2 * blocks.count);

    let block_words = layout.segments * steps * shape.rows;
    let sums_of_thread = blocks.group(groups, 0).len() * TILE_ROWS * SUM_COLUMNS;
    let words_len = blocks.count * block_words * size_of::<Words>();
    let sums_len = Own::<u32>::len(parts, 2 * sums_of_thread) * size_of::<u32>();
    let heads_len = blocks.count * layout.segments * size_of::<Heads>();
    let room_of_thread = if are_tiles(weight.scheme()) { 0 } else { grouped::room_bytes(weight, steps) };
    let room_len = Own::<u8>::len(parts, room_of_thread);
    let (words, rest) = cpu.scratch.scratch::<u8>(words_len + room_len + sums_len + heads_len).split_at_mut(words_len);
    let (room, rest) = rest.split_at_mut(room_len);
    let (sums, heads) = rest.split_at_mut(sums_len);
    let room = Own::new(room, room_of_thread);
    let words: &mut [Words] = bytemuck::cast_slice_mut(words);
    let sums = Own::new(bytemuck::cast_slice_mut::<_, u32>(sums), 2 * sums_of_thread);
    let heads: &mut [Heads] = bytemuck::cast_slice_mut(heads);
    let targets = (Shared::new(words), Shared::new(heads));
    cpu.pool.run(pack_parts, |thread| {
        for block in part(blocks.count, pack_parts, thread) {
            let rows = blocks.block(block);
            // SAFETY: blocks do not overlap, and each belongs to one part.
            let words = unsafe { targets.0.piece(block * block_words..(block + 1) * block_words) };
            // SAFETY: as above.
            let heads = unsafe { targets.1.piece(block * layout.segments..(block + 1) * layout.segments) };
            isa.run(Pack { words, heads, x: &x[rows.start * depth..rows.end * depth], weight, height: shape.rows });
        }
    });

    let (words, heads) = (&*words, &*heads);
    let is_far = rows * weight.columns() * size_of::<u16>() >= FAR_BYTES;
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        // SAFETY: each thread has its own.
        let own = unsafe { sums.of(thread) };
        let (held, sums) = own.split_at_mut(sums_of_thread);
        let sums = bytemuck::cast_slice_mut(sums);
        // SAFETY: as above.
        let room = unsafe { room.of(thread) };
        let panels = Panels {
            amx,
            shape,
            results,
            words,
            heads,
            weight,
            blocks,
            steps,
            groups,
            units,
            held,
            sums,
            room,
            is_far,
        };
        isa.run(panels);
    });
}

/// Heads of a block's rows: −zero · Σ x, or −Σ x where columns have zero points; zeros behind the last row.
type Heads = [Head; TILE_ROWS];

/// Packs the rows of one block, and their heads, by segment.
struct Pack<'a, E> {
    words: &'a mut [Words],
    heads: &'a mut [Heads],
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
        let steps = layout.quads.div_ceil(TILE_WORDS);
        // What a sum is multiplied with: zero points of columns come later.
        let factor = if layout.header == 2 { -1 } else { -self.weight.scheme().bits.zero() };
        self.heads.fill(Heads::zeroed()); // those behind the last row are computed with, too
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
                    for (to, &x) in to.iter_mut().zip(x) {
                        let code = nearest(x * inverse) as i8;
                        *to = code;
                        sum += i32::from(code);
                    }
                }
                self.heads[segment][row] = Head { sum: (factor * sum) as u32, scale };
            }
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of blocks.
struct Panels<'a> {
    amx: Amx,
    shape: TileShape,
    results: &'a Results<'a>,
    words: &'a [Words],
    heads: &'a [Heads],
    weight: &'a QuantizedWeight,
    blocks: Blocks,
    steps: usize,
    groups: usize,
    units: Range<usize>,
    /// Of this thread, both as [`Panels::finish`] has them, or [`grouped`]: a segment's integers,
    held: &'a mut [u32],
    /// and what segments come to together.
    sums: &'a mut [f32],
    /// Of this thread: where codes of short groups are laid out.
    room: &'a mut [u8],
    /// Whether results go past the caches.
    is_far: bool,
}

/// A row of a panel.
type Vectors = [Lanes<u32>; VECTORS];

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // SAFETY: the only one that this thread has: nothing below makes another.
        let tiles = unsafe { self.amx.tiles(self.shape) };
        let (held, sums) = (std::mem::take(&mut self.held), std::mem::take(&mut self.sums));
        if !are_tiles(self.weight.scheme()) {
            let room = std::mem::take(&mut self.room);
            self.run_grouped(simd, &tiles, room, held, sums);
            simd.drain();
            return;
        }
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = self.blocks.group(self.groups, group);
            for segment in 0..self.weight.layout().segments {
                let (header, words) = self.segment(panel, segment);
                if blocks.len() == 1 {
                    self.one_block(&tiles, segment, words, held);
                } else {
                    self.pairs(&tiles, segment, blocks.clone(), words, held);
                }
                let at = At { panel, segment, header };
                if blocks.len() == 1 {
                    self.finish::<S, VECTORS>(simd, at, blocks.clone(), held, sums);
                } else {
                    self.finish::<S, { VECTORS / 2 }>(simd, at, blocks.clone(), held, sums);
                }
            }
        }
        simd.drain();
    }
}

/// A segment of a panel.
#[derive(Clone, Copy)]
struct At<'a> {
    panel: usize,
    segment: usize,
    header: &'a [Vectors],
}

impl Panels<'_> {
    /// A segment's scales and zero points, and its codes as tiles.
    #[inline(always)]
    fn segment(&self, panel: usize, segment: usize) -> (&[Vectors], &[u8]) {
        let vectors = self.weight.segment(panel, segment).as_chunks::<VECTORS>().0;
        let (header, words) = vectors.split_at(self.weight.layout().header);
        (header, bytemuck::cast_slice(words))
    }

    /// A block's activations from a step of a segment on.
    #[inline(always)]
    fn x(&self, segment: usize, block: usize, from: usize, steps: usize) -> &[u8] {
        let start = ((block * self.weight.layout().segments + segment) * self.steps + from) * self.shape.rows;
        bytemuck::cast_slice(&self.words[start..start + steps * self.shape.rows])
    }

    /// A segment's products of the one block that there is.
    #[inline(always)]
    fn one_block(&self, tiles: &Tiles, segment: usize, words: &[u8], held: &mut [u32]) {
        let next = in_four_pages(words.as_ptr().wrapping_add(FOUR_PAGES), 0);
        let ahead = Ahead { at: [next, next.wrapping_add(2 * PAGE)], lines: STEP_BYTES / LINE / 4 };
        let (x, lie) = (self.x(segment, 0, 0, self.steps), Lie::by_steps(self.shape.rows));
        let held = Sums { sums: held, row: SUM_COLUMNS, are_fresh: true };
        tiles.one_by_four::<CodeQuads>(held, x, lie, words, HALF_BYTES, ahead, self.steps);
    }

    /// The same of pairs of blocks.
    #[inline(always)]
    fn pairs(&self, tiles: &Tiles, segment: usize, blocks: Range<usize>, words: &[u8], held: &mut [u32]) {
        let (height, lie) = (self.shape.rows, Lie::by_steps(self.shape.rows));
        let passes = blocks.len();
        let lines = (STEP_BYTES / LINE / 4).div_ceil(passes);
        let piece = self.steps.div_ceil(self.steps.div_ceil(piece_of(blocks.len() / 2)));
        for from in (0..self.steps).step_by(piece) {
            let steps = piece.min(self.steps - from);
            let words = &words[from * STEP_BYTES..];
            let next = words.as_ptr().wrapping_add(steps * STEP_BYTES);
            for pass in 0..passes {
                let (pair, side) = (pass % (passes / 2), pass / (passes / 2));
                // Each pass asks for its share of the piece that comes next: lines of four pages at a time.
                let done = pass * steps * lines;
                let is_asked = done * 4 * LINE < steps * STEP_BYTES;
                let ahead = Ahead { at: [in_four_pages(next, done)], lines: if is_asked { lines } else { 0 } };
                let held = &mut held[(2 * pair + side) * 2 * height * HALF..];
                let held = Sums { sums: held, row: HALF, are_fresh: from == 0 };
                let first = blocks.start + 2 * pair;
                let x = [self.x(segment, first, from, steps), self.x(segment, first + 1, from, steps)];
                tiles.two_by_two::<CodeQuads>(held, x, lie, &words[side * HALF_BYTES..], ahead, steps);
            }
        }
    }

    /// Adds a segment's sums, less its zeros, times the scales of their columns and rows; what is complete is written. W vectors lie side by
    /// side: of a block that is alone `[row][column]`, of pairs `[pair][half][block][row][column]`.
    #[inline(always)]
    fn finish<S: Simd, const W: usize>(
        &self,
        simd: S,
        at: At<'_>,
        blocks: Range<usize>,
        held: &[u32],
        sums: &mut [f32],
    ) {
        let (height, halves) = (self.shape.rows, VECTORS / W);
        let is_last = at.segment + 1 == self.weight.layout().segments;
        let (held, sums) = (as_rows::<_, W>(held), as_rows_mut::<_, W>(sums));
        for (number, block) in blocks.enumerate() {
            let (rows, heads) = (self.blocks.block(block), self.heads_of(at.segment, block));
            for half in 0..halves {
                let first = ((number / 2 * halves + half) * 2 + number % 2) * height;
                let own = half * W..(half + 1) * W;
                let scales: &[Lanes<u32>; W] = at.header[0][own.clone()].first_chunk().expect("of these columns");
                let zeros: Option<&[Lanes<u32>; W]> =
                    at.header.get(1).map(|zeros| zeros[own].first_chunk().expect("of these columns"));
                for (row, (head, (held, sums))) in
                    heads.iter().zip(held[first..].iter().zip(&mut sums[first..])).enumerate()
                {
                    let (start, x_scale) = (simd.splat_i32(head.sum as i32), simd.splat(head.scale));
                    for vector in 0..W {
                        let start = match zeros {
                            None => start,
                            Some(zeros) => simd.mul_i32(simd.load_words(&zeros[vector]), start),
                        };
                        let held = simd.to_float(simd.add_i32(simd.load_words(&held[vector]), start));
                        let scale = simd.mul(simd.load(bytemuck::cast_ref(&scales[vector])), x_scale);
                        let before = if at.segment == 0 { simd.splat(0.0) } else { simd.load(&sums[vector]) };
                        simd.store(simd.fma(held, scale, before), &mut sums[vector]);
                    }
                    if is_last {
                        let (column, width) = (at.panel * SUM_COLUMNS + half * W * LANES, W * LANES);
                        // SAFETY: this panel's columns of these rows belong to this unit of work alone.
                        unsafe {
                            self.results.write(
                                simd,
                                (rows.start + row, column),
                                width,
                                sums.as_flattened(),
                                self.is_far,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Of the rows of one block.
    #[inline(always)]
    fn heads_of(&self, segment: usize, block: usize) -> &[Head] {
        &self.heads[block * self.weight.layout().segments + segment][..self.blocks.block(block).len()]
    }
}

/// Rows of W vectors.
fn as_rows<T, const W: usize>(all: &[T]) -> &[[Lanes<T>; W]] {
    all.as_chunks().0.as_chunks().0
}

/// The same, to write.
fn as_rows_mut<T, const W: usize>(all: &mut [T]) -> &mut [[Lanes<T>; W]] {
    all.as_chunks_mut().0.as_chunks_mut().0
}

/// Where four pages are asked for in turn from `next` on, after so many lines of each: they lie on a grid, so that one call goes on where
/// the one before it ended.
fn in_four_pages(next: *const u8, done: usize) -> *const u8 {
    let within = next.addr() % FOUR_PAGES;
    let line = within / 4 / LINE + done;
    let lines_of_page = PAGE / LINE;
    next.wrapping_sub(within).wrapping_add(line / lines_of_page * FOUR_PAGES + line % lines_of_page * LINE)
}
