//! The inner loops: activations into the order in which they are used, then panels times row blocks.

use std::ops::Range;

use super::ahead::Ahead;
use super::out::Out;
use super::piece::{AsTheyLie, Cut, Lengthened, Pass, Pieces};
use super::short::{Piece, Unit};
use super::wide::{Wide, WideUnit};
use super::{PackedWeight, Rows};
use crate::element::{Element, Format};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::part;

/// Packs the rows of one block: `[unit][row]`, or `[k][row]` as float32 where weights are widened.
pub(super) struct Activations<'a, E> {
    /// Words of `Activation`s, or float32.
    pub(super) packed: &'a mut [u32],
    pub(super) x: &'a [E],
    pub(super) depth: usize,
    pub(super) is_wide: bool,
}

impl<E: Element> Kernel for Activations<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = self.x.len() / self.depth;
        if self.is_wide {
            let packed: &mut [f32] = bytemuck::cast_slice_mut(self.packed);
            let (packed, behind) = packed.split_at_mut(self.x.len());
            behind.fill(0.0);
            for (row, x) in self.x.chunks_exact(self.depth).enumerate() {
                for (to, value) in packed[row..].iter_mut().step_by(rows).zip(x) {
                    *to = value.to_f32();
                }
            }
            return;
        }
        let packed: &mut [E::Activation<S>] = bytemuck::cast_slice_mut(self.packed);
        for (row, x) in self.x.chunks_exact(self.depth).enumerate() {
            for (to, values) in packed[row..].iter_mut().step_by(rows).zip(x.chunks(E::PACK)) {
                *to = E::activation(simd, values);
            }
        }
    }
}

/// Some of the units of work of one call: a unit is one panel and one group of row blocks; a panel's groups are neighbours,
/// so that its weights are still in the cache for the second.
pub(super) struct Columns<'a, E> {
    pub(super) out: &'a Out<'a>,
    pub(super) packed: &'a [u32],
    pub(super) weight: &'a PackedWeight<E>,
    pub(super) bias: Option<&'a [E]>,
    pub(super) rows: Rows,
    pub(super) groups: usize,
    pub(super) units: Range<usize>,
    pub(super) cut: Cut,
    /// Whether the processor foresees what lies further on.
    pub(super) foresees: bool,
    /// Of this thread: where sums wait, a unit's for each row of a group.
    pub(super) sums: &'a mut [f32],
    /// Of this thread: where short units are lengthened, two rooms.
    pub(super) room: &'a mut [Unit],
    /// Of this thread: where a piece is widened.
    pub(super) wide: &'a mut [WideUnit],
}

impl<E: Element> Kernel for Columns<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (weight, room, sums) = (self.weight, std::mem::take(&mut self.room), std::mem::take(&mut self.sums));
        let (wide, foresees) = (std::mem::take(&mut self.wide), self.foresees);
        match const { S::WIDTH } {
            4 => {
                if const { matches!(E::FORMAT, Format::BFloat16) && !S::HAS_PAIRS } && self.cut.is_wide {
                    self.walk::<S, 4>(simd, Wide::new(weight, wide), sums);
                } else if const { matches!(E::FORMAT, Format::BFloat16) }
                    && let Some(short) = weight.short()
                {
                    self.walk::<S, 4>(simd, Lengthened::new(short, room), sums);
                } else {
                    self.walk::<S, 4>(simd, AsTheyLie::new(weight, foresees), sums);
                }
            }
            1 => self.walk::<S, 1>(simd, AsTheyLie::new(weight, foresees), sums),
            other => unreachable!("no class has tiles of {other} vectors"),
        }
    }
}

impl<E: Element> Columns<'_, E> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(self, simd: S, mut pieces: impl Pieces<E, C>, sums: &mut [f32]) {
        let (sums, _) = sums.as_chunks_mut::<LANES>();
        let (sums, _) = sums.as_chunks_mut::<C>();
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = part(self.rows.blocks(), self.groups, group);
            let first = self.rows.block(blocks.start).start;
            let last = self.rows.block(blocks.end - 1).end;
            let sums = &mut sums[..last - first];
            // A piece that is a whole panel stays where it is for all groups.
            let is_whole = self.cut.piece == self.weight.units();
            let next = if is_whole { (panel + 1) * self.groups } else { unit + 1 };
            let then = self.units.contains(&next).then(|| next / self.groups);
            self.multiply::<S, C>(simd, &mut pieces, (panel, then), blocks, sums);
            self.write::<S, C>(simd, panel, first, sums);
        }
    }

    /// The sums of one panel's columns for all rows of these blocks; `then`: which panel's are wanted afterwards.
    #[inline(always)]
    fn multiply<S: Simd, const C: usize>(
        &self,
        simd: S,
        pieces: &mut impl Pieces<E, C>,
        (panel, then): (usize, Option<usize>),
        blocks: Range<usize>,
        sums: &mut [[Lanes<f32>; C]],
    ) {
        let depth = self.weight.units();
        let packed: &[E::Activation<S>] = bytemuck::cast_slice(self.packed);
        let start = self.rows.block(blocks.start).start;
        sums.fill([[0.0; LANES]; C]);
        for from in (0..depth).step_by(self.cut.piece) {
            let here = self.piece_at(panel, from);
            let next = if here.to < depth { Some((panel, here.to)) } else { then.map(|panel| (panel, 0)) };
            pieces.enter(simd, here, next.map(|(panel, from)| self.piece_at(panel, from)));
            for (number, block) in blocks.clone().enumerate() {
                let rows = self.rows.block(block);
                let x = &packed[rows.start * depth..rows.end * depth][from * rows.len()..here.to * rows.len()];
                let sums = &mut sums[rows.start - start..rows.end - start];
                let pass = Pass { number, of: blocks.len(), rows: rows.len() };
                pieces.multiply(simd, pass, x, sums);
            }
            pieces.leave(simd);
        }
    }

    #[inline(always)]
    fn piece_at(&self, panel: usize, from: usize) -> Piece {
        Piece { panel, from, to: self.weight.units().min(from + self.cut.piece) }
    }

    /// Adds the bias, rounds, and leaves out the columns that only fill up the last panel.
    #[inline(always)]
    fn write<S: Simd, const C: usize>(&self, simd: S, panel: usize, first_row: usize, sums: &[[Lanes<f32>; C]]) {
        let columns = self.weight.columns();
        let from = panel * C * LANES;
        let to = columns.min(from + C * LANES);
        let bias = self.bias.map(|bias| &bias[from..to]);
        for (row, sums) in sums.iter().enumerate() {
            let at = (first_row + row) * columns + from;
            // SAFETY: this panel's columns of these rows belong to this unit of work alone.
            unsafe { self.out.write(simd, at, &sums.as_flattened()[..to - from], bias, false) };
        }
    }
}

/// `rows` rows times 16 · C columns, as the tile of that many rows.
#[inline(always)]
pub(super) fn tile_of<S: Simd, E: Element, const C: usize>(
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
    mut ahead: impl Ahead,
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
        ahead.step(simd, step);
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
