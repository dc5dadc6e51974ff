//! Pieces of bfloat16 weights as float32, where a class multiplies floats and many row blocks use each piece: widening weights beside every
//! block's products took a seventh of the instructions that multiply.

use super::PackedWeight;
use super::ahead::{Ahead, Lengthen, NextPiece};
use super::piece::{Pass, Pieces};
use super::short::{Piece, Rooms, Turn, Unit};
use crate::element::Element;
use crate::simd::{Lanes, Simd};

/// A unit's first weights along K, then its second.
pub(super) type WideUnit = [[Lanes<f32>; WIDTH]; 2];

/// Vectors of a unit: of panels as wide as they are where there are many registers.
pub(super) const WIDTH: usize = 4;

/// Weights that are widened as a piece is entered. Each sum takes in the same products in the same order as of weights that are not.
pub(super) struct Wide<'a, E: Element> {
    weight: &'a PackedWeight<E>,
    /// Where short weights are lengthened.
    rooms: Option<Rooms<'a>>,
    /// As they lie, if they are not short.
    here: &'a [Unit],
    wide: &'a mut [WideUnit],
    len: usize,
    /// Units of the next piece that have had their turn.
    done: usize,
}

impl<'a, E: Element> Wide<'a, E> {
    /// `units`: of two rooms, if the weight is short; `wide`: of a piece.
    #[inline(always)]
    pub(super) fn new(weight: &'a PackedWeight<E>, units: &'a mut [Unit], wide: &'a mut [WideUnit]) -> Self {
        let rooms = weight.short().map(|short| Rooms::new(short, units));
        Self { weight, rooms, here: &[], wide, len: 0, done: 0 }
    }
}

impl<E: Element> Pieces<E, WIDTH> for Wide<'_, E> {
    #[inline(always)]
    fn enter<S: Simd>(&mut self, simd: S, here: Piece, next: Option<Piece>) {
        self.len = here.len();
        let units = match &mut self.rooms {
            Some(rooms) => {
                rooms.enter(simd, here, next);
                rooms.turn().weights
            }
            None => {
                let panel: &[Lanes<u32>] = bytemuck::cast_slice(self.weight.panel(here.panel));
                self.here = &panel.as_chunks::<WIDTH>().0[here.from..here.to];
                self.here
            }
        };
        for (unit, wide) in units.iter().zip(self.wide.iter_mut()) {
            let [first, second] = wide;
            for ((pairs, first), second) in unit.iter().zip(first).zip(second) {
                let widened = simd.widen(pairs);
                simd.store(widened[0], first);
                simd.store(widened[1], second);
            }
        }
    }

    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, pass: Pass, x: &[E::Activation<S>], sums: &mut [[Lanes<f32>; WIDTH]]) {
        let wide = &self.wide[..self.len];
        let x: &[[f32; 2]] = bytemuck::cast_slice(x);
        match &mut self.rooms {
            Some(rooms) => {
                let short = rooms.short;
                let Turn { next, to, .. } = rooms.turn();
                let ahead = Lengthen::of(short, next, to, (pass.number, pass.of, wide.len()));
                tile_of(simd, pass.rows, wide, x, sums, ahead);
                self.done = pass.of * wide.len().div_ceil(pass.of);
            }
            None => tile_of(simd, pass.rows, wide, x, sums, NextPiece::of(self.here, pass.number, pass.of)),
        }
    }

    #[inline(always)]
    fn leave<S: Simd>(&mut self, simd: S) {
        if let Some(rooms) = &mut self.rooms {
            rooms.leave(simd, self.done);
        }
    }
}

/// `rows` rows times a panel's columns, as the tile of that many rows.
#[inline(always)]
fn tile_of<S: Simd>(
    simd: S,
    rows: usize,
    weights: &[WideUnit],
    x: &[[f32; 2]],
    sums: &mut [[Lanes<f32>; WIDTH]],
    ahead: impl Ahead,
) {
    match rows {
        1 => tile::<S, 1>(simd, weights, x, sums, ahead),
        2 => tile::<S, 2>(simd, weights, x, sums, ahead),
        3 => tile::<S, 3>(simd, weights, x, sums, ahead),
        4 => tile::<S, 4>(simd, weights, x, sums, ahead),
        5 => tile::<S, 5>(simd, weights, x, sums, ahead),
        6 => tile::<S, 6>(simd, weights, x, sums, ahead),
        other => unreachable!("no class takes {other} rows at once"),
    }
}

/// M rows times a panel's columns over one piece of K; all sums stay in registers.
#[inline(always)]
fn tile<S: Simd, const M: usize>(
    simd: S,
    weights: &[WideUnit],
    x: &[[f32; 2]],
    sums: &mut [[Lanes<f32>; WIDTH]],
    mut ahead: impl Ahead,
) {
    // Loops of a known length, or the sums would pass through the stack.
    let sums: &mut [_; M] = sums.first_chunk_mut().expect("sums of each row");
    let mut held = [[simd.splat(0.0); WIDTH]; M];
    for (held, sums) in held.iter_mut().zip(sums.iter()) {
        for (held, sums) in held.iter_mut().zip(sums) {
            *held = simd.load(sums);
        }
    }
    for (step, (unit, x)) in weights.iter().zip(x.as_chunks::<M>().0).enumerate() {
        ahead.step(simd, step);
        for (half, weights) in unit.iter().enumerate() {
            let mut vectors = [simd.splat(0.0); WIDTH];
            for (vector, weights) in vectors.iter_mut().zip(weights) {
                *vector = simd.load(weights);
            }
            for (held, x) in held.iter_mut().zip(x) {
                let x = simd.splat(x[half]);
                for (held, &weights) in held.iter_mut().zip(&vectors) {
                    *held = simd.fma(weights, x, *held);
                }
            }
        }
    }
    for (held, sums) in held.iter().zip(sums.iter_mut()) {
        for (&held, sums) in held.iter().zip(sums) {
            simd.store(held, sums);
        }
    }
}
