//! The class that has BF16 and VNNI too.

use std::arch::x86_64::*;

use super::{Avx512Bf16, ZIPPED, alternated, joined, separated, summed, transposed, widened};
use crate::element::Bf16;
use crate::linear::short::{Exponents, REST, ShortUnit, Unit};
use crate::simd::{Lanes, Line, Part, SQRT_HALF_BITS, Simd};

/// Where the words of both halves of a vector stand, in turn.
const ZIPPED_HALVES: [u16; 32] = {
    let mut places = [0; 32];
    let mut at = 0;
    while at < 32 {
        places[at] = (at / 2 + at % 2 * 16) as u16;
        at += 1;
    }
    places
};

impl Simd for Avx512Bf16 {
    lanes!();
    byte_quads!();

    type Pair = u32;
    /// Two bfloat16, the first in the lower half.
    type Codes = __m512i;
    const HAS_PAIRS: bool = true;

    #[inline(always)]
    fn apart<P: Part<Self>>(self, part: P) -> P::Output {
        #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
        #[inline(never)]
        fn function<P: Part<Avx512Bf16>>(simd: Avx512Bf16, part: P) -> P::Output {
            part.run(simd)
        }
        vouched!(function(self, part))
    }

    #[inline(always)]
    fn two_bytes(self, a: __m512i, shift: u32) -> __m512i {
        vouched!({
            let (first, second) = (self.byte(a, shift), self.byte(a, shift + 8));
            // Eight bits are all that a bfloat16 has room for: the lower halves are 0.
            _mm512_or_si512(_mm512_srli_epi32::<16>(_mm512_castps_si512(first)), _mm512_castps_si512(second))
        })
    }

    /// Looked up in a register, by the lower five bits of each half: so the fifth, which is another code's, makes no difference.
    #[inline(always)]
    fn two_nibbles(self, a: __m512i, shift: u32) -> __m512i {
        vouched!({
            let first = _mm512_srl_epi32(a, _mm_cvtsi32_si128(shift as i32));
            // To bit 16, from `shift + 8`.
            let second = if shift < 8 {
                _mm512_sll_epi32(a, _mm_cvtsi32_si128(8 - shift as i32))
            } else {
                _mm512_srl_epi32(a, _mm_cvtsi32_si128(shift as i32 - 8))
            };
            let places = _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second);
            let half =
                |first, second| i32::from(NIBBLES[first] as i16) & 0xffff | i32::from(NIBBLES[second] as i16) << 16;
            let numbers = _mm512_setr_epi32(
                half(0, 1),
                half(2, 3),
                half(4, 5),
                half(6, 7),
                half(8, 9),
                half(10, 11),
                half(12, 13),
                half(14, 15),
                half(0, 1),
                half(2, 3),
                half(4, 5),
                half(6, 7),
                half(8, 9),
                half(10, 11),
                half(12, 13),
                half(14, 15),
            );
            _mm512_permutexvar_epi16(places, numbers)
        })
    }

    #[inline(always)]
    fn dot_codes(self, sum: __m512, codes: __m512i, x: u32) -> __m512 {
        vouched!(_mm512_dpbf16_ps(sum, bf16s(_mm512_set1_epi32(x as i32)), bf16s(codes)))
    }

    #[inline(always)]
    fn bf16_of_i8(self, from: &[i8; 32]) -> [Bf16; 32] {
        let mut out = [Bf16::default(); 32];
        vouched!({
            let codes: *const __m128i = from.as_ptr().cast();
            let first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
            let second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(1))));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), bits_of(_mm512_cvtne2ps_pbh(second, first)))
        });
        out
    }

    #[inline(always)]
    fn turn(self, first: &[u8; 64], second: &[u8; 64], to: &mut [Lanes<u32>; 2]) {
        vouched!({
            let first = _mm512_loadu_si512(first.as_ptr().cast());
            let second = _mm512_loadu_si512(second.as_ptr().cast());
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            // Where the mask has ones the second operand's bits, else the third's.
            let even = _mm512_ternarylogic_epi32::<0xca>(upper, _mm512_slli_epi32::<16>(first), second);
            let odd = _mm512_ternarylogic_epi32::<0xca>(upper, first, _mm512_srli_epi32::<16>(second));
            _mm512_storeu_si512(to[0].as_mut_ptr().cast(), even);
            _mm512_storeu_si512(to[1].as_mut_ptr().cast(), odd);
        })
    }

    #[inline(always)]
    fn flush(self, a: __m512) -> __m512 {
        vouched!({
            const SUBNORMAL: i32 = 1 << 5;
            _mm512_maskz_mov_ps(!_mm512_fpclass_ps_mask::<SUBNORMAL>(a), a)
        })
    }

    #[inline(always)]
    fn nibble_less_8(self, a: __m512i, shift: u32) -> __m512 {
        vouched!({
            let shifted = _mm512_srl_epi32(a, _mm_cvtsi32_si128(shift as i32));
            let numbers =
                _mm512_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
            _mm512_permutexvar_ps(shifted, numbers)
        })
    }

    #[inline(always)]
    fn store_pairs(self, [first, second]: [__m512; 2], to: &mut Lanes<u32>) {
        vouched!({
            // The first's 16, then the second's.
            let halves = bits_of(_mm512_cvtne2ps_pbh(second, first));
            let places = _mm512_loadu_si512(ZIPPED_HALVES.as_ptr().cast());
            _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutexvar_epi16(places, halves));
        })
    }

    #[inline(always)]
    fn round_to_bf16(self, values: &[Lanes<f32>; 2]) -> [Bf16; 32] {
        let mut rounded = [Bf16::default(); 32];
        vouched!({
            let [first, second] = [self.load(&values[0]), self.load(&values[1])];
            _mm512_storeu_si512(rounded.as_mut_ptr().cast(), bits_of(_mm512_cvtne2ps_pbh(second, first)))
        });
        rounded
    }

    #[inline(always)]
    fn pair(self, first: Bf16, second: Bf16) -> u32 {
        u32::from(first.0) | u32::from(second.0) << 16
    }

    #[inline(always)]
    fn dot_pairs(self, sum: __m512, weights: &Lanes<u32>, activation: u32) -> __m512 {
        vouched!({
            let weights = _mm512_loadu_si512(weights.as_ptr().cast());
            let activation = _mm512_set1_epi32(activation as i32);
            _mm512_dpbf16_ps(sum, bf16s(activation), bf16s(weights))
        })
    }

    #[inline(always)]
    fn dot_blocks(self, sum: __m512, a: &[Bf16; 32], b: &[Bf16; 32]) -> __m512 {
        vouched!({
            let (a, b) = (_mm512_loadu_si512(a.as_ptr().cast()), _mm512_loadu_si512(b.as_ptr().cast()));
            _mm512_dpbf16_ps(sum, bf16s(a), bf16s(b))
        })
    }
}

/// 0 to 15 as bfloat16.
const NIBBLES: [u16; 16] = {
    let mut bits = [0; 16];
    let mut number = 0;
    while number < 16 {
        bits[number] = ((number as f32).to_bits() >> 16) as u16;
        number += 1;
    }
    bits
};

/// The same bits under the type that the bfloat16 intrinsics take.
#[inline(always)]
fn bf16s(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes for which every bit pattern is valid.
    unsafe { std::mem::transmute(bits) }
}

/// And back.
#[inline(always)]
fn bits_of(bf16s: __m512bh) -> __m512i {
    // SAFETY: as in `bf16s`.
    unsafe { std::mem::transmute(bf16s) }
}
