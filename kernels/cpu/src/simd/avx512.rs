//! AVX-512 (F, BW, DQ, VL): one register per vector. A class with VNNI differs in how `dot_quads` is done. The one that has BF16 too
//! stands in [`bf16`]: it differs in `dot_pairs` and its like, and in rounding to bfloat16 by an instruction.

use std::arch::x86_64::*;

use super::{Lanes, Line, Part, SQRT_HALF_BITS, Simd};
use crate::element::Bf16;
use crate::linear::short::{Exponents, REST, ShortUnit, Unit};
use arranged::{ZIPPED, alternated, joined, separated, summed, transposed, widened};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni(());

#[derive(Clone, Copy)]
pub(crate) struct Avx512Bf16(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX512 F, BW, DQ and VL.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

impl Avx512Vnni {
    /// # Safety
    /// The processor has AVX512 F, BW, DQ, VL and VNNI.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

impl Avx512Bf16 {
    /// # Safety
    /// The processor has AVX512 F, BW, DQ, VL, VNNI and BF16.
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

/// What all classes share.
macro_rules! lanes {
    () => {
        type V = __m512;
        type I = __m512i;
        const ROWS: usize = 6;
        const WIDTH: usize = 4;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            vouched!(_mm512_set1_ps(value))
        }

        #[inline(always)]
        fn load(self, from: &Lanes<f32>) -> __m512 {
            vouched!(_mm512_loadu_ps(from.as_ptr()))
        }

        #[inline(always)]
        fn store(self, value: __m512, to: &mut Lanes<f32>) {
            vouched!(_mm512_storeu_ps(to.as_mut_ptr(), value))
        }

        #[inline(always)]
        fn load_bf16(self, from: &Lanes<Bf16>) -> __m512 {
            vouched!({
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            })
        }

        #[inline(always)]
        fn store_bf16(self, value: __m512, to: &mut Lanes<Bf16>) {
            vouched!({
                let bits = _mm512_castps_si512(value);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
                let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
                let chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
                let narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(chosen));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), narrow)
            })
        }

        #[inline(always)]
        fn load_i8(self, from: &Lanes<i8>) -> __m512 {
            vouched!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))))
        }

        #[inline(always)]
        fn load_i32(self, from: &Lanes<i32>) -> __m512 {
            vouched!(_mm512_cvtepi32_ps(_mm512_loadu_si512(from.as_ptr().cast())))
        }

        #[inline(always)]
        fn lengthen(self, unit: ShortUnit<'_>, exponents: &Exponents, to: &mut Unit) {
            vouched!({
                let exponents = _mm512_loadu_si512(exponents.0.as_ptr().cast());
                let codes = _mm512_loadu_si512(unit.codes.as_ptr().cast());
                let [first, second] = unit.rests.map(|rests| _mm512_loadu_si512(rests.as_ptr().cast()));
                // Within each lane of 128 bits; the compiler makes one constant of it.
                let exchanged: [u8; 64] = std::array::from_fn(|at| (at as u8 % 16) ^ 1);
                let exchanged = _mm512_loadu_si512(exchanged.as_ptr().cast());
                let rest = _mm512_set1_epi16(REST as i16);
                // 0xf8: a or (b and c).
                let joined = |exponents, bits| _mm512_ternarylogic_epi32::<0xf8>(exponents, bits, rest);
                // The look-up takes five bits of each word; the fifth is the next vector's, and does not count.
                let vectors = [
                    joined(_mm512_permutexvar_epi16(codes, exponents), first),
                    joined(
                        _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(codes), exponents),
                        _mm512_shuffle_epi8(first, exchanged),
                    ),
                    joined(_mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(codes), exponents), second),
                    joined(
                        _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(codes), exponents),
                        _mm512_shuffle_epi8(second, exchanged),
                    ),
                ];
                for (vector, to) in vectors.into_iter().zip(to) {
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), vector);
                }
            })
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_add_ps(a, b))
        }

        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_sub_ps(a, b))
        }

        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_mul_ps(a, b))
        }

        #[inline(always)]
        fn div(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_div_ps(a, b))
        }

        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            vouched!(_mm512_fmadd_ps(a, b, c))
        }

        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_max_ps(a, b))
        }

        #[inline(always)]
        fn min(self, a: __m512, b: __m512) -> __m512 {
            vouched!(_mm512_min_ps(a, b))
        }

        #[inline(always)]
        fn select_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
            vouched!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
        }

        #[inline(always)]
        fn round(self, a: __m512) -> __m512 {
            vouched!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
        }

        #[inline(always)]
        fn scale(self, a: __m512, power: __m512) -> __m512 {
            vouched!(_mm512_scalef_ps(a, power))
        }

        #[inline(always)]
        fn scale_far(self, a: __m512, power: __m512) -> __m512 {
            self.scale(a, power)
        }

        #[inline(always)]
        fn split_exponent(self, a: __m512) -> (__m512, __m512) {
            vouched!({
                let bits = _mm512_castps_si512(a);
                let exponent = _mm512_srai_epi32::<23>(_mm512_sub_epi32(bits, _mm512_set1_epi32(SQRT_HALF_BITS)));
                let mantissa = _mm512_sub_epi32(bits, _mm512_slli_epi32::<23>(exponent));
                (_mm512_castsi512_ps(mantissa), _mm512_cvtepi32_ps(exponent))
            })
        }

        #[inline(always)]
        fn sum(self, a: __m512) -> f32 {
            vouched!({
                let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
                let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            })
        }

        #[inline(always)]
        fn widen(self, pairs: &Lanes<u32>) -> [__m512; 2] {
            vouched!(widened(_mm512_loadu_si512(pairs.as_ptr().cast())))
        }

        #[inline(always)]
        fn sum_each(self, a: &[__m512; 16]) -> __m512 {
            vouched!(summed(a))
        }

        #[inline(always)]
        fn alternate(self, [even, odd]: [__m512; 2]) -> [__m512; 2] {
            vouched!(alternated(even, odd))
        }

        #[inline(always)]
        fn separate(self, [first, second]: [__m512; 2]) -> [__m512; 2] {
            vouched!(separated(first, second))
        }

        #[inline(always)]
        fn max_lane(self, a: __m512) -> f32 {
            vouched!({
                let eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
                let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
            })
        }

        #[inline(always)]
        fn splat_i32(self, value: i32) -> __m512i {
            vouched!(_mm512_set1_epi32(value))
        }

        #[inline(always)]
        fn load_words(self, from: &Lanes<u32>) -> __m512i {
            vouched!(_mm512_loadu_si512(from.as_ptr().cast()))
        }

        #[inline(always)]
        fn store_words(self, a: __m512i, to: &mut Lanes<u32>) {
            vouched!(_mm512_storeu_si512(to.as_mut_ptr().cast(), a))
        }

        #[inline(always)]
        fn mul_i32(self, a: __m512i, b: __m512i) -> __m512i {
            vouched!(_mm512_mullo_epi32(a, b))
        }

        #[inline(always)]
        fn add_i32(self, a: __m512i, b: __m512i) -> __m512i {
            vouched!(_mm512_add_epi32(a, b))
        }

        #[inline(always)]
        fn to_float(self, a: __m512i) -> __m512 {
            vouched!(_mm512_cvtepi32_ps(a))
        }

        #[inline(always)]
        fn whole(self, a: __m512) -> __m512i {
            vouched!(_mm512_cvttps_epi32(a))
        }

        #[inline(always)]
        fn low_nibbles(self, a: __m512i) -> __m512i {
            vouched!(_mm512_and_si512(a, _mm512_set1_epi8(0x0f)))
        }

        #[inline(always)]
        fn high_nibbles(self, a: __m512i) -> __m512i {
            vouched!(_mm512_and_si512(_mm512_srli_epi32::<4>(a), _mm512_set1_epi8(0x0f)))
        }

        #[inline(always)]
        fn byte(self, a: __m512i, shift: u32) -> __m512 {
            vouched!({
                let shifted = _mm512_srl_epi32(a, _mm_cvtsi32_si128(shift as i32));
                _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(0xff)))
            })
        }

        /// Looked up in a register, which takes the place of the mask and the conversion: only four bits of an index count.
        #[inline(always)]
        fn nibble(self, a: __m512i, shift: u32) -> __m512 {
            vouched!({
                let shifted = _mm512_srl_epi32(a, _mm_cvtsi32_si128(shift as i32));
                let numbers = _mm512_setr_ps(
                    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
                );
                _mm512_permutexvar_ps(shifted, numbers)
            })
        }

        #[inline(always)]
        fn transpose(self, rows: &mut [Lanes<u32>; 16]) {
            vouched!(transposed(rows))
        }

        #[inline(always)]
        fn join_bytes(self, parts: [__m512; 4]) -> Lanes<u32> {
            vouched!(joined(parts))
        }

        #[inline(always)]
        fn zip(self, first: &[u8; 64], second: &[u8; 64], to: &mut [Lanes<u32>; 2]) {
            vouched!({
                let first = _mm512_loadu_si512(first.as_ptr().cast());
                let second = _mm512_loadu_si512(second.as_ptr().cast());
                for (to, places) in to.iter_mut().zip(&ZIPPED) {
                    let places = _mm512_loadu_si512(places.as_ptr().cast());
                    let pairs = _mm512_permutex2var_epi16(first, places, second);
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
                }
            })
        }

        #[inline(always)]
        fn stream_line(self, from: &[u16; 32], to: &mut Line) {
            vouched!(_mm512_stream_si512(to.0.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())))
        }

        #[inline(always)]
        fn drain(self) {
            vouched!(_mm_sfence())
        }

        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            vouched!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
        }
    };
}

