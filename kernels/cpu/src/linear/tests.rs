//! The linear layer against sums in float64, and against itself: alone, in a batch, cut in any way.

use proptest::prelude::*;

use super::*;
use crate::element::Bf16;
use crate::gate::{Activation, gate_mul};
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

#[test]
fn what_is_gated_early_has_the_bits_of_what_is_gated_late() {
    let activations = [Activation::Silu, Activation::Gelu, Activation::GeluErf];
    for isa in Isa::available().into_iter().filter(|isa| isa.has_tiles()) {
        let mut were_short = 0;
        for (number, (threads, tokens, width, k, room)) in [
            (1, 1, 32, 64, 0),
            (2, 16, 96, 333, 7),
            (2, 40, 64, 65, 0),
            (3, 300, 1024, 33, 32),
            (2, 500, 128, 2070, 32),
            (2, 700, 160, 2050, 32),
        ]
        .into_iter()
        .enumerate()
        {
            let mut cpu = Cpu::new(isa, threads);
            cpu.grain = 1;
            let (activation, row) = (activations[number % 3], width + room);
            let (x, bias) = (values::<Bf16>(1, tokens * k), values::<Bf16>(3, 2 * width));
            let bias = number.is_multiple_of(2).then_some(&bias[..]);
            let weights = weights(2, 2 * width * k, number);
            let matrix = Matrix::of(&weights, k);
            for weight in [PackedWeight::pack(&mut cpu, &matrix), PackedWeight::pack_whole(&mut cpu, &matrix)] {
                were_short += usize::from(weight.short().is_some());
                let [mut late, mut early] = [(); 2].map(|()| vec![Bf16::from_f32(7.0); tokens * row]);
                let mut both = vec![Bf16::from_f32(f32::NAN); tokens * 2 * width];
                linear(&mut cpu, &mut both, &x, &weight, bias);
                gate_mul(&mut cpu, &mut late, row, &both, width, activation);
                let x = Spaced { data: &x[..], row: k };
                linear_gated(&mut cpu, &mut early, row, x, &weight, bias, activation);
                assert!(late == early, "{tokens} rows of {width} from {k}");
            }
        }
        assert!(were_short >= 3, "{were_short}");
    }
}

/// Normal weights but for some of any bits at all that are finite.
fn weights(seed: u32, count: usize, others: usize) -> Vec<Bf16> {
    let mut weights: Vec<Bf16> = values::<f32>(seed, count).iter().map(|&value| Bf16::from_f32(value * 0.02)).collect();
    for other in 0..others {
        let [at, bits, ..] = crate::philox4x32([other as u32, 1, 0, 0], [seed, 0]);
        weights[at as usize % count] = Bf16(bits as u16 & 0xbfff); // half of the exponents, so that no sum overflows
    }
    weights
}

#[test]
fn short_weights_give_the_bits_that_whole_ones_give() {
    for isa in Isa::available() {
        let mut were_short = 0;
        for (threads, tokens, n, k) in [
            (1, 1, 64, 1),
            (1, 1, 70, 333),
            (2, 5, 200, 64),
            (2, 8, 130, 1001),
            (3, 17, 130, 130),
            (1, 19, 64, 2070),
            (2, 31, 70, 2311),
            (2, 200, 200, 900),
            (3, 500, 130, 2070),
            (2, 500, 130, 2070),
            (2, 500, 130, 1500),
            (1, 400, 330, 1100),
            (1, 800, 64, 70),
        ] {
            let mut cpu = Cpu::new(isa, threads);
            cpu.grain = 1;
            for others in [0, n * k / 100] {
                let (x, bias) = (values::<Bf16>(7, tokens * k), values::<Bf16>(9, n));
                let weights = weights(8, n * k, others);
                let matrix = Matrix::of(&weights, k);
                let packed =
                    [PackedWeight::<Bf16>::pack(&mut cpu, &matrix), PackedWeight::pack_whole(&mut cpu, &matrix)];
                were_short += usize::from(packed[0].short().is_some());
                let [short, whole] = packed.map(|packed| {
                    let mut out = vec![f32::NAN; tokens * n];
                    linear(&mut cpu, &mut out, &x, &packed, Some(&bias));
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                assert!(short == whole, "{}: {tokens} x {n} x {k}, {others} others, {threads} threads", isa.name());
            }
        }
        let least = if isa.name().starts_with("avx512") || isa.name() == "amx" { 20 } else { 0 };
        assert!(were_short >= least, "{}: {were_short}", isa.name());
    }
}

/// Rows as they lie, in blocks that may be one row short, also where K is walked in stretches; short weights and whole ones.
#[test]
fn rows_with_room_behind_them_give_the_bits_of_rows_without() {
    let Some(isa) = Isa::named("amx") else { return };
    for (threads, n) in [(1, 64), (2, 200), (3, 1090)] {
        for k in [64, 512, 1536, 96] {
            let mut cpu = Cpu::new(isa, threads);
            cpu.grain = 1;
            let (weights, bias) = (weights(4, n * k, n), values::<Bf16>(3, n));
            let matrix = Matrix::of(&weights, k);
            for packed in [PackedWeight::<Bf16>::pack(&mut cpu, &matrix), PackedWeight::pack_whole(&mut cpu, &matrix)] {
                let room = packed.room_behind_rows();
                assert_eq!(room, if k == 96 { 0 } else { 32 });
                // Rows that are alone take one signal a step of a tile where tiles are emulated.
                let many = if isa == Isa::best() { &[300, 512, 700][..] } else { &[] };
                for &tokens in [1, 7, 16, 17, 31, 33, 47, 64].iter().chain(many) {
                    let x = values::<Bf16>(7, tokens * k);
                    let spoiled = vec![Bf16::from_f32(f32::NAN); room];
                    let spaced: Vec<Bf16> = x.chunks_exact(k).flat_map(|row| [row, &spoiled[..]].concat()).collect();
                    let [mut plain, mut out] = [vec![f32::NAN; tokens * n], vec![f32::NAN; tokens * n]];
                    for (plain, x) in plain.chunks_exact_mut(n).zip(x.chunks_exact(k)) {
                        linear(&mut cpu, plain, x, &packed, Some(&bias)); // alone: the first of its block
                    }
                    linear_spaced(&mut cpu, &mut out, Spaced { data: &spaced, row: k + room }, &packed, Some(&bias));
                    let same = out.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same && !out[0].is_nan(), "{tokens} x {n} x {k} on {threads}");
                }
            }
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

/// Where there are tiles, so many results go past the caches, and in the longest of these K is walked in stretches, with several panels'
/// sums that wait together.
#[test]
fn many_results_are_those_of_rows_alone() {
    for isa in Isa::available() {
        for (n, k) in [(576, 70), (600, 40), (1090, 1300)] {
            let (tokens, bias) = (500, values::<Bf16>(12, n));
            let (x, weight) = (values::<Bf16>(10, tokens * k), values::<Bf16>(11, n * k));
            let mut cpu = Cpu::new(isa, 3);
            let packed = PackedWeight::<Bf16>::pack(&mut cpu, &Matrix::of(&weight, k));
            let mut out = vec![Bf16(0x7fff); tokens * n];
            linear(&mut cpu, &mut out, &x, &packed, Some(&bias));
            for token in [0, 1, 250, 498, 499] {
                let mut alone = vec![Bf16(0x7fff); n];
                linear(&mut cpu, &mut alone, &x[token * k..(token + 1) * k], &packed, Some(&bias));
                assert!(out[token * n..(token + 1) * n] == alone, "{}: row {token} of {n} columns", isa.name());
            }
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
