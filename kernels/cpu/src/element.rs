//! The two storage formats, float32 and bfloat16. All arithmetic is float32; a bfloat16 result is rounded once, when stored.

use bytemuck::{Pod, Zeroable};

use crate::simd::{LANES, Lanes, Simd};

/// A bfloat16 as stored: the upper half of a float32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// Rounds to nearest, ties to even; a NaN stays a NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        // A NaN is made quiet by hand: rounding its payload up could carry into the exponent and make an infinity.
        let rounded = if value.is_nan() { bits | 0x0040_0000 } else { bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) };
        Self((rounded >> 16) as u16)
    }

    /// Exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// Names a storage format where it is a value and not a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// IEEE binary32.
    Float32,
    /// bfloat16.
    BFloat16,
}

impl Format {
    /// The name that torch uses too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float32 => size_of::<f32>(),
            Self::BFloat16 => size_of::<Bf16>(),
        }
    }
}

/// An element of a tensor: how it is loaded, stored, and multiplied in a linear layer. Implemented by `f32` and [`Bf16`].
pub trait Element: Pod + Send + Sync + Default {
    /// This format as a value.
    const FORMAT: Format;
    /// How many neighbours along K one packed unit holds.
    const PACK: usize;
    /// `PACK` weights of one output column, as stored in a packed weight.
    type Unit: Pod + Send + Sync;
    /// `PACK` activations of one row, as a packed weight's kernel takes them.
    type Activation<S: Simd>: Pod + Send + Sync;

    /// `16 · PACK` neighbouring elements: what one step of a dot product takes in.
    type Block: Pod + Send + Sync;

    /// Exact.
    fn to_f32(self) -> f32;
    /// Rounds to nearest even.
    fn from_f32(value: f32) -> Self;
    /// 16 elements as float32 lanes.
    fn load<S: Simd>(simd: S, from: &Lanes<Self>) -> S::V;
    /// Rounds 16 lanes to 16 elements.
    fn store<S: Simd>(simd: S, value: S::V, to: &mut Lanes<Self>);
    /// Packs `PACK` activations; `values` may be fewer at the end of K, and are then filled up with zeros.
    fn activation<S: Simd>(simd: S, values: &[Self]) -> Self::Activation<S>;
    /// `sum + weights · activation` for 16 columns, neighbours along K in order.
    fn multiply_add<S: Simd>(simd: S, sum: S::V, weights: &Lanes<Self::Unit>, activation: Self::Activation<S>) -> S::V;
    /// `sum + a · b`, lane by lane; of `PACK` neighbours in one lane, in order.
    fn dot<S: Simd>(simd: S, sum: S::V, a: &Self::Block, b: &Self::Block) -> S::V;
}

impl Element for f32 {
    const FORMAT: Format = Format::Float32;
    const PACK: usize = 1;
    type Unit = f32;
    type Activation<S: Simd> = f32;
    type Block = Lanes<f32>;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes<Self>) -> S::V {
        simd.load(from)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, value: S::V, to: &mut Lanes<Self>) {
        simd.store(value, to);
    }

    #[inline(always)]
    fn activation<S: Simd>(_: S, values: &[Self]) -> f32 {
        values[0]
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, sum: S::V, weights: &Lanes<f32>, activation: f32) -> S::V {
        simd.fma(simd.load(weights), simd.splat(activation), sum)
    }

    #[inline(always)]
    fn dot<S: Simd>(simd: S, sum: S::V, a: &Lanes<f32>, b: &Lanes<f32>) -> S::V {
        simd.fma(simd.load(a), simd.load(b), sum)
    }
}

impl Element for Bf16 {
    const FORMAT: Format = Format::BFloat16;
    const PACK: usize = 2;
    /// The earlier weight in the lower half.
    type Unit = u32;
    type Activation<S: Simd> = S::Pair;
    type Block = [Self; 2 * LANES];

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &Lanes<Self>) -> S::V {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, value: S::V, to: &mut Lanes<Self>) {
        simd.store_bf16(value, to);
    }

    #[inline(always)]
    fn activation<S: Simd>(simd: S, values: &[Self]) -> S::Pair {
        simd.pair(values[0], values.get(1).copied().unwrap_or_default())
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, sum: S::V, weights: &Lanes<u32>, activation: S::Pair) -> S::V {
        simd.dot_pairs(sum, weights, activation)
    }

    #[inline(always)]
    fn dot<S: Simd>(simd: S, sum: S::V, a: &Self::Block, b: &Self::Block) -> S::V {
        simd.dot_blocks(sum, a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even_and_keeps_nan() {
        let cases = [
            (0x3f80_8000, 0x3f80), // a tie goes down to even
            (0x3f81_8000, 0x3f82), // a tie goes up to even
            (0x3f80_8001, 0x3f81),
            (0x7f7f_ffff, 0x7f80), // past the largest: infinity
            (0x8000_0000, 0x8000),
        ];
        for (bits, expected) in cases {
            assert_eq!(Bf16::from_f32(f32::from_bits(bits)).0, expected, "{bits:#x}");
        }
        for bits in [0x7f80_0001_u32, 0x7fff_ffff, 0xffff_ffff] {
            assert!(Bf16::from_f32(f32::from_bits(bits)).to_f32().is_nan(), "{bits:#x}");
        }
    }
}
