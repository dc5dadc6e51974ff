//! A panel's weights, a piece along K at a time, so that each is near while all row blocks use it.
//!
//! Weights that lie as they are multiplied are used where they lie. Short ones are lengthened into one of two rooms while what is in
//! the other is multiplied, or widened as they are entered ([`super::wide`]).

use super::ahead::{Lengthen, Lines};
use super::short::{Piece, Rooms, Short, Turn, Unit};
use super::tile::tile_of;
use super::{GROUP_ROWS, PackedWeight, Rows};
use crate::element::Element;
use crate::simd::{Lanes, Simd};

/// Units of K per piece: 512 × 256 bytes = 128 KiB of a 64-column panel. Two of them, and the activations of `GROUP_ROWS`, fit the
/// second-level cache.
const PIECE: usize = 512;
/// With so few row blocks each uses weights up faster than the second-level cache gives them: 16 KiB stay in the first.
/// More blocks would rather load and store their sums less often (Zen 5, K = 3,072: 16 rows take 0.81 of the time that they
/// take with pieces of 1,024, and 24 rows with these pieces 1.13 of that with `PIECE`).
const SMALL_PIECE: usize = 64;
/// Two rooms of 8 KiB (Zen 5, two cores: with rooms of 16 KiB units come at half to three quarters of the rate).
const SMALL_SHORT_PIECE: usize = 32;
const FEW_BLOCKS: usize = 3;

/// Of weights that are widened: 16 KiB as float32, which stay in the first-level cache.
const SMALL_WIDE_PIECE: usize = 32;
/// The same with many row blocks: 64 KiB, which the second-level cache gives as fast as they are used.
const WIDE_PIECE: usize = 128;
const FEW_WIDE_BLOCKS: usize = 8;
/// Blocks that are enough to widen a piece for.
const WIDE_BLOCKS: usize = 2;

/// As `GROUP_ROWS`, where each group of rows would lengthen the pieces of a panel again: 96 KiB of sums.
const LONG_GROUP_ROWS: usize = 384;
/// Groups are work to share, too: they are only so long where each thread has as many units of work all the same.
const UNITS_OF_THREAD: usize = 4;

/// How a call's weights and rows are cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// Units of a piece.
    pub(super) piece: usize,
    /// Row blocks of a group, at most.
    pub(super) group: usize,
    /// Whether pieces are widened to float32.
    pub(super) is_wide: bool,
}

impl Cut {
    /// For these row blocks, and for a weight of so many panels and units along K. `may_be_wide`: of bfloat16 where floats are multiplied.
    pub(super) fn new(
        rows: Rows,
        panels: usize,
        depth: usize,
        (is_short, may_be_wide): (bool, bool),
        threads: usize,
    ) -> Self {
        let blocks = rows.blocks();
        let is_wide = may_be_wide && blocks >= WIDE_BLOCKS;
        let piece = match (blocks, is_short) {
            _ if is_wide && blocks <= FEW_WIDE_BLOCKS => SMALL_WIDE_PIECE,
            _ if is_wide => WIDE_PIECE,
            (0..=1, false) => depth,
            (0..=FEW_BLOCKS, false) => SMALL_PIECE,
            (0..=FEW_BLOCKS, true) => SMALL_SHORT_PIECE,
            _ => PIECE,
        };
        let long = LONG_GROUP_ROWS / rows.most;
        let is_made_ready = is_wide || is_short && depth > PIECE;
        let has_long_groups = is_made_ready && panels * blocks.div_ceil(long) >= UNITS_OF_THREAD * threads;
        let group = if has_long_groups { long } else { GROUP_ROWS / rows.most };
        Self { piece: piece.min(depth), group, is_wide }
    }
}

/// One row block's turn with a piece.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    pub(super) number: usize,
    /// Blocks that use the piece.
    pub(super) of: usize,
    pub(super) rows: usize,
}

/// Where a thread has its weights from: for each piece `enter`, `multiply` once for each block, `leave`.
pub(super) trait Pieces<E: Element, const C: usize> {
    /// Goes to a piece; `next` is what had better be ready when this one was used.
    fn enter<S: Simd>(&mut self, simd: S, here: Piece, next: Option<Piece>);
    /// Adds its products with these rows to `sums`.
    fn multiply<S: Simd>(&mut self, simd: S, pass: Pass, x: &[E::Activation<S>], sums: &mut [[Lanes<f32>; C]]);
    /// All blocks have used it.
    fn leave<S: Simd>(&mut self, simd: S);
}

/// Weights that are used where they lie.
pub(super) struct AsTheyLie<'a, E: Element, const C: usize> {
    weight: &'a PackedWeight<E>,
    here: &'a [[Lanes<E::Unit>; C]],
    foresees: bool,
}

impl<'a, E: Element, const C: usize> AsTheyLie<'a, E, C> {
    /// `foresees`: whether the processor does what lies further on.
    #[inline(always)]
    pub(super) fn new(weight: &'a PackedWeight<E>, foresees: bool) -> Self {
        Self { weight, here: &[], foresees }
    }
}

impl<E: Element, const C: usize> Pieces<E, C> for AsTheyLie<'_, E, C> {
    #[inline(always)]
    fn enter<S: Simd>(&mut self, _: S, here: Piece, _: Option<Piece>) {
        self.here = &self.weight.panel(here.panel).as_chunks::<C>().0[here.from..here.to];
    }

    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, pass: Pass, x: &[E::Activation<S>], sums: &mut [[Lanes<f32>; C]]) {
        let ahead = match pass.of {
            1 => Lines::further_on(self.here, self.foresees),
            several => Lines::of_next_piece(self.here, pass.number, several),
        };
        tile_of::<S, E, C>(simd, pass.rows, self.here, x, sums, ahead);
    }

    #[inline(always)]
    fn leave<S: Simd>(&mut self, _: S) {}
}

/// Short weights.
pub(super) struct Lengthened<'a> {
    rooms: Rooms<'a>,
    /// Units of the next piece that have had their turn.
    done: usize,
}

impl<'a> Lengthened<'a> {
    /// `units`: of two rooms.
    #[inline(always)]
    pub(super) fn new(short: Short<'a>, units: &'a mut [Unit]) -> Self {
        Self { rooms: Rooms::new(short, units), done: 0 }
    }
}

impl<E: Element, const C: usize> Pieces<E, C> for Lengthened<'_> {
    #[inline(always)]
    fn enter<S: Simd>(&mut self, simd: S, here: Piece, next: Option<Piece>) {
        self.rooms.enter(simd, here, next);
    }

    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, pass: Pass, x: &[E::Activation<S>], sums: &mut [[Lanes<f32>; C]]) {
        let short = self.rooms.short;
        let Turn { weights, next, to } = self.rooms.turn();
        let vectors: &[Lanes<E::Unit>] = bytemuck::cast_slice(weights);
        let weights = vectors.as_chunks::<C>().0;
        let ahead = Lengthen::of(short, next, to, (pass.number, pass.of, weights.len()));
        tile_of::<S, E, C>(simd, pass.rows, weights, x, sums, ahead);
        self.done = pass.of * weights.len().div_ceil(pass.of);
    }

    #[inline(always)]
    fn leave<S: Simd>(&mut self, simd: S) {
        self.rooms.leave(simd, self.done);
    }
}
