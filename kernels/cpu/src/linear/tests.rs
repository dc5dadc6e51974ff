//! The linear layer against sums in float64, and against itself: alone, in a batch, cut in any way.

use proptest::prelude::*;

use super::*;
use crate::element::Bf16;
use crate::{Element, Isa};

fn values<E: Element>(seed: u32, count: usize) -> Vec<E> {
    let value = |at: usize| {
        let word = crate::philox4x32([at as u32, 0, 0, 0], [seed, 0])[0];
        E::from_f32((word >> 8) as f32 / 8_388_608.0 - 1.0)
    };
    (0..count).map(value).collect()
}

fn check<E: Element + PartialEq + std::fmt::Debug>(isa: Isa, threads: usize, tokens: usize, n: usize, k: usize) {
    let mut cpu = Cpu::new(isa, threads);
    cpu.grain = 1; // so that small cases are shared too
    let (x, weight, bias) = (values::<E>(1, tokens * k), values::<E>(2, n * k), values::<E>(3, n));
    let packed = PackedWeight::<E>::pack(&mut cpu, &Matrix::of(&weight, k));
    let mut out = vec![f32::NAN; tokens * n];
    linear(&mut cpu, &mut out, &x, &packed, Some(&bias));
    for (token, out) in out.chunks_exact(n).enumerate() {
        let x = &x[token * k..(token + 1) * k];
        for (column, &got) in out.iter().enumerate() {
            let weights = &weight[column * k..(column + 1) * k];
            let products = x.iter().zip(weights).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32()));
            let (exact, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let exact = exact + f64::from(bias[column].to_f32());
            // k roundings of partial sums, each no larger than the sum of sizes.
            let bound = (size + 1.0) * (k + 2) as f64 * f64::from(f32::EPSILON);
            assert!((f64::from(got) - exact).abs() <= bound, "{got} for {exact} at {token}, {column}");
        }
    }
    let mut single = Cpu::new(isa, 1);
    for token in 0..tokens {
        let mut alone = vec![f32::NAN; n];
        linear(&mut single, &mut alone, &x[token * k..(token + 1) * k], &packed, Some(&bias));
        let row = &out[token * n..(token + 1) * n];
        assert!(alone.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()), "row {token} alone differs");
    }
}

#[test]
fn a_row_is_right_and_the_same_alone_and_in_a_batch() {
    for isa in Isa::available() {
        for (threads, tokens, n, k) in
            [(1, 1, 1, 1), (2, 7, 65, 3), (3, 100, 130, 64), (2, 2, 64, 4101), (1, 800, 16, 9), (2, 300, 40, 2111)]
        {
            check::<f32>(isa, threads, tokens, n, k);
            check::<Bf16>(isa, threads, tokens, n, k);
        }
    }
}

/// What AMX makes of 32 neighbours along K: the firsts of all pairs and the seconds are two sums, which are added to the output's.
/// A change here changes the arithmetic: raise `VERSION` in `Cpu::numerics_id`.
#[test]
fn tiles_add_up_in_the_order_that_the_numerics_id_stands_for() {
    let Some(isa) = Isa::named("amx") else { return };
    for (tokens, n, k) in [(1, 20, 32), (3, 70, 100), (40, 33, 2101)] {
        let (x, weight) = (values::<Bf16>(5, tokens * k), values::<Bf16>(6, n * k));
        let mut cpu = Cpu::new(isa, 2);
        let packed = PackedWeight::<Bf16>::pack(&mut cpu, &Matrix::of(&weight, k));
        let mut out = vec![f32::NAN; tokens * n];
        linear(&mut cpu, &mut out, &x, &packed, None);
        for (at, got) in out.into_iter().enumerate() {
            let (x, weight) = (&x[at / n * k..][..k], &weight[at % n * k..][..k]);
            let mut sum = 0.0_f32;
            for (x, weight) in x.chunks(32).zip(weight.chunks(32)) {
                let mut sums = [0.0_f32; 2];
                for (at, (x, weight)) in x.iter().zip(weight).enumerate() {
                    sums[at % 2] = x.to_f32().mul_add(weight.to_f32(), sums[at % 2]);
                }
                sum += sums[0] + sums[1];
            }
            assert_eq!(got.to_bits(), sum.to_bits(), "{got} for {sum} at {at} of {tokens} x {n} x {k}");
        }
    }
}

#[test]
fn chunks_are_of_whole_pairs_of_blocks_where_there_are_tiles() {
    for isa in Isa::available() {
        for (rows, row_bytes, expected) in
            [(0, 64, 32), (1, 6144, 32), (512, 2048, 512), (513, 2048, 288), (512, 6144, 128), (10, 1 << 30, 32)]
        {
            let expected = if isa.name() == "amx" { expected } else { CHUNK_ROWS };
            assert_eq!(chunk_rows(isa, rows, row_bytes), expected, "{} rows of {}", rows, row_bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_shape_on_any_threads(threads in 1_usize..4, tokens in 1_usize..71, n in 1_usize..150, k in 1_usize..80) {
        for isa in Isa::available() {
            check::<f32>(isa, threads, tokens, n, k);
            check::<Bf16>(isa, threads, tokens, n, k);
        }
    }
}
