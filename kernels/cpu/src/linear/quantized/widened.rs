//! Codes among bfloat16 activations that stay as they are, in tiles (AMX): weights become bfloat16, a piece of a panel at a time, and
//! are multiplied as such.
//!
//! 1. Where each group has its scale, a weight is the bfloat16 nearest to (code − zero) · scale in float32. That is off by 1/512 of it at most;
//!    rounding to 4 bits left up to 1/16 of the largest, to 8 bits up to 1/254. Else it is code − zero, which bfloat16 holds, and sums are
//!    multiplied with their column's scale.
//! 2. One row goes the same way as thousands, so that its bits do not depend on others.
//! 3. A piece is widened once for all rows of a group of blocks, into one of two rooms, and the next into the other before it is multiplied: the
//!    processor goes on with vectors while tiles are multiplied.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Zeroable;

use super::tile::{EightBits, FourBits, Word};
use super::{Activations, Bits, QuantizedWeight, Results};
use crate::Cpu;
use crate::amx::{Amx, Beside, Lie, SUM_COLUMNS, Sums, TILE_WORDS, TileShape, Tiles};
use crate::element::Bf16;
use crate::linear::Spaced;
use crate::linear::short::Unit;
use crate::linear::tiled::walk::{At, Walk};
use crate::linear::tiled::{Cut, FAR_BYTES, HALF, PAGE_BYTES, STEP, Words, pack};
use crate::simd::{Kernel, LANES, Lanes, Part, Simd};
use crate::split::{Own, Shared, part};

/// Vectors of 16 columns in a panel.
const VECTORS: usize = SUM_COLUMNS / LANES;
/// Of half a panel: tiles side by side.
const TILES: usize = HALF / LANES;
/// Rows of a tile's weights: pairs of neighbours along K.
const PAIRS: usize = STEP / 2;

/// As `linear_quantized`, for a chunk of rows.
pub(super) fn multiply(cpu: &mut Cpu, amx: Amx, results: &Results<'_>, x: &[Bf16], weight: &QuantizedWeight) {
    assert!(weight.layout().width == VECTORS && weight.scheme().activations == Activations::Float);
    let (isa, depth) = (cpu.isa, weight.depth());
    let rows = x.len() / depth;
    if rows == 0 {
        return;
    }
    let cut = Cut::new(rows, depth.div_ceil(STEP), weight.panels(), cpu.threads(), true);
    let (blocks, height) = (cut.blocks, cut.blocks.height());
    let units = weight.panels() * cut.groups;
    let pack_parts = cpu.parts(blocks.count, x.len());
    // As in `linear`; up to 16 rows take no longer than widening the weights.
    let parts = cpu.parts(units, weight.columns() * depth * blocks.count);

    let words_len = (cut.steps * blocks.count * height * size_of::<Words>()).next_multiple_of(PAGE_BYTES);
    let room_len = cut.room_units() * size_of::<Unit>();
    let sums_len = cut.together * cut.sums() * size_of::<f32>();
    let own_len = (room_len + sums_len).next_multiple_of(PAGE_BYTES);
    let (words, own) = cpu.scratch.scratch::<u8>(words_len + Own::<u8>::len(parts, own_len)).split_at_mut(words_len);
    let words: &mut [Words] = bytemuck::cast_slice_mut(words);
    let target = Shared::new(words);
    cpu.pool.run(pack_parts, |thread| {
        for number in part(blocks.count, pack_parts, thread) {
            let rows = blocks.block(number);
            let x = &x[rows.start * depth..rows.end * depth];
            let ordered = weight.order().map(|order| in_order(x, order));
            let x = Spaced { data: ordered.as_deref().unwrap_or(x), row: depth };
            for stretch in (0..cut.steps).step_by(cut.stretch) {
                // SAFETY: words of blocks and stretches do not overlap, and each block belongs to one part.
                pack(unsafe { target.piece(cut.words(stretch, number)) }, x, depth, stretch * STEP, height);
            }
        }
    });

    let words = &*words;
    let own = Own::new(own, own_len);
    let is_far = rows * weight.columns() * size_of::<Bf16>() >= FAR_BYTES;
    cpu.pool.run(parts, |thread| {
        let units = part(units, parts, thread);
        // SAFETY: each thread has its own.
        let own = unsafe { own.of(thread) };
        let (room, sums) = own.split_at_mut(room_len);
        let sums = &mut bytemuck::cast_slice_mut(sums)[..sums_len / size_of::<f32>()];
        let room = bytemuck::cast_slice_mut(room);
        isa.run(Panels { amx, results, words, weight, cut, units, room, sums, is_far });
    });
}

/// Rows in the order in which codes meet them.
fn in_order(x: &[Bf16], order: &[u32]) -> Vec<Bf16> {
    x.chunks_exact(order.len()).flat_map(|x| order.iter().map(|&at| x[at as usize])).collect()
}

