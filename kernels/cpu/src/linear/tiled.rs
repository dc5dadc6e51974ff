//! bfloat16 in tiles (AMX): `sum += (Σ of the first of 16 pairs) + (Σ of the second)`, 32 neighbours along K at a time.
//!
//! One row goes through the same tiles as thousands: a product takes as long for 1 row as for 16, but a step's 4 KiB of weights
//! take longer to read than its four products, so that memory stays the limit.
//!
//! 1. Up to 16 rows are one block, which takes 64 columns at a time. More are an even number of blocks, of nearly equal size: two of
//!    them share 32 columns, four sums in registers, one load for each product. The padding of a block is multiplied too, and not written.
//! 2. A piece of a panel's weights ([`super::pack`]) stays in the first-level cache while all blocks of a group use it, if they are many. Sums
//!    wait in memory meanwhile, each four tiles by themselves.
//! 3. Activations come from the second-level cache: where those of a group are larger, K is walked in stretches, each with several
//!    panels whose sums wait together.
//! 4. The piece that comes next is asked for beside the products ([`Ahead`]).
//! 5. Many results, of several blocks, go past the caches.
//!
//! Short weights ([`super::short`]) are lengthened beside the products, 32 columns after the other, by one block as by pairs ([`short`]).

mod short;
pub(super) mod walk;

use std::ops::Range;

use walk::Halves;

use super::out::{Gate, LINE, Out};
use super::pack::{TILED_COLUMNS, TILED_UNITS};
use super::short::Unit;
use super::{PackedWeight, Spaced};
use crate::Cpu;
use crate::amx::{Ahead, Amx, Bf16Pairs, Lie, STEP_UNITS, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
use crate::element::Bf16;
use crate::simd::{Kernel, Simd};
use crate::split::{Shared, part};

/// Neighbours along K of one step.
pub(super) const STEP: usize = 2 * TILE_WORDS;
/// A step of half a panel.
const STEP_BYTES: usize = 2048;
/// Steps of a piece where many blocks use it: 16 KiB of a half.
const PIECE: usize = 8;
/// Of a half.
const LINES_OF_STEP: usize = STEP_BYTES / 64;
/// So far behind a step begins what is asked for.
const AHEAD_BYTES: usize = 4 * 4096;
/// Columns of a pair of blocks at a time.
pub(super) const HALF: usize = SUM_COLUMNS / 2;
/// Activations may take so much, and sums that wait together as much: half of the second-level cache that every processor with AMX has.
const NEAR_BYTES: usize = 1 << 20;
/// From so many bytes on results go past the caches: the next call would not find the first of them there.
pub(super) const FAR_BYTES: usize = 1 << 19;
/// Where a part of the scratch memory begins.
pub(super) const PAGE_BYTES: usize = 4096;
/// Groups of rows are work to share, too, where panels are few.
const UNITS_OF_THREAD: usize = 4;

const _: () = assert!(TILED_COLUMNS == SUM_COLUMNS && TILED_UNITS == TILE_WORDS && HALF == LINE);

/// One row of a block and one step.
pub(super) type Words = [Bf16; STEP];

/// How rows are cut into blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    rows: usize,
    pub(super) count: usize,
}

impl Blocks {
    pub(super) fn new(rows: usize) -> Self {
        Self { rows, count: if rows <= TILE_ROWS { 1 } else { 2 * rows.div_ceil(2 * TILE_ROWS) } }
    }

    /// Rows of a block with its padding.
    pub(super) fn height(self) -> usize {
        self.rows.div_ceil(self.count)
    }

    pub(super) fn block(self, number: usize) -> Range<usize> {
        part(self.rows, self.count, number)
    }

    /// The row from which on a block is read where rows lie as they are: of the last one, which may be a row short, another's last.
    fn read_from(self, number: usize) -> usize {
        self.block(number).start.min(self.rows - self.height())
    }

    /// Groups of blocks, so that there is work for all threads.
    pub(super) fn groups(self, panels: usize, threads: usize) -> usize {
        (UNITS_OF_THREAD * threads).div_ceil(panels).min(self.count.div_ceil(2))
    }

    /// The blocks of one of so many groups: whole pairs, but for a block that is alone.
    pub(super) fn group(self, groups: usize, number: usize) -> Range<usize> {
        if self.count == 1 {
            return 0..1;
        }
        let pairs = part(self.count / 2, groups, number);
        2 * pairs.start..2 * pairs.end
    }
}

