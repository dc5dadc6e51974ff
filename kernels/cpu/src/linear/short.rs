//! bfloat16 weights in 12 bits each, without loss: reading them is what a decode step waits for.
//!
//! A weight's exponent could be any of 256, but nearly all weights of a matrix share a few: sixteen of them leave out one weight in
//! ten thousand or so. A panel names its sixteen; a weight is then its sign, its 7 bits of mantissa, and the number of its exponent.
//! The others stand in a list with all their bits, and are put right after their piece was lengthened.
//!
//! How a matrix of them lies in memory is told in [`matrix`]. Pieces are lengthened into the first- or second-level cache, mostly while the piece
//! before is multiplied ([`rooms`]), so that the products, and their bits, are those of weights that lie in memory as they are.

mod matrix;
mod names;
mod rooms;
mod rows;
mod shorten;

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::PAGE;
pub(crate) use matrix::{Order, Seen, Short, Sizes, pack};
pub(crate) use rooms::{Piece, Rooms, Turn};
pub(crate) use shorten::ReadUnits;

use crate::simd::{LANES, Lanes};

/// Vectors of a unit.
pub(crate) const VECTORS: usize = 4;
/// Weights of a vector.
const WEIGHTS: usize = 2 * LANES;
const UNIT_WEIGHTS: usize = VECTORS * WEIGHTS;

/// A bfloat16's sign and mantissa.
pub(crate) const REST: u16 = 0x807f;

/// A unit as it lies in memory before and after: vectors of pairs.
pub(crate) type Unit = [Lanes<u32>; VECTORS];

/// The same in three quarters of the bytes, where its lines lie. Arithmetic on 16-bit words turns it back, without a move from lane to lane.
#[derive(Debug, Clone, Copy)]
pub struct ShortUnit<'a> {
    /// Signs and mantissas. A word: of the even vector's lane (e), where a bfloat16 has them, and in the bits between of the odd
    /// one's (o), with its bytes exchanged: `e ooooooo o eeeeeee`, the signs at bits 15 and 7.
    pub(crate) rests: [&'a [u16; WEIGHTS]; VECTORS / 2],
    /// Numbers of exponents. A word: four bits for the lane of each vector.
    pub(crate) codes: &'a [u16; WEIGHTS],
}

/// A panel's exponents, in the bits where a bfloat16 has its own. Twice, for those who look up five bits of a word and mean four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Exponents(pub(crate) [u16; WEIGHTS]);

#[cfg(target_arch = "x86_64")]
impl Exponents {
    /// Those of no panel.
    pub(crate) const NONE: Self = Self([0; WEIGHTS]);
}

/// A weight whose exponent the panel does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Exception {
    /// Unit · 128 + place in the unit.
    at: u32,
    bits: u32,
}

impl Exception {
    #[inline(always)]
    fn unit(&self) -> usize {
        self.at as usize / UNIT_WEIGHTS
    }
}

impl ShortUnit<'_> {
    /// What `Simd::lengthen` does, word by word.
    #[inline(always)]
    pub(crate) fn lengthened(&self, exponents: &Exponents, to: &mut Unit) {
        for (vector, to) in to.iter_mut().enumerate() {
            let to: &mut [u16; WEIGHTS] = bytemuck::cast_mut(to);
            for ((to, &rests), &codes) in to.iter_mut().zip(self.rests[vector / 2]).zip(self.codes) {
                *to = lengthened(vector, rests, codes, exponents);
            }
        }
    }
}

/// One weight of one of a unit's vectors.
#[inline(always)]
fn lengthened(vector: usize, rests: u16, codes: u16, exponents: &Exponents) -> u16 {
    let rest = if vector.is_multiple_of(2) { rests } else { rests.swap_bytes() };
    exponents.0[usize::from(codes >> (4 * vector) & 15)] | rest & REST
}

#[cfg(test)]
mod tests;
