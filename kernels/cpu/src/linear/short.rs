//! bfloat16 weights in 12 bits each, without loss: reading them is what a decode step waits for.
//!
//! A weight's exponent could be any of 256, but nearly all weights of a matrix share a few: sixteen of them leave out one weight in
//! ten thousand or so. A panel names its sixteen; a weight is then its sign, its 7 bits of mantissa, and the number of its exponent.
//! The others stand in a list with all their bits, and are put right after their piece was lengthened.
//!
//! How a matrix of them lies in memory is told in [`matrix`]. Pieces are lengthened into the first- or second-level cache, mostly while the piece
//! before is multiplied ([`rooms`]), so that the products, and their bits, are those of weights that lie in memory as they are.

mod matrix;
mod rooms;

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::{Line, PAGE};
pub(crate) use matrix::{Order, Seen, Short, Sizes, pack};
pub(crate) use rooms::{Piece, Rooms, Turn};

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

/// Gives the lines of one panel's units, shortened, to `put`, with the units' numbers; what it takes to have them back is returned and added to `exceptions`.
fn shorten(
    panel: &[Unit],
    exceptions: &mut Vec<Exception>,
    mut put: impl FnMut(usize, [[u16; WEIGHTS]; 3]),
) -> Exponents {
    const UNNAMED: u16 = 16;
    let listed = most_frequent(panel);
    let mut codes = [UNNAMED; 256];
    for (code, &exponent) in listed.iter().enumerate() {
        codes[usize::from(exponent)] = code as u16;
    }
    for (number, unit) in panel.iter().enumerate() {
        let [mut front, mut back, mut coded] = [[0; WEIGHTS]; 3];
        let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
        let [first, second, third, fourth] = unit;
        let lanes = first.iter().zip(second).zip(third).zip(fourth);
        let mut seen = 0;
        for (lane, (((&a, &b), &c), &d)) in lanes.enumerate() {
            let [e, f, g, h] = [a, b, c, d].map(|bits| codes[exponent_of(bits)]);
            seen |= e | f | g | h;
            front[lane] = a & REST | (b & REST).swap_bytes();
            back[lane] = c & REST | (d & REST).swap_bytes();
            coded[lane] = e & 15 | (f & 15) << 4 | (g & 15) << 8 | (h & 15) << 12;
        }
        put(number, [front, back, coded]);
        if seen & UNNAMED != 0 {
            let weights = unit.as_flattened().iter().enumerate();
            let unnamed = weights.filter(|&(_, &bits)| codes[exponent_of(bits)] == UNNAMED);
            exceptions.extend(
                unnamed.map(|(at, &bits)| Exception { at: (number * UNIT_WEIGHTS + at) as u32, bits: bits.into() }),
            );
        }
    }
    Exponents(std::array::from_fn(|at| u16::from(listed[at % 16]) << 7))
}

/// The sixteen exponents that most weights have; of equals the lower.
fn most_frequent(panel: &[Unit]) -> [u8; 16] {
    let mut counts = [[0_u32; 256]; VECTORS]; // one for each vector: a count that was just raised is not waited for
    for unit in panel {
        let unit: &[[u16; WEIGHTS]; VECTORS] = bytemuck::cast_ref(unit);
        for (vector, counts) in unit.iter().zip(&mut counts) {
            for &bits in vector {
                counts[exponent_of(bits)] += 1;
            }
        }
    }
    let mut order: [u8; 256] = std::array::from_fn(|exponent| exponent as u8);
    let count = |exponent: u8| counts.iter().map(|counts| counts[usize::from(exponent)]).sum::<u32>();
    order.sort_by_key(|&exponent| std::cmp::Reverse(count(exponent)));
    std::array::from_fn(|at| order[at])
}

#[inline(always)]
fn exponent_of(bits: u16) -> usize {
    usize::from(bits >> 7 & 0xff)
}

#[cfg(test)]
mod tests;
