//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a block of four random words as a
//! pure function of a counter and a key. No state, so a draw depends on nothing but what it is for.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The four words for this counter and key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(counter.map(|word| [word]), key).map(|[word]| word)
}

/// The same for `N` counters at once: `counters[word][lane]` gives `[word][lane]`. Written lane by lane within each round,
/// which compilers turn into vector instructions.
#[inline(always)]
pub(crate) fn philox_lanes<const N: usize>(counters: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k0, mut k1]) = (counters, key);
    for _ in 0..ROUNDS {
        for lane in 0..N {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[lane]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[lane]);
            a[lane] = (second >> 32) as u32 ^ b[lane] ^ k0;
            b[lane] = second as u32;
            c[lane] = (first >> 32) as u32 ^ d[lane] ^ k1;
            d[lane] = first as u32;
        }
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::philox4x32;

    /// The known answers of Random123's `kat_vectors`.
    #[test]
    fn known_answers() {
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi.0, pi.1, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }
}
