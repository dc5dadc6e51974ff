//! Words of registers in another order, and pairs of bfloat16 taken apart.

use std::arch::x86_64::*;

use crate::simd::Lanes;

/// For `zip`: the places of two rows that come to stand in each vector, the second row's behind the first's.
pub(super) const ZIPPED: [[u16; 32]; 2] = {
    let mut places = [[0; 32]; 2];
    let mut at = 0;
    while at < 64 {
        places[at / 32][at % 32] = (at / 2 + at % 2 * 32) as u16;
        at += 1;
    }
    places
};

/// Pairs, then fours within quarters of registers; then the quarters of four registers are brought together.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn transposed(rows: &mut [Lanes<u32>; 16]) {
    vouched!({
        let mut a = [_mm512_setzero_si512(); 16];
        for (a, row) in a.iter_mut().zip(rows.iter()) {
            *a = _mm512_loadu_si512(row.as_ptr().cast());
        }
        let mut b = a;
        for i in [0, 2, 4, 6, 8, 10, 12, 14] {
            b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        }
        for i in [0, 4, 8, 12] {
            a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        // Even and odd quarters of two registers, and then of four.
        for i in [0, 1, 2, 3, 8, 9, 10, 11] {
            b[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(a[i], a[i + 4]);
            b[i + 4] = _mm512_shuffle_i32x4::<0b11_01_11_01>(a[i], a[i + 4]);
        }
        for i in 0..8 {
            a[i] = _mm512_shuffle_i32x4::<0b10_00_10_00>(b[i], b[i + 8]);
            a[i + 8] = _mm512_shuffle_i32x4::<0b11_01_11_01>(b[i], b[i + 8]);
        }
        for (a, row) in a.iter().zip(rows) {
            _mm512_storeu_si512(row.as_mut_ptr().cast(), *a);
        }
    })
}

/// The lowest byte of each, the first's lowest.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn joined(parts: [__m512; 4]) -> Lanes<u32> {
    const CHOSEN: i32 = 0xca; // where a bit of the first is set, the second's; else the third's
    let mut words = [0; 16];
    vouched!({
        let [a, b, c, d] = parts;
        let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
        let (c, d) = (_mm512_castps_si512(c), _mm512_castps_si512(d));
        let (byte, half) = (_mm512_set1_epi32(0xff), _mm512_set1_epi32(0xffff));
        let low = _mm512_ternarylogic_epi32::<CHOSEN>(byte, a, _mm512_slli_epi32::<8>(b));
        let high = _mm512_ternarylogic_epi32::<CHOSEN>(byte, c, _mm512_slli_epi32::<8>(d));
        let all = _mm512_ternarylogic_epi32::<CHOSEN>(half, low, _mm512_slli_epi32::<16>(high));
        _mm512_storeu_si512(words.as_mut_ptr().cast(), all);
    });
    words
}

/// The first and the second of 16 pairs of bfloat16.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn widened(pairs: __m512i) -> [__m512; 2] {
    vouched!({
        let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
        [first, _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32)))]
    })
}

/// The even and the odd of some numbers, in their order.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn alternated(even: __m512, odd: __m512) -> [__m512; 2] {
    vouched!({
        let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        [_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd)]
    })
}

/// The even numbers of two registers, and the odd ones.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn separated(first: __m512, second: __m512) -> [__m512; 2] {
    vouched!({
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        [_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second)]
    })
}

/// The sum of each register in the lane of its number. Parts of registers are brought together, so that each addition serves two of
/// them, then four, then all.
///
/// # Safety
/// The processor has AVX512F.
#[inline(always)]
pub(super) unsafe fn summed(a: &[__m512; 16]) -> __m512 {
    vouched!({
        // No closures: they would not be compiled for the processors that this is called on.
        let (mut fours, mut pairs) = ([_mm512_setzero_ps(); 4], [_mm512_setzero_ps(); 2]);
        for at in 0..4 {
            // A quarter of a register for each of four, whose numbers are 4 apart.
            let ab_low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a[at], a[at + 4]);
            let ab = _mm512_add_ps(ab_low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a[at], a[at + 4]));
            let cd_low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a[at + 8], a[at + 12]);
            let cd = _mm512_add_ps(cd_low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a[at + 8], a[at + 12]));
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            fours[at] = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
        }
        for at in 0..2 {
            let (a, b) = (_mm512_castps_pd(fours[2 * at]), _mm512_castps_pd(fours[2 * at + 1]));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            pairs[at] = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
        }
        let even = _mm512_shuffle_ps::<0b10_00_10_00>(pairs[0], pairs[1]);
        _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(pairs[0], pairs[1]))
    })
}