/// Steps of a piece that so many pairs of blocks use, of two KiB of a half each: the fewer, the longer; they would rather load and store
/// their sums less often.
pub(super) fn piece_of(pairs: usize) -> usize {
    match pairs {
        0..=2 => 4 * PIECE,
        3 | 4 => 2 * PIECE,
        _ => PIECE,
    }
}

/// How a call is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub(super) blocks: Blocks,
    /// Along K.
    pub(super) steps: usize,
    /// Steps of a piece.
    pub(super) piece: usize,
    /// Of a stretch: a multiple of [`PIECE`], or all.
    pub(super) stretch: usize,
    /// Groups of blocks.
    pub(super) groups: usize,
    /// Panels whose sums wait together.
    pub(super) together: usize,
}

impl Cut {
    /// `has_rooms`: weights are made ready piece by piece.
    pub(super) fn new(rows: usize, steps: usize, panels: usize, threads: usize, has_rooms: bool) -> Self {
        let blocks = Blocks::new(rows);
        if blocks.count <= 2 {
            let piece = if has_rooms { short::piece_of(blocks.count) } else { steps };
            return Self { blocks, steps, piece, stretch: steps, groups: 1, together: 1 };
        }
        let (pairs, groups) = (blocks.count / 2, blocks.groups(panels, threads));
        let rows = 2 * pairs.div_ceil(groups) * blocks.height();
        let near = NEAR_BYTES / (rows * size_of::<Words>());
        let near = (near / PIECE).max(1) * PIECE;
        let stretch = steps.div_ceil(steps.div_ceil(near)).next_multiple_of(PIECE).min(steps);
        let together = if stretch == steps { 1 } else { NEAR_BYTES / (rows * SUM_COLUMNS * size_of::<f32>()) };
        let pairs = pairs.div_ceil(groups);
        let piece = if has_rooms { short::piece_of(2 * pairs) } else { piece_of(pairs) };
        Self { blocks, steps, piece, stretch, groups, together: together.clamp(1, panels) }
    }

    pub(super) fn group(self, number: usize) -> Range<usize> {
        self.blocks.group(self.groups, number)
    }

    /// Sums of one panel, at most.
    pub(super) fn sums(self) -> usize {
        self.group(0).len() * self.blocks.height() * SUM_COLUMNS
    }

    /// Units of the two rooms in which pieces are made ready.
    pub(super) fn room_units(self) -> usize {
        2 * self.piece * STEP_UNITS
    }

    /// Where a block's words of a stretch begin, and how many there are: all blocks of a stretch stand side by side.
    pub(super) fn words(self, stretch: usize, block: usize) -> Range<usize> {
        let len = self.stretch.min(self.steps - stretch) * self.blocks.height();
        let start = stretch * self.blocks.count * self.blocks.height() + block * len;
        start..start + len
    }
}

