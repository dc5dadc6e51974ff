//! Quantised products against exact sums of the same codes, against each other, and against sums that were once written down.

use proptest::prelude::*;

use super::round::{nearest, step};
use super::*;
use crate::element::Bf16;
use crate::{Isa, Matrix};

fn words(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count).map(move |at| crate::philox4x32([at as u32, 0, 0, 0], [seed, 0])[0])
}

fn values(seed: u32, count: usize) -> Vec<f32> {
    words(seed, count).map(|word| (word >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn bf16(values: &[f32]) -> Vec<Bf16> {
    values.iter().map(|&value| Bf16::from_f32(value)).collect()
}

fn schemes() -> impl Iterator<Item = Scheme> {
    let groups = [None, Some(32), Some(64), Some(128), Some(8), Some(40)];
    let of = move |bits, activations| groups.into_iter().map(move |group| Scheme { bits, group, activations });
    [Bits::Four, Bits::Eight]
        .into_iter()
        .flat_map(move |bits| [Activations::Int8, Activations::Float].into_iter().flat_map(move |a| of(bits, a)))
}

/// A weight as a checkpoint brings it.
struct Brought {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Option<Vec<u8>>,
    order: Option<Vec<i32>>,
    columns: usize,
    depth: usize,
    group: usize,
}

impl Brought {
    fn new(scheme: Scheme, columns: usize, depth: usize, has_zeros: bool, is_ordered: bool) -> Self {
        let levels = 2 * scheme.bits.zero() as u32;
        let group = scheme.group.unwrap_or(depth);
        let groups = columns * depth.div_ceil(group);
        let mut order: Vec<_> = (0..depth as i32).collect();
        order.sort_by_key(|&at| crate::philox4x32([at as u32, 7, 0, 0], [1, 1])[0]);
        Self {
            codes: words(2, columns * depth).map(|word| (word % levels) as u8).collect(),
            scales: values(3, groups).iter().map(|value| value / 50.0).collect(),
            zeros: has_zeros.then(|| words(4, groups).map(|word| (word % levels) as u8).collect()),
            order: is_ordered.then_some(order),
            columns,
            depth,
            group,
        }
    }

    fn pack(&self, cpu: &mut Cpu, scheme: Scheme) -> QuantizedWeight {
        let codes = Codes {
            codes: &self.codes,
            scales: &self.scales,
            zeros: self.zeros.as_deref(),
            order: self.order.as_deref(),
            depth: self.depth,
        };
        QuantizedWeight::from_codes(cpu, &codes, scheme).unwrap()
    }

    /// Each output, and the sum of the magnitudes that it is made of; both exact but for float64's own rounding. `are_rounded`: weights
    /// are the bfloat16 nearest to theirs.
    fn exact(&self, scheme: Scheme, x: &[f32], are_rounded: bool) -> Vec<(f64, f64)> {
        let x: Vec<f32> = match &self.order {
            None => x.to_vec(),
            Some(order) => order.iter().map(|&at| x[at as usize]).collect(),
        };
        let groups = self.depth.div_ceil(self.group);
        let seen: Vec<f64> = x.chunks(self.group).flat_map(|x| self.seen(scheme, x)).collect();
        let output = |column: usize| {
            let mut sums = (0.0, 0.0);
            for (k, x) in seen.iter().enumerate() {
                let group = column * groups + k / self.group;
                let zero = self.zeros.as_ref().map_or(scheme.bits.zero(), |zeros| i32::from(zeros[group]));
                let code = i32::from(self.codes[column * self.depth + k]);
                let scale = f64::from(self.scales[group]);
                let weight = scale * f64::from(code - zero);
                let near = f64::from(Bf16::from_f32(self.scales[group] * (code - zero) as f32).to_f32());
                sums.0 += if are_rounded { near } else { weight } * x;
                sums.1 += (scale * f64::from(code + zero) * x).abs();
            }
            sums
        };
        (0..self.columns).map(output).collect()
    }

    /// The activations of a group as the codes meet them.
    fn seen(&self, scheme: Scheme, x: &[f32]) -> Vec<f64> {
        match scheme.activations {
            Activations::Float => x.iter().map(|&x| f64::from(x)).collect(),
            Activations::Int8 => {
                let (scale, inverse) = step(x.iter().fold(0.0, |a, b| a.max(b.abs())), 127.0);
                x.iter().map(|x| f64::from(scale) * f64::from((x * inverse).round_ties_even())).collect()
            }
        }
    }
}

#[test]
fn the_first_of_the_largest_becomes_the_lowest_code_of_4_bits() {
    const GROUP: usize = 24;
    let mut groups = [[0.0_f32; GROUP]; 6];
    groups[0][..3].copy_from_slice(&[0.5, 1.0, -1.0]);
    groups[1][..3].copy_from_slice(&[-0.5, -1.0, 1.0]);
    groups[2][20..].copy_from_slice(&[-1.0, 0.5, -1.0, 0.0]);
    groups[3] = [-0.0; GROUP];
    groups[4][5] = f32::NAN;
    groups[5][23] = f32::NEG_INFINITY;
    let scheme = Scheme { bits: Bits::Four, group: Some(GROUP), activations: Activations::Int8 };
    for isa in Isa::available() {
        let weight =
            QuantizedWeight::quantize(&mut Cpu::new(isa, 1), &Matrix::of(groups.as_flattened(), GROUP), scheme);
        let scales = weight.panel(0)[0].map(f32::from_bits);
        assert_eq!(scales[..4], [-0.125, 0.125, 0.125, 0.0], "{}", isa.name());
        assert!(scales[4].is_nan() && scales[5].is_nan(), "{}", isa.name());
        // Codes: the lowest where the first is, and that of half of it.
        let first_word = weight.panel(0)[weight.layout().width];
        assert_eq!(first_word[0] & 0x000f_0f0f, 0x000f_0004, "{}", isa.name());
        assert_eq!(first_word[1] & 0x000f_0f0f, 0x000f_0004, "{}", isa.name());
    }
}

/// In float32 and in bfloat16.
fn check(isa: Isa, threads: usize, tokens: usize, scheme: Scheme, weight: &Brought) {
    check_in::<f32>(isa, threads, tokens, scheme, weight);
    check_in::<Bf16>(isa, threads, tokens, scheme, weight);
}

fn check_in<E: Element>(isa: Isa, threads: usize, tokens: usize, scheme: Scheme, weight: &Brought) {
    let mut cpu = Cpu::new(isa, threads);
    cpu.grain = 1; // so that small cases are shared too
    let (n, k) = (weight.columns, weight.depth);
    let packed = weight.pack(&mut cpu, scheme);
    let elements = |seed, count| -> Vec<E> { values(seed, count).into_iter().map(E::from_f32).collect() };
    let (x, bias) = (elements(1, tokens * k), elements(5, n));
    let mut out = vec![f32::NAN; tokens * n];
    linear_quantized(&mut cpu, &mut out, &x, &packed, Some(&bias));
    let mut rounded = bf16(&vec![f32::NAN; tokens * n]);
    linear_quantized(&mut cpu, &mut rounded, &x, &packed, Some(&bias));
    assert_eq!(rounded, bf16(&out));

    let is_pairs = Form::of::<E>(scheme.activations) == Form::Pairs;
    let are_rounded = isa.has_tiles() && is_pairs && scheme.group.is_some();
    let mut single = Cpu::new(isa, 1);
    for (token, (out, x)) in out.chunks_exact(n).zip(x.chunks_exact(k)).enumerate() {
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        for ((column, &got), (exact, size)) in out.iter().enumerate().zip(weight.exact(scheme, &wide, are_rounded)) {
            let bias = f64::from(bias[column].to_f32());
            let additions = match scheme.activations {
                // Within a segment nothing is rounded; then a product of scales, a fused sum, and the bias.
                Activations::Int8 => k.div_ceil(scheme.group.unwrap_or(1000)),
                Activations::Float => k,
            };
            let bound = (size + bias.abs()) * (additions + 4) as f64 * f64::from(f32::EPSILON);
            let error = (f64::from(got) - exact - bias).abs();
            assert!(error <= bound, "{scheme} on {}: {got} at {token}, {column}; error {error:e}", isa.name());
        }
        let mut alone = vec![f32::NAN; n];
        linear_quantized(&mut single, &mut alone, x, &packed, Some(&bias));
        assert!(alone.iter().zip(out).all(|(a, b)| a.to_bits() == b.to_bits()), "row {token} alone differs");
    }
}

#[test]
fn a_row_is_right_and_the_same_alone_and_in_a_batch_in_every_scheme_and_class() {
    for isa in Isa::available() {
        for scheme in schemes() {
            // The last two: segments of several pieces, with few row blocks and with many.
            let shapes =
                [(1, 1, 1, 1), (2, 7, 65, 3), (3, 100, 130, 64), (2, 2, 64, 4101), (2, 13, 70, 700), (3, 60, 20, 700)];
            for (threads, tokens, n, k) in shapes {
                check(isa, threads, tokens, scheme, &Brought::new(scheme, n, k, false, false));
            }
            check(isa, 2, 9, scheme, &Brought::new(scheme, 70, 200, true, false));
            check(isa, 2, 3, scheme, &Brought::new(scheme, 20, 136, true, true));
            // Several groups of rows, and segments of several pieces.
            check(isa, 2, 100, scheme, &Brought::new(scheme, 20, 700, true, true));
        }
    }
}

#[test]
fn many_rows_are_those_of_rows_alone_and_of_another_class() {
    // Several segments of several pieces, in one group of rows and in several; what goes past the caches, too.
    let whole =
        [(70, false, 1), (300, true, 1), (300, false, 2), (1500, false, 2)].map(|case| (Bits::Eight, None, case));
    let groups = [Some(8), Some(24), Some(32), Some(64), Some(72), Some(128), Some(2048), None];
    let short = groups.into_iter().flat_map(|group| {
        [(Bits::Four, group, (70, false, 2)), (Bits::Four, group, (300, true, 1)), (Bits::Eight, group, (130, true, 2))]
    });
    for (bits, group, (n, has_zeros, threads)) in whole.into_iter().chain(short) {
        let scheme = Scheme { bits, group, activations: Activations::Int8 };
        let (tokens, k) = (200, 2500);
        let weight = Brought::new(scheme, n, k, has_zeros, false);
        let (x, bias) = (bf16(&values(3, tokens * k)), bf16(&values(4, n)));
        let on = |isa: Isa, x: &[Bf16]| {
            let mut cpu = Cpu::new(isa, threads);
            cpu.grain = 1;
            let mut out = bf16(&vec![f32::NAN; x.len() / k * n]);
            let packed = weight.pack(&mut cpu, scheme);
            linear_quantized(&mut cpu, &mut out, x, &packed, Some(&bias));
            out
        };
        let all: Vec<_> = Isa::available().into_iter().filter(|isa| isa.name() != "portable").collect();
        let best = on(all[0], &x);
        for row in [0, 1, 100, 198, 199] {
            assert_eq!(
                on(all[0], &x[row * k..(row + 1) * k]),
                best[row * n..(row + 1) * n],
                "{scheme}: row {row} alone"
            );
        }
        if let Some(&other) = all.get(1) {
            assert_eq!(on(other, &x), best, "{scheme}: {} and {}", other.name(), all[0].name());
        }
    }
}

/// Where activations of many rows do not all stay near, K is walked in stretches, and sums of several panels wait; more rows go by chunks.
#[test]
fn long_prompts_are_right_and_those_of_rows_alone_where_activations_stay_as_they_are() {
    for (bits, group, tokens, n, k) in [
        (Bits::Four, Some(40), 520, 550, 2500),
        (Bits::Four, Some(64), 600, 70, 300),
        (Bits::Eight, None, 512, 520, 2200),
    ] {
        let scheme = Scheme { bits, group, activations: Activations::Float };
        let weight = Brought::new(scheme, n, k, true, group.is_none());
        let isa = Isa::best();
        let are_rounded = isa.has_tiles() && group.is_some();
        let (x, bias) = (bf16(&values(3, tokens * k)), bf16(&values(4, n)));
        let on = |x: &[Bf16]| {
            let mut cpu = Cpu::new(isa, 2);
            let mut out = vec![f32::NAN; x.len() / k * n];
            let packed = weight.pack(&mut cpu, scheme);
            linear_quantized(&mut cpu, &mut out, x, &packed, Some(&bias));
            let mut rounded = bf16(&vec![f32::NAN; out.len()]);
            linear_quantized(&mut cpu, &mut rounded, x, &packed, Some(&bias));
            assert_eq!(rounded, bf16(&out));
            out
        };
        let all = on(&x);
        for row in [0, 17, 300, tokens - 1] {
            let (x, got) = (&x[row * k..(row + 1) * k], &all[row * n..(row + 1) * n]);
            assert_eq!(on(x), got, "{scheme}: row {row} alone");
            let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            for ((got, bias), (exact, size)) in got.iter().zip(&bias).zip(weight.exact(scheme, &wide, are_rounded)) {
                let bias = f64::from(bias.to_f32());
                let error = (f64::from(*got) - exact - bias).abs();
                assert!(error <= (size + bias.abs()) * (k + 4) as f64 * f64::from(f32::EPSILON), "{scheme}: {error:e}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn any_shape_on_any_threads(
        threads in 1_usize..4, tokens in 1_usize..41, n in 1_usize..150, k in 1_usize..300,
        has_zeros: bool, is_ordered: bool, at in 0_usize..24,
    ) {
        let scheme = schemes().nth(at).expect("there are 24");
        for isa in Isa::available() {
            check(isa, threads, tokens, scheme, &Brought::new(scheme, n, k, has_zeros, is_ordered));
        }
    }
}

#[test]
fn floats_become_the_nearest_codes_on_any_number_of_threads() {
    let (n, k) = (70, 200);
    let floats = values(6, n * k);
    for scheme in schemes() {
        let group = scheme.group.unwrap_or(k);
        let identity: Vec<f32> = (0..k * k).map(|at| f32::from(u8::from(at % (k + 1) == 0))).collect();
        let mut results = Vec::new();
        for threads in [1, 3] {
            let mut cpu = Cpu::new(Isa::best(), threads);
            cpu.grain = 1;
            let packed = QuantizedWeight::quantize(&mut cpu, &Matrix::of(&floats, k), scheme);
            // Times the identity, a weight shows its own values.
            let mut out = vec![f32::NAN; k * n];
            linear_quantized(&mut cpu, &mut out, &identity, &packed, None);
            results.push(out);
        }
        assert_eq!(results[0], results[1]);
        for (column, floats) in floats.chunks_exact(k).enumerate() {
            for (at, floats) in floats.chunks(group).enumerate() {
                let largest = floats.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
                // Half a step; with 4 bits the side that has no 8 loses up to a whole one.
                let most = match scheme.bits {
                    Bits::Eight => largest / 127.0 * 0.501,
                    Bits::Four => largest / 8.0 * 1.001,
                };
                for (offset, float) in floats.iter().enumerate() {
                    let got = results[0][(at * group + offset) * n + column];
                    assert!((got - float).abs() <= most, "{scheme}: {got} for {float}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so_and_zeros_stay_zeros() {
    check_extremes::<f32>();
    check_extremes::<Bf16>();
}

fn check_extremes<E: Element>() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let elements = |values: &[f32]| -> Vec<E> { values.iter().map(|&value| E::from_f32(value)).collect() };
    for scheme in schemes() {
        let packed = QuantizedWeight::quantize(&mut cpu, &Matrix::of(&values(1, 16 * 40), 40), scheme);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = values(2, 80);
            x[45] = bad;
            let mut out = vec![0.0_f32; 32];
            linear_quantized(&mut cpu, &mut out, &elements(&x), &packed, None);
            assert!(out[..16].iter().all(|value| value.is_finite()), "{scheme}: the other row is as it was");
            assert!(out[16..].iter().all(|value| !value.is_finite()), "{scheme}");
        }
        let mut out = vec![1.0_f32; 16];
        linear_quantized(&mut cpu, &mut out, &elements(&[0.0; 40]), &packed, None);
        assert_eq!(out, [0.0; 16]);
        let mut weights = values(1, 16 * 40);
        weights[7] = f32::NAN;
        let packed = QuantizedWeight::quantize(&mut cpu, &Matrix::of(&weights, 40), scheme);
        linear_quantized(&mut cpu, &mut out, &elements(&[1.0; 40]), &packed, None);
        assert!(out[0].is_nan() && out[1].is_finite(), "{scheme}");
    }
}

#[test]
fn an_order_that_names_no_activation_is_refused() {
    let mut cpu = Cpu::new(Isa::best(), 1);
    let order = [0, 8, 1, 2, 3, 4, 5, 6];
    let codes = Codes { codes: &[1; 8], scales: &[1.0], zeros: None, order: Some(&order), depth: 8 };
    let scheme = Scheme { bits: Bits::Four, group: None, activations: Activations::Int8 };
    let refusal = QuantizedWeight::from_codes(&mut cpu, &codes, scheme).err().expect("refused");
    assert_eq!(refusal.to_string(), "`order` is 8 at index 1; allowed: 0 to 7");
}

/// FNV-1a over the bits.
fn sum_of(values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A sum that changes here changes the arithmetic: raise what `Cpu::numerics_id` adds up, and write the new one down.
#[test]
fn golden_sums() {
    let mut got = Vec::new();
    for scheme in schemes().filter(|scheme| matches!(scheme.group, None | Some(64))) {
        let sum_on = |isa: Isa| {
            let mut cpu = Cpu::new(isa, 2);
            let weight = QuantizedWeight::quantize(&mut cpu, &Matrix::of(&values(8, 50 * 2500), 2500), scheme);
            let mut out = vec![0.0_f32; 150];
            linear_quantized(&mut cpu, &mut out, &bf16(&values(9, 3 * 2500)), &weight, Some(&bf16(&values(10, 50))));
            sum_of(&out)
        };
        let sums = |belongs: fn(&str) -> bool| {
            let sums: Vec<_> = Isa::available().into_iter().filter(|isa| belongs(isa.name())).map(sum_on).collect();
            assert!(sums.windows(2).all(|pair| pair[0] == pair[1]), "{scheme}: {sums:x?}");
            sums.first().copied()
        };
        let fused = sums(|name| matches!(name, "avx2" | "avx512" | "avx512vnni"));
        let [paired, tiled, plain] =
            [sums(|name| name == "avx512bf16"), sums(|name| name == "amx"), sums(|name| name == "portable")];
        got.push((scheme.to_string(), [fused, paired, tiled, plain]));
    }
    for ((name, sums), (expected_name, expected)) in got.iter().zip(GOLDEN) {
        let is_right = sums.iter().zip(expected).all(|(sum, expected)| sum.is_none_or(|sum| sum == expected));
        assert!(name == expected_name && is_right, "{got:#x?}");
    }
}

/// Scheme; where a product and its sum are rounded once (AVX2, AVX-512); where pairs of bfloat16 are multiplied, in vectors and in tiles; where
/// they are rounded twice. Integers are the same in all but the last.
const GOLDEN: [(&str, [u64; 4]); 8] = [
    ("int4", [0x5117_4be1_9e9c_29a5, 0x5117_4be1_9e9c_29a5, 0x5117_4be1_9e9c_29a5, 0x2135_48e2_a0c9_6d5a]),
    ("int4-g64", [0x04c5_b805_ac0a_97e4, 0x04c5_b805_ac0a_97e4, 0x04c5_b805_ac0a_97e4, 0x26f9_cb40_f630_462c]),
    ("int4-a16", [0xb8eb_4306_57f9_edf3, 0x80d1_d17c_0109_0f84, 0x01d2_9493_817c_7e4d, 0xec06_5ad0_71ec_cf13]),
    ("int4-g64-a16", [0xfee8_1ba9_a046_33dd, 0x509d_a5a0_c349_18a0, 0xdd5e_cf65_b4b2_6bb0, 0x500d_19ed_d3ec_5b32]),
    ("int8", [0x7d0d_2057_3130_253d, 0x7d0d_2057_3130_253d, 0x7d0d_2057_3130_253d, 0x50f6_821b_55c8_e2e7]),
    ("int8-g64", [0x671b_b579_cb42_45c2, 0x671b_b579_cb42_45c2, 0x671b_b579_cb42_45c2, 0xd3d4_96cd_a3ed_f97d]),
    ("int8-a16", [0xfdd2_7bd6_7a98_347b, 0xd402_612d_ba80_d877, 0x4e6c_e0e5_acfa_9b65, 0x2933_380b_2201_dcd0]),
    ("int8-g64-a16", [0x3395_64b4_fd9d_6a7d, 0x310f_df4d_0eaa_27e3, 0x3409_5445_9c41_9889, 0x0e67_2f80_b034_e2a4]),
];

#[test]
fn nearest_takes_ties_to_even() {
    for (value, expected) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (126.51, 127), (-127.0, -127)] {
        assert_eq!(nearest(value), expected);
    }
}

#[test]
fn chunks_are_of_whole_pairs_of_blocks_where_there_are_tiles() {
    for isa in Isa::available() {
        for (rows, row_bytes, expected) in
            [(0, 64, 32), (1, 6144, 32), (512, 2048, 512), (513, 2048, 288), (512, 6144, 128), (10, 1 << 30, 32)]
        {
            let expected = if isa.name() == "amx" { expected } else { CHUNK_ROWS };
            assert_eq!(chunk_rows(isa, rows, row_bytes, Form::Int8), expected, "{} rows of {}", rows, row_bytes);
        }
        for (rows, expected) in [(0, 1), (1, 1), (512, 512), (513, 257)] {
            let expected = if isa.name() == "amx" { expected } else { CHUNK_ROWS };
            assert_eq!(chunk_rows(isa, rows, 1 << 20, Form::Pairs), expected, "{rows} rows");
        }
    }
}
