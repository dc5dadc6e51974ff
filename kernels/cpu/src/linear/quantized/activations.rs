//! Activations in the order in which the tiles use them, as integers of 8 bits, float32 or bfloat16; and how each meets codes.

use bytemuck::{Pod, Zeroable};

use super::round::{SIGN, nearest, step};
use super::tile::Word;
use super::{Activations, QuantizedWeight};
use crate::element::{Bf16, Element, Format};
use crate::simd::{Kernel, Lanes, Simd};

/// What a segment of one row has besides its activations.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Head {
    /// Σ x, an i32 or the bits of an f32: a sum gets −zero times this.
    pub sum: u32,
    /// What one unit of an integer activation stands for; 1 for floats.
    pub scale: f32,
}

/// In what form activations meet codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Int8,
    Floats,
    /// bfloat16: a class that multiplies pairs of them does so, and others have the bits of `Floats`; with tiles, weights become bfloat16.
    Pairs,
}

impl Form {
    pub(super) fn of<E: Element>(activations: Activations) -> Self {
        match (activations, E::FORMAT) {
            (Activations::Int8, _) => Self::Int8,
            (Activations::Float, Format::Float32) => Self::Floats,
            (Activations::Float, Format::BFloat16) => Self::Pairs,
        }
    }
}

/// Four neighbouring activations, and sums of their products with codes.
pub(super) trait Quad {
    /// Of one row.
    type X<S: Simd>: Pod + Send + Sync;
    /// Of one row and 16 columns.
    type Sum<S: Simd>: Copy;

    /// −zero · Σ x
    fn start<S: Simd>(simd: S, zero: i32, head: Head) -> Self::Sum<S>;
    /// The same, with a zero point for each column.
    fn start_each<S: Simd>(simd: S, zeros: &Lanes<u32>, head: Head) -> Self::Sum<S>;
    /// sum[row][column] += Σ code[column] · x[row], over the four neighbours along K that are the `at`th quad of the words.
    fn add<S: Simd, W: Word, const M: usize, const C: usize>(
        simd: S,
        sums: &mut [[Self::Sum<S>; C]; M],
        words: &[Lanes<u32>; C],
        at: usize,
        x: &[Self::X<S>; M],
    );
    /// The sum as floats.
    fn finish<S: Simd>(simd: S, sum: Self::Sum<S>) -> S::V;
}

/// Integers of 8 bits.
pub(super) struct Int8;

impl Quad for Int8 {
    type X<S: Simd> = S::Quad;
    type Sum<S: Simd> = S::I;

    #[inline(always)]
    fn start<S: Simd>(simd: S, zero: i32, head: Head) -> S::I {
        simd.splat_i32(-zero * head.sum as i32)
    }

    #[inline(always)]
    fn start_each<S: Simd>(simd: S, zeros: &Lanes<u32>, head: Head) -> S::I {
        simd.mul_i32(simd.load_words(zeros), simd.splat_i32(-(head.sum as i32)))
    }