/// As `linear`, or `linear_gated`, for a chunk of rows.
pub(super) fn multiply(
    cpu: &mut Cpu,
    amx: Amx,
    out: &Out<'_>,
    x: Spaced<'_, Bf16>,
    weight: &PackedWeight<Bf16>,
    bias: Option<&[Bf16]>,
    gate: Option<Gate>,
) {
    let (isa, depth) = (cpu.isa, weight.depth());
    let rows = x.rows();
    if rows == 0 {
        return;
    }
    let is_short = weight.short().is_some();
    let cut = Cut::new(rows, weight.units() / TILE_WORDS, weight.panels(), cpu.threads(), is_short);
    let (blocks, height) = (cut.blocks, cut.blocks.height());
    let units = weight.panels() * cut.groups;
    let pack_parts = cpu.parts(blocks.count, rows * depth);
    // As in `linear`; up to 16 rows take no longer than reading the weights.
    let parts = cpu.parts(units, weight.columns() * depth * blocks.count);

    // A block that is alone is packed by each thread for itself, which takes less time than to wait for another.
    let is_alone = blocks.count == 1;
    let lies_ready = x.lies_as_tiles_take_it(depth);
    let words = if lies_ready { 0 } else { cut.steps * blocks.count * height * size_of::<Words>() };
    let words = words.next_multiple_of(PAGE_BYTES);
    let room = if is_short { cut.room_units() * size_of::<Unit>() } else { 0 };
    let sums = cut.together * cut.sums() * size_of::<f32>();
    let own = (PAGE_BYTES / 2 + room + sums).next_multiple_of(PAGE_BYTES) + if is_alone { words } else { 0 };
    let shared = if is_alone { 0 } else { words };
    let (packed, own_of_all) = cpu.scratch.scratch::<u8>(shared + parts * own).split_at_mut(shared);
    let packed: &mut [Words] = bytemuck::cast_slice_mut(packed);
    if !is_alone && !lies_ready {
        let target = Shared::new(packed);
        cpu.pool.run(pack_parts, |thread| {
            for number in part(blocks.count, pack_parts, thread) {
                let rows = blocks.block(number);
                for stretch in (0..cut.steps).step_by(cut.stretch) {
                    // SAFETY: words of blocks and stretches do not overlap, and each block belongs to one part.
                    let to = unsafe { target.piece(cut.words(stretch, number)) };
                    pack(to, x.some(rows.clone()), depth, stretch * STEP, height);
                }
            }
        });
    }

    let packed = &*packed;
    let own_of_all = Shared::new(own_of_all);
    let written = gate.map_or(weight.columns(), |_| weight.columns() / 2);
    let result_bytes = rows * written * size_of::<Bf16>();
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        // SAFETY: each thread has its own.
        let own = unsafe { own_of_all.piece(thread * own..(thread + 1) * own) };
        // Half a page further than short units lie: a store keeps loads waiting for which it might be the same place of another page.
        let (room, own) = own[PAGE_BYTES / 2..].split_at_mut(room);
        let (sums, own) = own.split_at_mut(sums);
        let x = if lies_ready {
            Source::AsItLies(x)
        } else if is_alone {
            let (_, words) = own.split_at_mut(own.len() - words);
            let words: &mut [Words] = bytemuck::cast_slice_mut(words);
            pack(words, x, depth, 0, height);
            Source::Packed(&*words)
        } else {
            Source::Packed(packed)
        };
        let (room, sums) = (bytemuck::cast_slice_mut(room), bytemuck::cast_slice_mut(sums));
        let halves = gate.map_or(Halves::NEIGHBOURS, |_| Halves::gated(weight.panels()));
        let is_far = !is_alone && result_bytes >= FAR_BYTES;
        isa.run(Panels { amx, out, x, weight, halves, bias, gate, cut, units, sums, room, is_far });
    });
}

/// The rows of one block from position `from` along K on, as `[step][row]`. What pads the block keeps what was there: no row sees another.
pub(super) fn pack(packed: &mut [Words], x: Spaced<'_, Bf16>, depth: usize, from: usize, height: usize) {
    for (row, x) in x.data.chunks_exact(x.row).enumerate() {
        for (to, x) in packed[row..].iter_mut().step_by(height).zip(x[from..depth].chunks(STEP)) {
            match x.first_chunk() {
                Some(x) => *to = *x, // of a known length: no call
                None => {
                    to[..x.len()].copy_from_slice(x);
                    to[x.len()..].fill(Bf16::default());
                }
            }
        }
    }
}

/// Where tiles find a block of activations.
#[derive(Clone, Copy)]
enum Source<'a> {
    Packed(&'a [Words]),
    /// Rows that are spaced so that no two of a tile compete for one place in the caches.
    AsItLies(Spaced<'a, Bf16>),
}

impl<'a> Source<'a> {
    #[inline(always)]
    fn lie(self, cut: Cut) -> Lie {
        match self {
            Self::Packed(_) => Lie::by_steps(cut.blocks.height()),
            Self::AsItLies(x) => Lie { row: x.row * size_of::<Bf16>(), step: size_of::<Words>() },
        }
    }

    /// A block from step `from` of a stretch on.
    #[inline(always)]
    fn block(self, cut: Cut, block: usize, stretch: usize, from: usize) -> &'a [u8] {
        match self {
            Self::Packed(words) => {
                let words = &words[cut.words(stretch, block)];
                bytemuck::cast_slice(&words[(from - stretch) * cut.blocks.height()..])
            }
            Self::AsItLies(x) => bytemuck::cast_slice(&x.data[cut.blocks.read_from(block) * x.row + from * STEP..]),
        }
    }

    /// Which of a block's sums is that of its first row.
    fn first(self, blocks: Blocks, block: usize) -> usize {
        match self {
            Self::Packed(_) => 0,
            Self::AsItLies(_) => blocks.block(block).start - blocks.read_from(block),
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of blocks, all panels of a group side by side.
struct Panels<'a> {
    amx: Amx,
    out: &'a Out<'a>,
    x: Source<'a>,
    weight: &'a PackedWeight<Bf16>,
    halves: Halves,
    bias: Option<&'a [Bf16]>,
    /// If there is one, halves are gates and what they are gates of.
    gate: Option<Gate>,
    cut: Cut,
    units: Range<usize>,
    /// Of this thread: of the panels that wait together, `[pair of blocks][half][row][column]`; of a block that is alone `[row][column]`.
    sums: &'a mut [f32],
    /// Of this thread: where short units are lengthened.
    room: &'a mut [Unit],
    /// Whether results go past the caches.
    is_far: bool,
}

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // SAFETY: the only one that this thread has: nothing below makes another.
        let tiles = unsafe { self.amx.tiles(TileShape::new(self.cut.blocks.height(), TILE_WORDS)) };
        let sums = std::mem::take(&mut self.sums);
        if let Some(short) = self.weight.short() {
            let room = std::mem::take(&mut self.room);
            self.run_short(simd, &tiles, short, room, sums);
            simd.drain();
            return;
        }
        let (panels, mut unit) = (self.weight.panels(), self.units.start);
        while unit < self.units.end {
            let group = unit / panels;
            let end = self.units.end.min((group + 1) * panels);
            let blocks = self.cut.group(group);
            let own = unit - group * panels..end - group * panels;
            for first in own.clone().step_by(self.cut.together) {
                let some = first..own.end.min(first + self.cut.together);
                self.multiply(simd, &tiles, blocks.clone(), some, sums);
            }
            unit = end;
        }
        simd.drain();
    }
}

