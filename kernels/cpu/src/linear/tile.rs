//! The inner loops: activations into the order in which they are used, then panels times row blocks.

use std::ops::Range;

use super::ahead::{Ahead, NextPiece, Nothing};
use super::{GROUP_ROWS, PackedWeight, Rows};
use crate::element::Element;
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// Units of K per piece: 512 × 256 bytes = 128 KiB of a 64-column panel. Two of them, and the rows' activations, fit the
/// second-level cache.
const PIECE: usize = 512;
/// With so few row blocks each uses weights up faster than the second-level cache gives them: 16 KiB stay in the first.
/// More blocks would rather load and store their sums less often (Zen 5, K = 3,072: 16 rows take 0.81 of the time that they
/// take with pieces of 1,024, and 24 rows with these pieces 1.13 of that with `PIECE`).
const SMALL_PIECE: usize = 64;
const FEW_BLOCKS: usize = 3;

/// Packs the rows of one block: `[unit][row]`.
pub(super) struct Activations<'a, E> {
    /// Words of `Activation`s.
    pub(super) packed: &'a mut [u32],
    pub(super) x: &'a [E],
    pub(super) depth: usize,
}

impl<E: Element> Kernel for Activations<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let packed: &mut [E::Activation<S>] = bytemuck::cast_slice_mut(self.packed);
        let rows = self.x.len() / self.depth;
        for (row, x) in self.x.chunks_exact(self.depth).enumerate() {
            for (to, values) in packed[row..].iter_mut().step_by(rows).zip(x.chunks(E::PACK)) {
                *to = E::activation(simd, values);
            }
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of row blocks; a panel's groups are neighbours,
/// so that its weights are still in the cache for the second.
pub(super) struct Columns<'a, E, O> {
    pub(super) out: &'a Shared<'a, O>,
    pub(super) packed: &'a [u32],
    pub(super) weight: &'a PackedWeight<E>,
    pub(super) bias: Option<&'a [E]>,
    pub(super) rows: Rows,
    pub(super) groups: usize,
    pub(super) units: Range<usize>,
}

impl<E: Element, O: Element> Kernel for Columns<'_, E, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match const { S::WIDTH } {
            4 => self.walk::<S, 4>(simd),
            1 => self.walk::<S, 1>(simd),
            other => unreachable!("no class has tiles of {other} vectors"),
        }
    }
}

impl<E: Element, O: Element> Columns<'_, E, O> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(self, simd: S) {
        let mut sums = vec![[[0.0; LANES]; C]; GROUP_ROWS.min(self.rows.rows)];
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = part(self.rows.blocks(), self.groups, group);
            let first = self.rows.block(blocks.start).start;
            let last = self.rows.block(blocks.end - 1).end;
            let sums = &mut sums[..last - first];
            self.multiply::<S, C>(simd, panel, blocks, sums);
            self.write::<C>(panel, first, sums);
        }
    }

    /// The sums of one panel's columns for all rows of these blocks.
    #[inline(always)]
    fn multiply<S: Simd, const C: usize>(
        &self,
        simd: S,
        panel: usize,
        blocks: Range<usize>,
        sums: &mut [[Lanes<f32>; C]],
    ) {
        let units = self.weight.units();
        let packed: &[E::Activation<S>] = bytemuck::cast_slice(self.packed);
        let (panel, _) = self.weight.panel(panel).as_chunks::<C>();
        let start = self.rows.block(blocks.start).start;
        sums.fill([[0.0; LANES]; C]);
        let piece = match blocks.len() {
            1 => units,
            2..=FEW_BLOCKS => SMALL_PIECE,
            _ => PIECE,
        };
        for from in (0..units).step_by(piece) {
            let to = units.min(from + piece);
            let weights = &panel[from..to];
            for (pass, block) in blocks.clone().enumerate() {
                let rows = self.rows.block(block);
                let x = &packed[rows.start * units..rows.end * units][from * rows.len()..to * rows.len()];
                let sums = &mut sums[rows.start - start..rows.end - start];
                if blocks.len() == 1 {
                    tile_of::<S, E, C>(simd, rows.len(), weights, x, sums, Nothing);
                } else {
                    tile_of::<S, E, C>(simd, rows.len(), weights, x, sums, NextPiece::of(weights, pass, blocks.len()));
                }
            }
        }
    }

    /// Adds the bias, rounds, and leaves out the columns that only fill up the last panel.
    #[inline(always)]
    fn write<const C: usize>(&self, panel: usize, first_row: usize, sums: &[[Lanes<f32>; C]]) {
        let columns = self.weight.columns();
        let from = panel * C * LANES;
        let to = columns.min(from + C * LANES);
        for (row, sums) in sums.iter().enumerate() {
            let at = (first_row + row) * columns;
            // SAFETY: this panel's columns of these rows belong to this unit of work alone.
            let out = unsafe { self.out.piece(at + from..at + to) };
            let sums = &sums.as_flattened()[..to - from];
            match self.bias {
                None => {
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        *out = O::from_f32(sum);
                    }
                }
                Some(bias) => {
                    for ((out, &sum), bias) in out.iter_mut().zip(sums).zip(&bias[from..to]) {
                        *out = O::from_f32(sum + bias.to_f32());
                    }
                }
            }
        }
    }
}

/// `rows` rows times 16 · C columns, as the tile of that many rows.
#[inline(always)]
fn tile_of<S: Simd, E: Element, const C: usize>(
    simd: S,
    rows: usize,
    weights: &[[Lanes<E::Unit>; C]],
    x: &[E::Activation<S>],
    sums: &mut [[Lanes<f32>; C]],
    ahead: impl Ahead,
) {
    match rows {
        1 => tile::<S, E, 1, C>(simd, weights, x, sums, ahead),
        2 => tile::<S, E, 2, C>(simd, weights, x, sums, ahead),
        3 => tile::<S, E, 3, C>(simd, weights, x, sums, ahead),
        4 => tile::<S, E, 4, C>(simd, weights, x, sums, ahead),
        5 => tile::<S, E, 5, C>(simd, weights, x, sums, ahead),
        6 => tile::<S, E, 6, C>(simd, weights, x, sums, ahead),
        other => unreachable!("no class takes {other} rows at once"),
    }
}

/// M rows times 16 · C columns over one piece of K; all sums stay in registers.
#[inline(always)]
fn tile<S: Simd, E: Element, const M: usize, const C: usize>(
    simd: S,
    weights: &[[Lanes<E::Unit>; C]],
    x: &[E::Activation<S>],
    sums: &mut [[Lanes<f32>; C]],
    ahead: impl Ahead,
) {
    // Loops of a known length, or the sums would pass through the stack.
    let sums: &mut [_; M] = sums.first_chunk_mut().expect("sums of each row");
    let mut held = [[simd.splat(0.0); C]; M];
    for (held, sums) in held.iter_mut().zip(sums.iter()) {
        for (held, sums) in held.iter_mut().zip(sums) {
            *held = simd.load(sums);
        }
    }
    for (step, (weights, x)) in weights.iter().zip(x.as_chunks::<M>().0).enumerate() {
        ahead.ask(simd, step);
        for (held, &x) in held.iter_mut().zip(x) {
            for (held, weights) in held.iter_mut().zip(weights) {
                *held = E::multiply_add(simd, *held, weights, x);
            }
        }
    }
    for (held, sums) in held.iter().zip(sums.iter_mut()) {
        for (&held, sums) in held.iter().zip(sums) {
            simd.store(held, sums);
        }
    }
}
