//! Panels against what plain loops write, to the last byte.

use crate::element::Bf16;
use crate::linear::quantized::pack::{Codes, Layout, QuantizedWeight};
use crate::linear::quantized::{Activations, Bits, Scheme};
use crate::linear::source::{Matrix, Stored};
use crate::simd::LANES;
use crate::{Cpu, Isa};

const SHAPES: [(usize, usize); 8] =
    [(1, 1), (17, 7), (64, 128), (65, 200), (130, 333), (33, 1024), (70, 2500), (200, 96)];

fn schemes() -> impl Iterator<Item = Scheme> {
    let groups = [None, Some(8), Some(32), Some(40), Some(64), Some(128), Some(512)];
    let of = move |bits| groups.map(|group| Scheme { bits, group, activations: Activations::Int8 });
    [Bits::Four, Bits::Eight].into_iter().flat_map(of)
}

/// Of some rows the largest value stands on both sides, of some it is tiny, and a few have what is not finite.
fn weights(columns: usize, depth: usize) -> Vec<f32> {
    let draw = |at: usize| {
        let [bits, kind, ..] = crate::philox4x32([at as u32, 3, 0, 0], [8, 0]);
        let value = (bits >> 24) as f32 / 128.0 - 1.0;
        match (at / depth % 23, kind % 500) {
            (3, _) => value * 1e-35,
            (5, 0) => f32::NAN,
            (7, 0) => f32::NEG_INFINITY,
            (9, _) => 0.0,
            _ => value,
        }
    };
    (0..columns * depth).map(draw).collect()
}

/// Codes, and scales, as the format is described.
fn rounded(scheme: Scheme, weights: &[f32], depth: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in weights.chunks(depth) {
        for group in row.chunks(scheme.group.unwrap_or(depth)) {
            let mut largest = 0.0_f32;
            for &value in group {
                if value.is_nan() || value.abs() > largest.abs() {
                    largest = value;
                }
                if value.is_nan() {
                    break;
                }
            }
            let (levels, range) = match scheme.bits {
                Bits::Eight => (largest.abs() / 127.0, -127.0..=127.0),
                Bits::Four => (largest / -8.0, -8.0..=7.0),
            };
            scales.push(match largest.abs() {
                size if !size.is_finite() => f32::NAN,
                size if size < 1e-30 => 0.0,
                _ => levels,
            });
            let inverse = if scales.last().is_some_and(|scale| scale.abs() > 0.0) { 1.0 / levels } else { 0.0 };
            for value in group {
                let product = value * inverse;
                let product = if product.is_nan() { *range.start() } else { product };
                let code = product.round_ties_even().clamp(*range.start(), *range.end());
                codes.push((code + scheme.bits.zero() as f32) as u8);
            }
        }
    }
    (codes, scales)
}

/// All words of all panels.
fn plain(layout: Layout, scheme: Scheme, codes: &[u8], scales: &[f32], zeros: Option<&[u8]>, depth: usize) -> Vec<u32> {
    let columns = codes.len() / depth;
    let panel_words = layout.segments * layout.segment_vectors() * LANES;
    let mut words = vec![0; columns.div_ceil(layout.width * LANES) * panel_words];
    let groups = scales.len() / columns;
    let each = if scheme.bits == Bits::Four { 8 } else { 4 };
    for column in 0..columns {
        let (panel, vector, lane) = (column / (layout.width * LANES), column / LANES % layout.width, column % LANES);
        let mut at = |segment: usize, row: usize, value: u32| {
            let line = segment * layout.segment_vectors() + row * layout.width + vector;
            words[panel * panel_words + line * LANES + lane] |= value;
        };
        for segment in 0..layout.segments {
            let group = column * groups + segment.min(groups - 1);
            at(segment, 0, scales[group].to_bits());
            if let Some(zeros) = zeros {
                at(segment, 1, u32::from(zeros[group]));
            }
        }
        for (k, &code) in codes[column * depth..(column + 1) * depth].iter().enumerate() {
            let (segment, word) = (k / each / layout.words, k / each % layout.words);
            let shift = match scheme.bits {
                Bits::Eight => k % 4 * 8,
                Bits::Four => k % 4 * 8 + k % 8 / 4 * 4,
            };
            at(segment, layout.header + word, u32::from(code) << shift);
        }
    }
    words
}

fn check(weight: &QuantizedWeight, expected: &[u32], what: &str) {
    let found: &[u32] = bytemuck::cast_slice(weight.data());
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let are_nan = f32::from_bits(found).is_nan() && f32::from_bits(expected).is_nan();
        assert!(found == expected || are_nan, "{what}: word {at} is {found:#x} instead of {expected:#x}");
    }
    assert!(found.len() >= expected.len() && found[expected.len()..].iter().all(|&word| word == 0));
}

#[test]
fn floats_are_rounded_as_a_plain_loop_does_from_any_format_by_any_threads() {
    for isa in Isa::available() {
        for (columns, depth) in SHAPES {
            let floats = weights(columns, depth);
            let narrow: Vec<Bf16> = floats.iter().map(|&value| Bf16::from_f32(value)).collect();
            let (first, second) = (&floats[..columns / 2 * depth], &narrow[columns / 2 * depth..]);
            let matrices = [
                Matrix::of(&narrow, depth),
                Matrix::of(&floats, depth),
                Matrix::new(vec![Stored::of(first), Stored::of(second)], depth),
            ];
            // Eight bits of mantissa: all of them hold the same.
            assert!(narrow.iter().zip(&floats).all(|(a, b)| a.to_f32() == *b || b.is_nan() || b.abs() < 1e-30));
            for scheme in schemes() {
                let (codes, scales) = rounded(scheme, &floats, depth);
                for (threads, matrix) in [(1, &matrices[0]), (3, &matrices[0]), (2, &matrices[1]), (1, &matrices[2])] {
                    let mut cpu = Cpu::new(isa, threads);
                    cpu.grain = 1;
                    let weight = QuantizedWeight::quantize(&mut cpu, matrix, scheme);
                    let expected = plain(weight.layout(), scheme, &codes, &scales, None, depth);
                    check(&weight, &expected, &format!("{} {scheme} [{columns}, {depth}] {threads}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn codes_of_a_checkpoint_lie_where_a_plain_loop_puts_them() {
    for isa in Isa::available() {
        for (columns, depth) in SHAPES {
            for scheme in schemes() {
                let groups = columns * depth.div_ceil(scheme.group.unwrap_or(depth));
                let draw = |at: usize, what: u32| crate::philox4x32([at as u32, what, 0, 0], [4, 0])[0];
                let most = 2 * scheme.bits.zero() as u32;
                let codes: Vec<u8> = (0..columns * depth).map(|at| (draw(at, 0) % most) as u8).collect();
                let scales: Vec<f32> = (0..groups).map(|at| draw(at, 1) as f32).collect();
                let zeros: Vec<u8> = (0..groups).map(|at| (draw(at, 2) % most) as u8).collect();
                for zeros in [None, Some(zeros.as_slice())] {
                    let from = Codes { codes: &codes, scales: &scales, zeros, order: None, depth };
                    let mut cpu = Cpu::new(isa, 2);
                    cpu.grain = 1;
                    let weight = QuantizedWeight::from_codes(&mut cpu, &from, scheme).expect("it is sound");
                    let expected = plain(weight.layout(), scheme, &codes, &scales, zeros, depth);
                    check(&weight, &expected, &format!("{} {scheme} [{columns}, {depth}]", isa.name()));
                }
            }
        }
    }
}