impl Panels<'_> {
    /// Some panels' columns of these blocks.
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, tiles: &Tiles, blocks: Range<usize>, panels: Range<usize>, sums: &mut [f32]) {
        let cut = self.cut;
        for stretch in (0..cut.steps).step_by(cut.stretch) {
            let end = cut.steps.min(stretch + cut.stretch);
            for (panel, sums) in panels.clone().zip(sums.chunks_exact_mut(cut.sums())) {
                if cut.blocks.count == 1 {
                    self.one_block(tiles, panel, bytemuck::cast_slice_mut(sums));
                } else {
                    let next = if panel + 1 < panels.end {
                        (panel + 1, stretch)
                    } else if end < cut.steps {
                        (panels.start, end)
                    } else {
                        (panel + 1, 0)
                    };
                    self.pairs(tiles, blocks.clone(), panel, stretch..end, next, bytemuck::cast_slice_mut(sums));
                }
                if end == cut.steps {
                    self.write(simd, blocks.clone(), panel, sums);
                }
            }
        }
    }

    /// All weights from one half of a panel on.
    #[inline(always)]
    fn weights(&self, panel: usize, side: usize) -> &[u8] {
        &self.weight.data()[self.halves.number(panel, side) * self.cut.steps * STEP_BYTES..]
    }

    /// The sums of all columns, for the one block that there is.
    #[inline(always)]
    fn one_block(&self, tiles: &Tiles, panel: usize, sums: &mut [u32]) {
        let (weights, half) = (self.weights(panel, 0), self.halves.apart * self.cut.steps * STEP_BYTES);
        let x = self.x.block(self.cut, 0, 0, 0);
        let next = weights.as_ptr().wrapping_add(AHEAD_BYTES / 2);
        let ahead = Ahead { at: [next, next.wrapping_add(half)], lines: LINES_OF_STEP / 2 };
        let sums = Sums { sums, row: SUM_COLUMNS, are_fresh: true };
        let lie = self.x.lie(self.cut);
        tiles.one_by_four::<Bf16Pairs>(sums, x, lie, weights, half, ahead, self.cut.steps);
    }

    /// The same along one stretch, for pairs of blocks. `next`: the panel and step that come behind it.
    #[inline(always)]
    fn pairs(
        &self,
        tiles: &Tiles,
        blocks: Range<usize>,
        panel: usize,
        stretch: Range<usize>,
        next: (usize, usize),
        sums: &mut [u32],
    ) {
        let height = self.cut.blocks.height();
        let (pairs, lie) = (blocks.len() / 2, self.x.lie(self.cut));
        let next = |side: usize| {
            let half = self.halves.number(next.0, side) * self.cut.steps;
            self.weight.data().as_ptr().wrapping_add((half + next.1) * STEP_BYTES)
        };
        let lines = (LINES_OF_STEP / 4).div_ceil(pairs);
        for from in stretch.clone().step_by(self.cut.piece) {
            let steps = self.cut.piece.min(stretch.end - from);
            let x = |block: usize| self.x.block(self.cut, block, stretch.start, from);
            for side in 0..2 {
                let weights = &self.weights(panel, side)[from * STEP_BYTES..];
                // One pass asks for what follows it, step by step; several ask for the next piece, each for its share.
                let next = match pairs {
                    1 => weights.as_ptr().wrapping_add(AHEAD_BYTES),
                    _ if from + steps == stretch.end => next(side),
                    _ => weights.as_ptr().wrapping_add(steps * STEP_BYTES),
                };
                for pair in 0..pairs {
                    let done = pair * steps * lines;
                    let is_asked = done * 4 < steps * LINES_OF_STEP;
                    // Fours of pages that have been asked for, and lines of the one that was begun.
                    let at = next.wrapping_add(done / 64 * AHEAD_BYTES + done % 64 * 64);
                    let ahead = Ahead { at: [at], lines: if is_asked { lines } else { 0 } };
                    let sums = &mut sums[(2 * pair + side) * 2 * height * HALF..];
                    let sums = Sums { sums, row: HALF, are_fresh: from == 0 };
                    let x = [x(blocks.start + 2 * pair), x(blocks.start + 2 * pair + 1)];
                    tiles.two_by_two::<Bf16Pairs>(sums, x, lie, weights, ahead, steps);
                }
            }
        }
    }

    /// Adds the bias, rounds, and leaves out the rows and columns that are padding.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, blocks: Range<usize>, panel: usize, sums: &[f32]) {
        let columns = self.weight.columns();
        let is_alone = self.cut.blocks.count == 1;
        let block_sums = if is_alone { 0 } else { self.cut.blocks.height() * HALF };
        // From a row to the next, and from a half to the other.
        let (width, apart) = if is_alone { (SUM_COLUMNS, HALF) } else { (HALF, 2 * block_sums) };
        for (number, block) in blocks.enumerate() {
            let first = number / 2 * 4 * block_sums + number % 2 * block_sums;
            let rows = self.cut.blocks.block(block);
            for (at, row) in (self.x.first(self.cut.blocks, block)..).zip(rows) {
                let half = |side: usize, count: usize| {
                    let column = self.halves.number(panel, side) * HALF;
                    let bias = self.bias.map(|bias| &bias[column..column + count]);
                    (&sums[first + side * apart + at * width..][..count], bias)
                };
                if let Some(Gate { activation, row: row_len }) = self.gate {
                    let halves = [half(0, HALF), half(1, HALF)];
                    // SAFETY: these columns of these rows belong to this unit of work alone.
                    unsafe {
                        self.out.write_gated(simd, row * row_len + panel * HALF, halves, activation, self.is_far)
                    };
                    continue;
                }
                for side in 0..2 {
                    let column = self.halves.number(panel, side) * HALF;
                    let Some(count) = columns.checked_sub(column).filter(|&count| count > 0) else { break };
                    let (sums, bias) = half(side, HALF.min(count));
                    // SAFETY: as above.
                    unsafe { self.out.write(simd, row * columns + column, sums, bias, self.is_far) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_one_block_or_an_even_number_of_nearly_equal_ones() {
        for rows in 1..600 {
            let blocks = Blocks::new(rows);
            assert!(blocks.height() <= TILE_ROWS && (blocks.count == 1 || blocks.count.is_multiple_of(2)), "{rows}");
            let lens: Vec<_> = (0..blocks.count).map(|number| blocks.block(number).len()).collect();
            assert_eq!(lens.iter().sum::<usize>(), rows);
            assert!(lens.iter().all(|&len| len == blocks.height() || len + 1 == blocks.height()), "{rows}: {lens:?}");
        }
    }

    #[test]
    fn what_is_walked_together_stays_in_the_second_level_cache() {
        for (rows, steps, panels, threads) in
            [(33, 4, 1, 8), (512, 32, 64, 2), (512, 96, 16, 2), (512, 448, 64, 2), (512, 1000, 3, 64), (100, 1, 9, 3)]
        {
            let cut = Cut::new(rows, steps, panels, threads, false);
            let rows = cut.group(0).len() * cut.blocks.height();
            assert!(rows * cut.stretch * size_of::<Words>() <= NEAR_BYTES, "{rows} rows, {steps} steps");
            assert!(cut.together * cut.sums() * size_of::<f32>() <= NEAR_BYTES.max(cut.sums() * size_of::<f32>()));
            assert!(cut.stretch == steps || cut.stretch.is_multiple_of(PIECE));
            let mut all: Vec<_> = (0..steps)
                .step_by(cut.stretch)
                .flat_map(|stretch| (0..cut.blocks.count).flat_map(move |block| cut.words(stretch, block)))
                .collect();
            all.sort_unstable();
            assert!(
                all.into_iter().eq(0..steps * cut.blocks.count * cut.blocks.height()),
                "words overlap, or have gaps"
            );
        }
    }
}