/// What the classes with VNNI share: four codes are a word.
macro_rules! byte_quads {
    () => {
        type Quad = u32;

        #[inline(always)]
        fn quad(self, values: [i8; 4]) -> u32 {
            u32::from_le_bytes(values.map(|value| value as u8))
        }

        #[inline(always)]
        fn dot_quads(self, sum: __m512i, codes: __m512i, x: u32) -> __m512i {
            vouched!(_mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(x as i32)))
        }
    };
}

mod arranged;
mod bf16;

/// What the classes without BF16 share: a pair is two floats.
macro_rules! float_pairs {
    () => {
        type Pair = [f32; 2];
        type Codes = [__m512; 2];

        #[inline(always)]
        fn two_bytes(self, a: __m512i, shift: u32) -> [__m512; 2] {
            [self.byte(a, shift), self.byte(a, shift + 8)]
        }

        #[inline(always)]
        fn two_nibbles(self, a: __m512i, shift: u32) -> [__m512; 2] {
            [self.nibble(a, shift), self.nibble(a, shift + 8)]
        }

        #[inline(always)]
        fn dot_codes(self, sum: __m512, codes: [__m512; 2], x: [f32; 2]) -> __m512 {
            let sum = self.fma(codes[0], self.splat(x[0]), sum);
            self.fma(codes[1], self.splat(x[1]), sum)
        }

        /// Two neighbours in a lane: each becomes a float, whose lower half is zero, and they share the lane again.
        #[inline(always)]
        fn bf16_of_i8(self, from: &[i8; 32]) -> [Bf16; 32] {
            let mut out = [Bf16::default(); 32];
            vouched!({
                let pairs = _mm512_cvtepi16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
                let first = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(pairs)));
                let second = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32::<8>(pairs)));
                let both = _mm512_or_si512(second, _mm512_srli_epi32::<16>(_mm512_castps_si512(first)));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), both)
            });
            out
        }

        #[inline(always)]
        fn pair(self, first: Bf16, second: Bf16) -> [f32; 2] {
            [first.to_f32(), second.to_f32()]
        }

        #[inline(always)]
        fn dot_pairs(self, sum: __m512, weights: &Lanes<u32>, activation: [f32; 2]) -> __m512 {
            let [first, second] = self.widen(weights);
            let sum = self.fma(first, self.splat(activation[0]), sum);
            self.fma(second, self.splat(activation[1]), sum)
        }

        #[inline(always)]
        fn dot_blocks(self, sum: __m512, a: &[Bf16; 32], b: &[Bf16; 32]) -> __m512 {
            vouched!({
                let [a_first, a_second] = widened(_mm512_loadu_si512(a.as_ptr().cast()));
                let [b_first, b_second] = widened(_mm512_loadu_si512(b.as_ptr().cast()));
                _mm512_fmadd_ps(a_second, b_second, _mm512_fmadd_ps(a_first, b_first, sum))
            })
        }
    };
}

