//! Pieces of bfloat16 weights as float32, where a class multiplies floats and several row blocks use each piece: widened beside every
//! block's products, weights took a seventh of the instructions that multiply.
//!
//! A piece is widened, and lengthened if it is short, in one go as it is entered: instructions that do so take the places of those that
//! multiply, so doing it beside them gains nothing. Beside the products memory is asked for units further on.

use std::ops::Range;

use super::PackedWeight;
use super::ahead::Ahead;
use super::piece::{Pass, Pieces};
use super::short::{Piece, Seen, Short, Unit, VECTORS};
use super::tile::tile_of;
use crate::element::Element;
use crate::simd::{LANES, Lanes, Simd};

/// A unit's first weights along K, then its second.
pub(super) type WideUnit = [[Lanes<f32>; VECTORS]; 2];

/// Weights that are widened as a piece is entered. Each sum takes in the same products in the same order as of weights that are not.
pub(super) struct Wide<'a, E: Element> {
    weight: &'a PackedWeight<E>,
    wide: &'a mut [WideUnit],
    holds: Piece,
    seen: Seen,
}

impl<'a, E: Element> Wide<'a, E> {
    /// `wide`: of a piece.
    #[inline(always)]
    pub(super) fn new(weight: &'a PackedWeight<E>, wide: &'a mut [WideUnit]) -> Self {
        Self { weight, wide, holds: Piece::NONE, seen: Seen::NONE }
    }

    #[inline(always)]
    fn fill<S: Simd>(&mut self, simd: S, piece: Piece) {
        let wide = &mut self.wide[..piece.len()];
        if let Some(short) = self.weight.short() {
            let exponents = short.exponents(piece.panel);
            let first = short.first_unit(piece.panel) + piece.from;
            for (number, wide) in (first..).zip(wide.iter_mut()) {
                let mut unit = [[0; LANES]; VECTORS];
                simd.lengthen(short.unit(number), exponents, &mut unit);
                widen(simd, &unit, wide);
            }
            for (unit, place, bits) in self.seen.exceptions(&short, piece) {
                let (vector, word) = (place / (2 * LANES), place % (2 * LANES));
                wide[unit][word % 2][vector][word / 2] = f32::from_bits(u32::from(bits) << 16);
            }
        } else {
            for (unit, wide) in plain(self.weight, piece).iter().zip(wide) {
                widen(simd, unit, wide);
            }
        }
        self.holds = piece;
    }
}

impl<E: Element> Pieces<E, VECTORS> for Wide<'_, E> {
    #[inline(always)]
    fn enter<S: Simd>(&mut self, simd: S, here: Piece, _: Option<Piece>) {
        if self.holds != here {
            self.fill(simd, here);
        }
    }

    #[inline(always)]
    fn multiply<S: Simd>(&mut self, simd: S, pass: Pass, x: &[E::Activation<S>], sums: &mut [[Lanes<f32>; VECTORS]]) {
        let weights = self.wide[..self.holds.len()].as_flattened();
        let next_x =
            x.as_ptr().cast::<u8>().wrapping_add(pass.rows * self.weight.units() * size_of::<E::Activation<S>>());
        let ahead = Further::of(self.weight, self.holds, pass, weights.len(), next_x);
        tile_of::<S, f32, VECTORS>(simd, pass.rows, weights, bytemuck::cast_slice(x), sums, ahead);
    }

    #[inline(always)]
    fn leave<S: Simd>(&mut self, _: S) {}
}

/// A piece's units, which lie as they are multiplied.
#[inline(always)]
fn plain<E: Element>(weight: &PackedWeight<E>, piece: Piece) -> &[Unit] {
    let panel: &[Lanes<u32>] = bytemuck::cast_slice(weight.panel(piece.panel));
    &panel.as_chunks().0[piece.from..piece.to]
}

#[inline(always)]
fn widen<S: Simd>(simd: S, unit: &Unit, to: &mut WideUnit) {
    let [firsts, seconds] = to;
    for ((pairs, first), second) in unit.iter().zip(firsts).zip(seconds) {
        let widened = simd.widen(pairs);
        simd.store(widened[0], first);
        simd.store(widened[1], second);
    }
}

/// Asks for units further on: in all passes over a piece for about as many as it has.
struct Further<'a> {
    place: Place<'a>,
    units: Range<usize>,
    /// Steps from one unit to the next, and until the next.
    each: usize,
    left: usize,
    /// Activations of the next block: the processor foresees one linear stream, and they are as far away as a block is deep.
    x: *const u8,
    x_step: usize,
}

/// Where units lie.
enum Place<'a> {
    Short(Short<'a>),
    Plain(*const Unit),
}

/// Units are asked for so far ahead of those that are widened: 8 KiB of short ones.
const FURTHER_UNITS: usize = 42;

impl<'a> Further<'a> {
    /// The share of one pass of so many steps over this piece.
    #[inline(always)]
    fn of<E: Element>(weight: &'a PackedWeight<E>, piece: Piece, pass: Pass, steps: usize, x: *const u8) -> Self {
        let share = piece.len().div_ceil(pass.of);
        // Panels lie one behind the other.
        let first = piece.panel * weight.units() + piece.to + FURTHER_UNITS + pass.number * share;
        let place = match weight.short() {
            Some(short) => Place::Short(short),
            None => Place::Plain(plain(weight, Piece::NONE).as_ptr()),
        };
        Self {
            place,
            units: first..first + share,
            each: steps / share,
            left: 0,
            x,
            x_step: pass.rows * size_of::<f32>(),
        }
    }
}

impl Ahead for Further<'_> {
    #[inline(always)]
    fn step<S: Simd>(&mut self, simd: S, step: usize) {
        simd.prefetch(self.x.wrapping_add(step * self.x_step));
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        self.left = self.each - 1;
        let Some(unit) = self.units.next() else { return };
        match self.place {
            Place::Short(short) => {
                for line in short.addresses(unit) {
                    simd.prefetch(line);
                }
            }
            Place::Plain(first) => {
                for vector in 0..VECTORS {
                    simd.prefetch(first.wrapping_add(unit).cast::<Lanes<u32>>().wrapping_add(vector).cast());
                }
            }
        }
    }
}
