//! Panels against what a plain loop writes, to the last lane, whatever stood there before.

use bytemuck::Zeroable;

use super::*;
use crate::element::Bf16;
use crate::linear::{Bits, QuantizedActivations, QuantizedWeight, Scheme, Stored};

fn values<E: Element>(count: usize) -> Vec<E> {
    (0..count).map(|at| E::from_f32(crate::philox4x32([at as u32, 0, 0, 0], [9, 0])[0] as f32)).collect()
}

/// One place after the other.
fn plain<E: Element>(to: &mut [E::Unit], from: &[E], depth: usize, layout: Layout) {
    let units = layout.units::<E>(depth);
    for (column, row) in from.chunks_exact(depth).enumerate() {
        for (unit, weights) in row.chunks(E::PACK).enumerate() {
            let at = match layout {
                Layout::Units { vectors } => unit * vectors * LANES + column,
                Layout::Tiles => {
                    let (half, side, lane) = (column / 32, column / 16 % 2, column % 16);
                    let (step, row) = (unit / TILED_UNITS, unit % TILED_UNITS);
                    half * units * 32 + ((step * 2 + side) * TILED_UNITS + row) * LANES + lane
                }
            };
            let bytes: &[u8] = bytemuck::cast_slice(weights);
            bytemuck::bytes_of_mut(&mut to[at])[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

fn check<E: Element>(isa: Isa, layout: Layout, columns: usize, depth: usize)
where
    E::Unit: PartialEq,
{
    let weights = values::<E>((columns + 2) * depth);
    let size = layout.units::<E>(depth) * layout.columns();
    let mut expected = vec![E::Unit::zeroed(); size];
    plain(&mut expected, &weights[depth..(columns + 1) * depth], depth, layout);
    let mut found = vec![[0xa5_u8; 4]; size];
    let to = bytemuck::cast_slice_mut(&mut found);
    isa.run(Fill::<E> { to, from: &Matrix::of(&weights, depth), columns: 1..columns + 1, layout });
    let found: &[E::Unit] = bytemuck::cast_slice(&found);
    assert!(found == expected, "{} {layout:?} [{columns}, {depth}]", isa.name());
}

#[test]
fn panels_are_what_a_plain_loop_writes() {
    for isa in Isa::available() {
        for depth in [1, 2, 15, 16, 31, 33, 64, 70, 96] {
            for columns in [1, 15, 16, 17, 33, 63, 64] {
                check::<Bf16>(isa, Layout::Tiles, columns, depth);
                let units = Layout::Units { vectors: isa.run(Width) };
                if columns <= units.columns() {
                    check::<Bf16>(isa, units, columns, depth);
                    check::<f32>(isa, units, columns, depth);
                }
            }
        }
    }
}

/// A panel of short units as it was before.
struct Lengthen<'a>(Short<'a>, usize, &'a mut [Unit]);

impl Kernel for Lengthen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(short, panel, to) = self;
        short.lengthen(simd, panel, 0..to.len(), to);
        let vectors: &mut [[u16; 2 * LANES]] = bytemuck::cast_slice_mut(to);
        for (vector, word, bits) in short.unnamed(panel) {
            vectors[vector][word] = bits;
        }
    }
}

#[test]
fn short_panels_are_whole_ones_to_the_last_lane_packed_by_any_threads() {
    let mut seen = 0;
    for isa in Isa::available() {
        for (columns, depth) in [(1, 9000), (33, 1001), (65, 999), (96, 1026), (130, 515), (200, 544)] {
            let weights = values::<Bf16>(columns * depth);
            let matrix = Matrix::of(&weights, depth);
            let pack = |threads, is_tiled, may_be_short| {
                let mut cpu = Cpu::new(isa, threads);
                cpu.grain = 1;
                match (is_tiled, may_be_short) {
                    (true, _) => PackedWeight::<Bf16>::pack_tiled(&mut cpu, &matrix, may_be_short),
                    (false, true) => PackedWeight::pack(&mut cpu, &matrix),
                    (false, false) => PackedWeight::pack_whole(&mut cpu, &matrix),
                }
            };
            for is_tiled in [false, true] {
                let (packed, whole) = (pack(1, is_tiled, true), pack(2, is_tiled, false));
                let Some(short) = packed.short() else { continue };
                assert!(packed.data() == pack(3, is_tiled, true).data());
                seen += 1;
                let size = packed.units() * packed.layout.vectors() * size_of::<Lanes<u32>>();
                for (panel, expected) in whole.data().chunks(size).enumerate() {
                    let expected: &[Unit] = bytemuck::cast_slice(expected);
                    let mut found = vec![[[u32::MAX; LANES]; short::VECTORS]; expected.len()];
                    isa.run(Lengthen(short, panel, &mut found));
                    assert!(found == expected, "{} {is_tiled} [{columns}, {depth}] {panel}", isa.name());
                }
            }
        }
    }
    assert!(seen > 0 || !cfg!(target_arch = "x86_64"));
}

/// Weights of which some have exponents of their own: one in 20,000, and in some rows most of them.
fn weights_with_exceptions(columns: usize, depth: usize, strange: Range<usize>) -> Vec<Bf16> {
    let draw = |at: usize| {
        let [bits, kind, other, _] = crate::philox4x32([at as u32, 7, 0, 0], [5, 0]);
        let is_strange = if strange.contains(&(at / depth)) { kind % 4 > 0 } else { kind % 20_000 == 0 };
        let exponent = if is_strange { other % 254 } else { 112 + (kind >> 16 & 7) };
        Bf16((bits & u32::from(short::REST) | exponent << 7) as u16)
    };
    (0..columns * depth).map(draw).collect()
}

#[test]
fn rows_that_are_shortened_before_they_are_turned_give_the_same_panels() {
    let mut seen = 0;
    for isa in Isa::available() {
        // Strange are rows of panels that no sample looks at: the matrix's names suit all others.
        for (columns, depth, strange) in [
            (64, 32, 0..0),
            (200, 96, 0..0),
            (842, 96, 192..193),
            (840, 2048, 64..65),
            (850, 1120, 384..448),
            (256, 2080, 192..256),
        ] {
            let weights = weights_with_exceptions(columns, depth, strange.clone());
            // What has to be converted, or lies in two parts, is turned first.
            let floats: Vec<f32> = weights.iter().map(|weight| weight.to_f32()).collect();
            let (first, second) = weights.split_at(columns / 3 * depth);
            let plain = Matrix::of(&weights, depth);
            let others = [Matrix::of(&floats, depth), Matrix::new(vec![Stored::of(first), Stored::of(second)], depth)];
            let pack = |threads, matrix: &Matrix<'_>| {
                let mut cpu = Cpu::new(isa, threads);
                cpu.grain = 1;
                PackedWeight::<Bf16>::pack(&mut cpu, matrix)
            };
            let packed = pack(1, &plain);
            let reads_rows = |matrix| {
                let stretches = Stretches::new(matrix, packed.layout, 0..columns.div_ceil(64));
                short::ReadUnits::rows(&stretches, columns / 3 / 64).is_some()
            };
            assert_eq!(reads_rows(&plain), packed.layout == Layout::Units { vectors: 4 } && columns >= 64);
            assert!(!reads_rows(&others[0]) && !reads_rows(&others[1]));
            for (threads, matrix) in [(2, &plain), (3, &plain), (1, &others[0]), (2, &others[1])] {
                let other = pack(threads, matrix);
                assert!(packed.data() == other.data(), "{} [{columns}, {depth}] {threads}", isa.name());
            }
            let Some(short) = packed.short() else { continue };
            let exceptions = packed.exceptions().expect("it is short");
            assert!(exceptions > 0 || columns * depth < 200_000, "[{columns}, {depth}] {exceptions}");
            seen += 1;
            if reads_rows(&plain) {
                let exponents = |panel: usize| short.exponents(panel).0;
                assert!(exponents(0)[..16].windows(2).all(|pair| pair[1] == pair[0] + (1 << 7)), "they are in a row");
                for panel in 0..columns / 64 {
                    let is_strange = strange.start / 64 == panel && !strange.is_empty();
                    assert_eq!(exponents(panel) != exponents(0), is_strange, "[{columns}, {depth}] {panel}");
                }
            }
            let mut cpu = Cpu::new(isa, 2);
            let whole = PackedWeight::<Bf16>::pack_whole(&mut cpu, &plain);
            let size = packed.units() * packed.layout.vectors() * size_of::<Lanes<u32>>();
            for (panel, expected) in whole.data().chunks(size).enumerate() {
                let expected: &[Unit] = bytemuck::cast_slice(expected);
                let mut found = vec![[[u32::MAX; LANES]; short::VECTORS]; expected.len()];
                isa.run(Lengthen(short, panel, &mut found));
                assert!(found == expected, "{} [{columns}, {depth}] {panel}", isa.name());
            }
        }
    }
    assert_eq!(
        seen > 0,
        Isa::available().into_iter().any(|isa| Layout::of::<Bf16>(isa).short_order::<Bf16>(isa).is_some())
    );
}

#[test]
fn a_matrix_of_several_formats_is_packed_like_one_of_float32() {
    const DEPTH: usize = 37;
    // Numbers that every format holds.
    let floats: Vec<f32> = (0..150 * DEPTH).map(|at| (at * 7919 % 255) as f32 / 16.0 - 8.0).collect();
    let halves: Vec<u16> = floats.iter().map(|&value| half_of(value)).collect();
    let rounded: Vec<Bf16> = floats.iter().map(|&value| Bf16::from_f32(value)).collect();
    // Formats change within panels, and within 16 rows.
    let [first, second, third] = [5, 41, 107].map(|row| row * DEPTH);
    let parts = vec![
        Stored::BFloat16(&rounded[..first]),
        Stored::Float16(&halves[first..second]),
        Stored::Float32(&floats[second..third]),
        Stored::BFloat16(&rounded[third..]),
    ];
    let (mixed, one) = (Matrix::new(parts, DEPTH), Matrix::of(&floats, DEPTH));
    for isa in Isa::available() {
        let mut cpu = Cpu::new(isa, 2);
        cpu.grain = 1;
        let [found, expected] = [&mixed, &one].map(|matrix| PackedWeight::<f32>::pack(&mut cpu, matrix));
        assert!(found.data() == expected.data(), "{}", isa.name());
        let [found, expected] = [&mixed, &one].map(|matrix| PackedWeight::<Bf16>::pack(&mut cpu, matrix));
        assert!(found.data() == expected.data(), "{}", isa.name());
        for (bits, group) in [(Bits::Eight, None), (Bits::Four, Some(16))] {
            let scheme = Scheme { bits, group, activations: QuantizedActivations::Int8 };
            let [found, expected] = [&mixed, &one].map(|matrix| QuantizedWeight::quantize(&mut cpu, matrix, scheme));
            assert!(found.data() == expected.data(), "{} {bits:?}", isa.name());
        }
    }
}

/// Of a number that a float16 holds exactly, and that is not subnormal there.
fn half_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    if value == 0.0 { sign } else { sign | ((bits >> 13) as u16).wrapping_sub(112 << 10) & 0x7fff }
}