/// Some of the units of work of one call: a unit is one panel and one group of blocks, all panels of a group side by side.
struct Panels<'a> {
    amx: Amx,
    results: &'a Results<'a>,
    words: &'a [Words],
    weight: &'a QuantizedWeight,
    cut: Cut,
    units: Range<usize>,
    /// Of this thread: two rooms,
    room: &'a mut [Unit],
    /// and sums, as the other products of bfloat16 have them.
    sums: &'a mut [f32],
    /// Whether results go past the caches.
    is_far: bool,
}

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        // SAFETY: the only one that this thread has: nothing below makes another.
        let tiles = unsafe { self.amx.tiles(TileShape::new(self.cut.blocks.height(), TILE_WORDS)) };
        let (room, sums) = (std::mem::take(&mut self.room), std::mem::take(&mut self.sums));
        let walk = Walk { cut: self.cut, panels: self.weight.panels(), units: self.units.clone() };
        let (mut here, size) = (walk.begin(self.units.start), self.cut.sums());
        let (mut room, mut other) = room.split_at_mut(room.len() / 2);
        if let Some(at) = &here {
            self.widen(simd, at, room);
        }
        while let Some(at) = here {
            let blocks = self.cut.group(at.group);
            let sums = &mut sums[(at.panel - at.together.0) * size..][..size];
            // The next piece first: what tiles load was not stored just now.
            here = walk.after(&at);
            if let Some(next) = &here {
                self.widen(simd, next, other);
            }
            self.piece(&tiles, room, blocks.clone(), &at, sums);
            if walk.is_complete(&at) {
                self.write(simd, blocks, at.panel, sums);
            }
            (room, other) = (other, room);
        }
        simd.drain();
    }
}

impl Panels<'_> {
    /// Brings a piece's weights into a room.
    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, at: &At, room: &mut [Unit]) {
        let to = bytemuck::cast_slice_mut::<_, Tile>(room).as_chunks_mut::<TILES>().0;
        let to = &mut to[..at.steps.1 - at.steps.0];
        let place = Place { weight: self.weight, panel: at.panel, first: at.side * TILES, from: at.steps.0 * STEP };
        let scheme = self.weight.scheme();
        match (scheme.bits, scheme.group.is_some()) {
            (Bits::Four, true) => widen_from::<S, FourBits, true>(simd, place, to),
            (Bits::Four, false) => widen_from::<S, FourBits, false>(simd, place, to),
            (Bits::Eight, true) => widen_from::<S, EightBits, true>(simd, place, to),
            (Bits::Eight, false) => widen_from::<S, EightBits, false>(simd, place, to),
        }
    }

    /// The products of one piece with all blocks.
    #[inline(always)]
    fn piece(&self, tiles: &Tiles, weights: &[Unit], blocks: Range<usize>, at: &At, sums: &mut [f32]) {
        let (height, count) = (self.cut.blocks.height(), at.steps.1 - at.steps.0);
        let lie = Lie::by_steps(height);
        let x = |block: usize| -> &[u8] {
            let words = &self.words[self.cut.words(at.stretch.0, block)];
            bytemuck::cast_slice(&words[(at.steps.0 - at.stretch.0) * height..])
        };
        let sums: &mut [u32] = bytemuck::cast_slice_mut(sums);
        let are_fresh = at.steps.0 == 0;
        if self.cut.blocks.count == 1 {
            let sums = Sums { sums: &mut sums[at.side * HALF..], row: SUM_COLUMNS, are_fresh };
            tiles.one_by_two_beside(sums, x(0), lie, weights, Beside::nothing(), count);
            return;
        }
        for (pair, first) in blocks.step_by(2).enumerate() {
            let sums = Sums { sums: &mut sums[(2 * pair + at.side) * 2 * height * HALF..], row: HALF, are_fresh };
            tiles.two_by_two_beside(sums, [x(first), x(first + 1)], lie, weights, Beside::nothing(), count);
        }
    }

    /// Multiplies sums with the scales of their columns, if these are not in the weights, and writes them.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, blocks: Range<usize>, panel: usize, sums: &mut [f32]) {
        let height = self.cut.blocks.height();
        let (width, block_sums) = if self.cut.blocks.count == 1 { (SUM_COLUMNS, 0) } else { (HALF, height * HALF) };
        let scales: Option<&[_; VECTORS]> = match self.weight.scheme().group {
            None => Some(self.weight.panel(panel).first_chunk().expect("scales come first")),
            Some(_) => None,
        };
        for (number, block) in blocks.enumerate() {
            let first = number / 2 * 4 * block_sums + number % 2 * block_sums;
            for (at, row) in self.cut.blocks.block(block).enumerate() {
                for from in (0..SUM_COLUMNS).step_by(width) {
                    let sums = &mut sums[first + from / HALF * 2 * block_sums + at * width..][..width];
                    if let Some(scales) = scales {
                        for (sums, scales) in sums.as_chunks_mut().0.iter_mut().zip(&scales[from / LANES..]) {
                            simd.store(simd.mul(simd.load(sums), simd.load(bytemuck::cast_ref(scales))), sums);
                        }
                    }
                    let place = (row, panel * SUM_COLUMNS + from);
                    // SAFETY: this panel's columns of these rows belong to this unit of work alone.
                    unsafe { self.results.write(simd, place, width, sums, self.is_far) };
                }
            }
        }
    }
}

