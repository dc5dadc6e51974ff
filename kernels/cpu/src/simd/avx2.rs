//! AVX2 and FMA: two registers of eight lanes per vector.

use std::arch::x86_64::*;

use super::{Lanes, Part, SQRT_HALF_BITS, Simd};
use crate::element::Bf16;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Lanes 0 to 7, and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Two(__m256, __m256);

/// Lanes 0 to 7, and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct TwoInts(__m256i, __m256i);

impl Avx2 {
    /// # Safety
    /// The processor has AVX2 and FMA.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

/// An intrinsic, in a method of a token that vouches for it.
macro_rules! vouched {
    ($call:expr) => {
        // SAFETY: `self` exists, and `new`'s caller vouched for the features; memory is reached only through references of full length.
        unsafe { $call }
    };
}

impl Simd for Avx2 {
    type V = Two;
    type I = TwoInts;
    type Pair = [f32; 2];
    /// The first and third as 16-bit numbers, then the second and fourth.
    type Quad = [u32; 2];
    type Codes = [Two; 2];

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) -> P::Output {
        #[target_feature(enable = "avx2,fma")]
        #[inline(never)]
        fn function<P: Part<Avx2>>(simd: Avx2, part: P) -> P::Output {
            part.run(simd)
        }
        vouched!(function(self, part))
    }

    #[inline(always)]
    fn two_bytes(self, a: TwoInts, shift: u32) -> [Two; 2] {
        [self.byte(a, shift), self.byte(a, shift + 8)]
    }

    #[inline(always)]
    fn two_nibbles(self, a: TwoInts, shift: u32) -> [Two; 2] {
        [self.nibble(a, shift), self.nibble(a, shift + 8)]
    }

    #[inline(always)]
    fn dot_codes(self, sum: Two, codes: [Two; 2], x: [f32; 2]) -> Two {
        let sum = self.fma(codes[0], self.splat(x[0]), sum);
        self.fma(codes[1], self.splat(x[1]), sum)
    }
    const ROWS: usize = 6;
    const WIDTH: usize = 1;

    #[inline(always)]
    fn splat(self, value: f32) -> Two {
        vouched!(Two(_mm256_set1_ps(value), _mm256_set1_ps(value)))
    }