impl Simd for Avx512 {
    lanes!();
    float_pairs!();

    type Quad = [u32; 2];

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) -> P::Output {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
        #[inline(never)]
        fn function<P: Part<Avx512>>(simd: Avx512, part: P) -> P::Output {
            part.run(simd)
        }
        vouched!(function(self, part))
    }

    #[inline(always)]
    fn quad(self, values: [i8; 4]) -> [u32; 2] {
        super::sixteen_bits(values)
    }

    /// As AVX2 does it.
    #[inline(always)]
    fn dot_quads(self, sum: __m512i, codes: __m512i, x: [u32; 2]) -> __m512i {
        vouched!({
            let even = _mm512_and_si512(codes, _mm512_set1_epi32(0x00ff_00ff));
            let odd = _mm512_srli_epi16::<8>(codes);
            let even = _mm512_madd_epi16(even, _mm512_set1_epi32(x[0] as i32));
            let odd = _mm512_madd_epi16(odd, _mm512_set1_epi32(x[1] as i32));
            _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
        })
    }
}

impl Simd for Avx512Vnni {
    lanes!();
    float_pairs!();
    byte_quads!();

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) -> P::Output {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        #[inline(never)]
        fn function<P: Part<Avx512Vnni>>(simd: Avx512Vnni, part: P) -> P::Output {
            part.run(simd)
        }
        vouched!(function(self, part))
    }
}