    #[inline(always)]
    fn add<S: Simd, W: Word, const M: usize, const C: usize>(
        simd: S,
        sums: &mut [[S::I; C]; M],
        words: &[Lanes<u32>; C],
        at: usize,
        x: &[S::Quad; M],
    ) {
        let mut codes = [simd.splat_i32(0); C];
        for (codes, word) in codes.iter_mut().zip(words) {
            *codes = W::quad(simd, simd.load_words(word), at);
        }
        for (sums, &x) in sums.iter_mut().zip(x) {
            for (sum, &codes) in sums.iter_mut().zip(&codes) {
                *sum = simd.dot_quads(*sum, codes, x);
            }
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(simd: S, sum: S::I) -> S::V {
        simd.to_float(sum)
    }
}

/// float32.
pub(super) struct Floats;

impl Quad for Floats {
    type X<S: Simd> = [f32; 4];
    type Sum<S: Simd> = S::V;

    #[inline(always)]
    fn start<S: Simd>(simd: S, zero: i32, head: Head) -> S::V {
        simd.splat(-zero as f32 * f32::from_bits(head.sum))
    }

    #[inline(always)]
    fn start_each<S: Simd>(simd: S, zeros: &Lanes<u32>, head: Head) -> S::V {
        simd.mul(simd.to_float(simd.load_words(zeros)), simd.splat(-f32::from_bits(head.sum)))
    }

    #[inline(always)]
    fn add<S: Simd, W: Word, const M: usize, const C: usize>(
        simd: S,
        sums: &mut [[S::V; C]; M],
        words: &[Lanes<u32>; C],
        at: usize,
        x: &[[f32; 4]; M],
    ) {
        for neighbour in 0..4_u32 {
            // Codes become floats once for all rows.
            let mut codes = [simd.splat(0.0); C];
            for (code, word) in codes.iter_mut().zip(words) {
                *code = W::float(simd, simd.load_words(word), at, neighbour);
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                let x = simd.splat(x[neighbour as usize]);
                for (sum, &code) in sums.iter_mut().zip(&codes) {
                    *sum = simd.fma(code, x, *sum);
                }
            }
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(_: S, sum: S::V) -> S::V {
        sum
    }
}

/// bfloat16, as it is: codes are exact in it, and so are products.
pub(super) struct Pairs;

impl Quad for Pairs {
    type X<S: Simd> = [S::Pair; 2];
    type Sum<S: Simd> = S::V;

    #[inline(always)]
    fn start<S: Simd>(simd: S, zero: i32, head: Head) -> S::V {
        Floats::start(simd, zero, head)
    }

    #[inline(always)]
    fn start_each<S: Simd>(simd: S, zeros: &Lanes<u32>, head: Head) -> S::V {
        Floats::start_each(simd, zeros, head)
    }

    #[inline(always)]
    fn add<S: Simd, W: Word, const M: usize, const C: usize>(
        simd: S,
        sums: &mut [[S::V; C]; M],
        words: &[Lanes<u32>; C],
        at: usize,
        x: &[[S::Pair; 2]; M],
    ) {
        for half in 0..2_u32 {
            // Once for all rows; the first again, since a loop that leaves one out is not unrolled.
            let mut codes = [W::two(simd, simd.load_words(&words[0]), at, half); C];
            for (codes, word) in codes.iter_mut().zip(words) {
                *codes = W::two(simd, simd.load_words(word), at, half);
            }
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sum, &codes) in sums.iter_mut().zip(&codes) {
                    *sum = simd.dot_codes(*sum, codes, x[half as usize]);
                }
            }
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(_: S, sum: S::V) -> S::V {
        sum
    }
}

/// Packs the rows of one block: `[quad][row]`, or floats `[k][row]` where codes are made floats once for several blocks, and their heads,
/// `[segment][row]`.
pub(super) struct Pack<'a, E> {
    pub words: &'a mut [u32],
    pub heads: &'a mut [Head],
    pub x: &'a [E],
    pub weight: &'a QuantizedWeight,
    pub is_wide: bool,
}

impl<E: Element> Kernel for Pack<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (depth, layout) = (self.weight.depth(), self.weight.layout());
        let rows = self.x.len() / depth;
        let mut wide = vec![0.0; layout.padded_depth()];
        for (row, x) in self.x.chunks_exact(depth).enumerate() {
            widen(&mut wide, x, self.weight.order());
            let whole = self.weight.has_whole_rows().then(|| scale_of(&wide));
            for (segment, x) in wide.chunks_exact(4 * layout.quads).enumerate() {
                let first = segment * layout.quads * rows + row;
                let head = match Form::of::<E>(self.weight.scheme().activations) {
                    _ if self.is_wide => {
                        let to: &mut [f32] = bytemuck::cast_slice_mut(self.words);
                        let first = segment * x.len() * rows + row;
                        for (to, x) in to[first..].iter_mut().step_by(rows).zip(x) {
                            *to = *x;
                        }
                        Head { sum: sum(x).to_bits(), scale: 1.0 }
                    }
                    Form::Int8 => {
                        let to: &mut [S::Quad] = bytemuck::cast_slice_mut(self.words);
                        let (scale, inverse) = whole.unwrap_or_else(|| scale_of(x));
                        let mut sum = 0;
                        for (to, x) in to[first..].iter_mut().step_by(rows).zip(x.as_chunks::<4>().0) {
                            // Within −127 to 127, so the lowest byte is all there is.
                            let codes = x.map(|x| nearest(x * inverse) as i8);
                            sum += codes.into_iter().map(i32::from).sum::<i32>();
                            *to = simd.quad(codes);
                        }
                        Head { sum: sum as u32, scale }
                    }
                    Form::Pairs => {
                        let to: &mut [[S::Pair; 2]] = bytemuck::cast_slice_mut(self.words);
                        for (to, x) in to[first..].iter_mut().step_by(rows).zip(x.as_chunks::<4>().0) {
                            let [a, b, c, d] = x.map(Bf16::from_f32); // exact: they were no more
                            *to = [simd.pair(a, b), simd.pair(c, d)];
                        }
                        Head { sum: sum(x).to_bits(), scale: 1.0 }
                    }
                    Form::Floats => {
                        let to: &mut [[f32; 4]] = bytemuck::cast_slice_mut(self.words);
                        for (to, x) in to[first..].iter_mut().step_by(rows).zip(x.as_chunks::<4>().0) {
                            *to = *x;
                        }
                        Head { sum: sum(x).to_bits(), scale: 1.0 }
                    }
                };
                self.heads[segment * rows + row] = head;
            }
        }
    }
}

/// A row as float32, in the order in which the weight's codes meet it; what fills up the last segment stays 0.
#[inline(always)]
pub(super) fn widen<E: Element>(wide: &mut [f32], x: &[E], order: Option<&[u32]>) {
    match order {
        None => wide.iter_mut().zip(x).for_each(|(wide, x)| *wide = x.to_f32()),
        Some(order) => wide.iter_mut().zip(order).for_each(|(wide, &at)| *wide = x[at as usize].to_f32()),
    }
}

/// The scale of these activations, and its inverse.
#[inline(always)]
pub(super) fn scale_of(x: &[f32]) -> (f32, f32) {
    step(largest(x), LEVELS)
}

/// The code of the largest activation.
const LEVELS: f32 = 127.0;

/// The largest magnitude. A NaN is larger than anything.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    f32::from_bits(x.iter().map(|x| x.to_bits() & !SIGN).max().unwrap_or(0))
}

/// In one order whatever the class: eight sums side by side, then one after the other.
#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    for x in x.as_chunks::<8>().0 {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x;
        }
    }
    sums.into_iter().sum()
}