/// Pairs of neighbours along K of 16 columns, as tiles take them.
type Tile = [Lanes<u32>; PAIRS];

/// Where codes are.
#[derive(Clone, Copy)]
struct Place<'a> {
    weight: &'a QuantizedWeight,
    panel: usize,
    /// The first of two vectors of the panel.
    first: usize,
    /// Along K.
    from: usize,
}

/// [`Widen`], with zero points or without.
#[inline(always)]
fn widen_from<S: Simd, W: Word, const IS_SCALED: bool>(simd: S, place: Place<'_>, to: &mut [[Tile; TILES]]) {
    if place.weight.layout().header == 2 {
        simd.apart(Widen::<W, IS_SCALED, true>(place, to, PhantomData));
    } else {
        simd.apart(Widen::<W, IS_SCALED, false>(place, to, PhantomData));
    }
}

/// Codes of two vectors of columns as bfloat16, step after step: less their zero points, or the middle code. `IS_SCALED`: times the scale
/// of their group.
struct Widen<'a, W, const IS_SCALED: bool, const HAS_ZEROS: bool>(Place<'a>, &'a mut [[Tile; TILES]], PhantomData<W>);

impl<S: Simd, W: Word, const IS_SCALED: bool, const HAS_ZEROS: bool> Part<S> for Widen<'_, W, IS_SCALED, HAS_ZEROS> {
    type Output = ();

    #[inline(always)]
    fn run(self, simd: S) {
        let Self(Place { weight, panel, first, from: start }, to, _) = self;
        let panel_bytes = size_of_val(weight.panel(panel));
        let ahead = if first == 0 { HALF * 4 } else { panel_bytes - HALF * 4 };
        let (layout, codes_of_word) = (weight.layout(), 4 * W::QUADS);
        let (panel, _) = weight.panel(panel).as_chunks::<VECTORS>();
        let (segment_codes, size) = (4 * layout.quads, layout.header + layout.words);
        let (mut from, end) = (start, start + to.len() * STEP);
        while from < end {
            let (segment, within) = (from / segment_codes, from % segment_codes);
            if segment == layout.segments {
                fill_up(to, from - start);
                break;
            }
            let (header, words) = panel[segment * size..(segment + 1) * size].split_at(layout.header);
            let mut scales = [simd.splat(0.0); TILES];
            let mut zeros = scales;
            for tile in 0..TILES {
                scales[tile] = simd.load(bytemuck::cast_ref(&header[0][first + tile]));
                if HAS_ZEROS {
                    zeros[tile] = simd.to_float(simd.load_words(&header[1][first + tile]));
                }
            }
            let count = (end - from).min(segment_codes - within) / codes_of_word;
            for words in &words[within / codes_of_word..][..count] {
                let pair = (from - start) / 2;
                let to = &mut to[pair / PAIRS];
                for tile in 0..TILES {
                    let (at, all) = (&words[first + tile], pair % PAIRS);
                    simd.prefetch(at.as_ptr().cast::<u8>().wrapping_add(ahead));
                    let to = &mut to[tile][all..all + codes_of_word / 2];
                    let word = simd.load_words(at);
                    for (number, to) in to.iter_mut().enumerate() {
                        let (quad, half) = (number / 2, number as u32 % 2 * 2);
                        let mut both = if HAS_ZEROS {
                            let codes = [W::float(simd, word, quad, half), W::float(simd, word, quad, half + 1)];
                            [simd.sub(codes[0], zeros[tile]), simd.sub(codes[1], zeros[tile])]
                        } else {
                            [W::centred(simd, word, quad, half), W::centred(simd, word, quad, half + 1)]
                        };
                        if IS_SCALED {
                            both = [simd.mul(both[0], scales[tile]), simd.mul(both[1], scales[tile])];
                        }
                        simd.store_pairs(both, to);
                    }
                }
                from += codes_of_word;
            }
        }
    }
}

/// What lies behind the codes meets activations of 0, and is a number.
fn fill_up(to: &mut [[Tile; TILES]], from: usize) {
    for (number, step) in to.iter_mut().enumerate() {
        let first = (from / 2).saturating_sub(number * PAIRS).min(PAIRS);
        for tile in step {
            tile[first..].fill(Zeroable::zeroed());
        }
    }
}