    #[inline(always)]
    fn load(self, from: &Lanes<f32>) -> Two {
        vouched!(Two(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))))
    }

    #[inline(always)]
    fn store(self, value: Two, to: &mut Lanes<f32>) {
        vouched!({
            _mm256_storeu_ps(to.as_mut_ptr(), value.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value.1);
        })
    }

    #[inline(always)]
    fn load_bf16(self, from: &Lanes<Bf16>) -> Two {
        vouched!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast()));
            Two(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)))
        })
    }

    #[inline(always)]
    fn store_bf16(self, value: Two, to: &mut Lanes<Bf16>) {
        vouched!({
            let low = rounded(value.0);
            let high = rounded(value.1);
            // The pack works within 128-bit halves: [low0, high0, low1, high1] is put in order by the permutation.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), packed);
        })
    }

    #[inline(always)]
    fn load_i8(self, from: &Lanes<i8>) -> Two {
        vouched!({
            let codes = _mm_loadu_si128(from.as_ptr().cast());
            let (low, high) = (_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(codes)));
            Two(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        })
    }

    /// Two neighbours in a lane: each becomes a float, whose lower half is zero, and they share the lane again.
    #[inline(always)]
    fn bf16_of_i8(self, from: &[i8; 32]) -> [Bf16; 32] {
        let mut out = [Bf16::default(); 32];
        vouched!({
            let (codes, words): (*const __m128i, *mut __m256i) = (from.as_ptr().cast(), out.as_mut_ptr().cast());
            for half in 0..2 {
                let pairs = _mm256_cvtepi16_epi32(_mm_loadu_si128(codes.add(half)));
                let first = _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(pairs)));
                let second = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srai_epi32::<8>(pairs)));
                let both = _mm256_or_si256(second, _mm256_srli_epi32::<16>(_mm256_castps_si256(first)));
                _mm256_storeu_si256(words.add(half), both);
            }
        });
        out
    }

    #[inline(always)]
    fn load_i32(self, from: &Lanes<i32>) -> Two {
        vouched!(Two(
            _mm256_cvtepi32_ps(_mm256_loadu_si256(from.as_ptr().cast())),
            _mm256_cvtepi32_ps(_mm256_loadu_si256(from.as_ptr().add(8).cast())),
        ))
    }

    #[inline(always)]
    fn add(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn sub(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn mul(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn div(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn fma(self, a: Two, b: Two, c: Two) -> Two {
        vouched!(Two(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)))
    }

    #[inline(always)]
    fn max(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn min(self, a: Two, b: Two) -> Two {
        vouched!(Two(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn select_less(self, a: Two, b: Two, yes: Two, no: Two) -> Two {
        vouched!(Two(
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
        ))
    }

    #[inline(always)]
    fn round(self, a: Two) -> Two {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        vouched!(Two(_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1)))
    }

    #[inline(always)]
    fn scale(self, a: Two, power: Two) -> Two {
        vouched!({
            let by = |a, power| {
                let shifted = _mm256_slli_epi32::<23>(_mm256_cvttps_epi32(power));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shifted))
            };
            Two(by(a.0, power.0), by(a.1, power.1))
        })
    }

    #[inline(always)]
    fn split_exponent(self, a: Two) -> (Two, Two) {
        vouched!({
            let split = |a| {
                let bits = _mm256_castps_si256(a);
                let exponent = _mm256_srai_epi32::<23>(_mm256_sub_epi32(bits, _mm256_set1_epi32(SQRT_HALF_BITS)));
                let mantissa = _mm256_sub_epi32(bits, _mm256_slli_epi32::<23>(exponent));
                (_mm256_castsi256_ps(mantissa), _mm256_cvtepi32_ps(exponent))
            };
            let (low, high) = (split(a.0), split(a.1));
            (Two(low.0, high.0), Two(low.1, high.1))
        })
    }

    #[inline(always)]
    fn sum(self, a: Two) -> f32 {
        vouched!({
            let eight = _mm256_add_ps(a.0, a.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn max_lane(self, a: Two) -> f32 {
        vouched!({
            let eight = _mm256_max_ps(a.0, a.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn pair(self, first: Bf16, second: Bf16) -> [f32; 2] {
        [first.to_f32(), second.to_f32()]
    }

    #[inline(always)]
    fn dot_pairs(self, sum: Two, weights: &Lanes<u32>, activation: [f32; 2]) -> Two {
        vouched!({
            let (first, second) = widened(weights.as_ptr().cast());
            let sum = self.fma(first, self.splat(activation[0]), sum);
            self.fma(second, self.splat(activation[1]), sum)
        })
    }

    #[inline(always)]
    fn dot_blocks(self, sum: Two, a: &[Bf16; 32], b: &[Bf16; 32]) -> Two {
        let ((a_first, a_second), (b_first, b_second)) =
            vouched!((widened(a.as_ptr().cast()), widened(b.as_ptr().cast())));
        self.fma(a_second, b_second, self.fma(a_first, b_first, sum))
    }

    #[inline(always)]
    fn splat_i32(self, value: i32) -> TwoInts {
        vouched!(TwoInts(_mm256_set1_epi32(value), _mm256_set1_epi32(value)))
    }

    #[inline(always)]
    fn load_words(self, from: &Lanes<u32>) -> TwoInts {
        vouched!(TwoInts(_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(8).cast())))
    }

    #[inline(always)]
    fn store_words(self, a: TwoInts, to: &mut Lanes<u32>) {
        vouched!({
            _mm256_storeu_si256(to.as_mut_ptr().cast(), a.0);
            _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), a.1);
        })
    }

    #[inline(always)]
    fn mul_i32(self, a: TwoInts, b: TwoInts) -> TwoInts {
        vouched!(TwoInts(_mm256_mullo_epi32(a.0, b.0), _mm256_mullo_epi32(a.1, b.1)))
    }

    #[inline(always)]
    fn add_i32(self, a: TwoInts, b: TwoInts) -> TwoInts {
        vouched!(TwoInts(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)))
    }

    #[inline(always)]
    fn to_float(self, a: TwoInts) -> Two {
        vouched!(Two(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)))
    }

    #[inline(always)]
    fn whole(self, a: Two) -> TwoInts {
        vouched!(TwoInts(_mm256_cvttps_epi32(a.0), _mm256_cvttps_epi32(a.1)))
    }

    #[inline(always)]
    fn low_nibbles(self, a: TwoInts) -> TwoInts {
        vouched!({
            let nibbles = _mm256_set1_epi8(0x0f);
            TwoInts(_mm256_and_si256(a.0, nibbles), _mm256_and_si256(a.1, nibbles))
        })
    }

    #[inline(always)]
    fn high_nibbles(self, a: TwoInts) -> TwoInts {
        vouched!(self.low_nibbles(TwoInts(_mm256_srli_epi32::<4>(a.0), _mm256_srli_epi32::<4>(a.1))))
    }

    #[inline(always)]
    fn byte(self, a: TwoInts, shift: u32) -> Two {
        vouched!(Two(bits(a.0, shift, 0xff), bits(a.1, shift, 0xff)))
    }

    #[inline(always)]
    fn nibble(self, a: TwoInts, shift: u32) -> Two {
        vouched!(Two(bits(a.0, shift, 0xf), bits(a.1, shift, 0xf)))
    }

    #[inline(always)]
    fn quad(self, values: [i8; 4]) -> [u32; 2] {
        super::sixteen_bits(values)
    }

    /// By products of 16 bits: those of 8 bits (`maddubs`) would saturate, since 2 · 255 · 127 is more than 32,767.
    #[inline(always)]
    fn dot_quads(self, sum: TwoInts, codes: TwoInts, x: [u32; 2]) -> TwoInts {
        vouched!({
            let (first, second) = (_mm256_set1_epi32(x[0] as i32), _mm256_set1_epi32(x[1] as i32));
            let of = |sum, codes| {
                let even = _mm256_and_si256(codes, _mm256_set1_epi32(0x00ff_00ff));
                let odd = _mm256_srli_epi16::<8>(codes);
                let products = _mm256_add_epi32(_mm256_madd_epi16(even, first), _mm256_madd_epi16(odd, second));
                _mm256_add_epi32(sum, products)
            };
            TwoInts(of(sum.0, codes.0), of(sum.1, codes.1))
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        vouched!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
    }
}

/// The bits of a mask, counted from `shift`, as floats.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn bits(words: __m256i, shift: u32, mask: i32) -> __m256 {
    vouched!({
        let shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift as i32));
        _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(mask)))
    })
}

/// The first and the second of 16 pairs of bfloat16.
///
/// # Safety
/// The processor has AVX2, and 64 bytes lie at the address.
#[inline(always)]
unsafe fn widened(pairs: *const __m256i) -> (Two, Two) {
    vouched!({
        let (low, high) = (_mm256_loadu_si256(pairs), _mm256_loadu_si256(pairs.add(1)));
        let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        let first =
            Two(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)));
        let second =
            Two(_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper)));
        (first, second)
    })
}

/// The upper halves after rounding to nearest even, in the lower 16 bits of each lane.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn rounded(value: __m256) -> __m256i {
    vouched!({
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, is_nan))
    })
}
