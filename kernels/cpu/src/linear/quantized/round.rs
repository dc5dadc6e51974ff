//! Floats rounded to codes.

use std::ops::Range;

use super::panel::{Block, Panel, words_of_halves};
use super::scheme::{Bits, Scheme};
use crate::element::{Bf16, Element, Format};
use crate::linear::source::Matrix;
use crate::simd::{Kernel, LANES, Line, Simd};

/// A float32's sign.
pub(super) const SIGN: u32 = 1 << 31;

/// 1.5 · 2^23: what is added to it is an integer.
const SHIFT: f32 = 12_582_912.0;

/// Values that are rounded at a time, in whole vectors.
const BLOCK: usize = 32;

/// What a thread uses again for each panel.
#[derive(Default)]
pub(super) struct Room {
    /// Of sixteen columns, group by group: the largest values; scales, and their inverses.
    largest: Vec<f32>,
    steps: Vec<(f32, f32)>,
    /// Of sixteen columns, where they are stored in other formats than bfloat16.
    floats: Vec<f32>,
}

/// Fills a panel with floats, rounded to the nearest codes, with a scale for each group or for a whole column.
///
/// 8 bits: the largest magnitude becomes ±127. 4 bits: the value of the largest magnitude becomes −8, whatever its sign, so that all 16 codes
/// are used; a value as large on the other side loses half a step to one step.
pub(super) struct Quantize<'a> {
    pub(super) weight: &'a Matrix<'a>,
    pub(super) columns: Range<usize>,
    pub(super) scheme: Scheme,
    pub(super) panel: Panel<'a>,
    pub(super) room: &'a mut Room,
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { weight, columns, scheme, mut panel, room } = self;
        let depth = weight.depth();
        for (vector, first) in columns.clone().step_by(LANES).enumerate() {
            let columns = first..columns.end.min(first + LANES);
            let mut coming = Next { weight, row: first + LANES, end: first + 2 * LANES, rest: &[] };
            let mut rows = [[].as_slice(); LANES];
            for (row, column) in rows.iter_mut().zip(columns.clone()) {
                *row = weight.borrow::<Bf16>(column..column + 1).unwrap_or_default();
            }
            if rows[..columns.len()].iter().all(|row| !row.is_empty()) {
                fill(simd, scheme, &rows[..columns.len()], vector, &mut panel, room, &mut coming);
                continue;
            }
            let mut rows = [[].as_slice(); LANES];
            let mut floats = std::mem::take(&mut room.floats);
            let values = weight.read_into::<f32>(columns.clone(), &mut floats);
            for (row, values) in rows.iter_mut().zip(values.chunks_exact(depth)) {
                *row = values;
            }
            fill(simd, scheme, &rows[..columns.len()], vector, &mut panel, room, &mut coming);
            room.floats = floats;
        }
        simd.drain();
    }
}

/// The rows that are read next, asked for in the order in which they lie while these are rounded.
struct Next<'a> {
    weight: &'a Matrix<'a>,
    row: usize,
    end: usize,
    /// What is left of the row before.
    rest: &'a [u8],
}

impl Next<'_> {
    /// Asks for as much as a block of so many values takes, if they are of two bytes.
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, values: usize) {
        let mut left = 2 * values;
        while left > 0 {
            if self.rest.is_empty() {
                if self.row == self.end {
                    return;
                }
                self.rest = self.weight.row(self.row);
                self.row += 1;
                if self.rest.is_empty() {
                    return;
                }
            }
            let (lines, rest) = self.rest.split_at(left.min(self.rest.len()));
            for line in lines.chunks(size_of::<Line>()) {
                simd.prefetch(line.as_ptr());
            }
            (self.rest, left) = (rest, left - lines.len());
        }
    }
}

/// Rounds up to 16 columns. All their largest values come first, then all scales, so that no group waits for a division of its own; then codes, as
/// many as are turned at once.
#[inline(always)]
fn fill<S: Simd, E: Element>(
    simd: S,
    scheme: Scheme,
    rows: &[&[E]],
    vector: usize,
    panel: &mut Panel<'_>,
    room: &mut Room,
    coming: &mut Next<'_>,
) {
    let Room { largest, steps, .. } = room;
    let (depth, groups) = (panel.depth, panel.groups());
    let group = scheme.group.unwrap_or(depth);
    largest.clear();
    for row in rows {
        for values in row.chunks(group) {
            let sides = largest_of_both_sides(values);
            largest.push(match scheme.bits {
                Bits::Eight => f32::from_bits(sides.0.max(sides.1)),
                Bits::Four => largest_of(values, sides),
            });
        }
    }
    let levels = Levels::of(scheme.bits);
    steps.resize(largest.len(), (0.0, 0.0));
    for (each, &largest) in steps.iter_mut().zip(largest.iter()) {
        *each = step(largest, levels.largest);
    }
    panel.put_scales(vector, |column, group| steps[column * groups + group].0, rows.len());
    let each = panel.codes_of_word();
    for first in (0..depth.div_ceil(each)).step_by(LANES) {
        let codes = first * each..depth.min((first + LANES) * each);
        let mut block = Block::default();
        for ((row, steps), block) in rows.iter().zip(steps.chunks_exact(groups)).zip(&mut block) {
            coming.ask(simd, codes.len());
            let values = &row[codes.clone()];
            match scheme.bits {
                Bits::Eight => {
                    let to = &mut bytemuck::bytes_of_mut(block)[..values.len()];
                    round(values, codes.start, group, steps, levels, to);
                }
                Bits::Four => {
                    let mut to = [0; 8 * LANES];
                    round(values, codes.start, group, steps, levels, &mut to[..values.len()]);
                    words_of_halves(&to, block);
                }
            }
        }
        panel.put(simd, vector, first, block);
    }
}

/// Rounds neighbours along K, the first of which is the value of that number.
#[inline(always)]
fn round<E: Element>(
    mut values: &[E],
    mut at: usize,
    group: usize,
    steps: &[(f32, f32)],
    levels: Levels,
    mut codes: &mut [u8],
) {
    while !values.is_empty() {
        let count = values.len().min(group - at % group);
        let (here, rest) = values.split_at(count);
        let (to, rest_of_codes) = codes.split_at_mut(count);
        let inverse = steps[at / group].1;
        let (blocks, few) = here.as_chunks::<BLOCK>();
        let (to_blocks, to_few) = to.split_at_mut(blocks.len() * BLOCK);
        for (values, codes) in blocks.iter().zip(to_blocks.as_chunks_mut::<BLOCK>().0) {
            match E::FORMAT {
                Format::BFloat16 => {
                    round_pairs(bytemuck::pod_read_unaligned(bytemuck::bytes_of(values)), inverse, levels, codes)
                }
                Format::Float32 => {
                    for (code, value) in codes.iter_mut().zip(values) {
                        *code = levels.code(value.to_f32(), inverse);
                    }
                }
            }
        }
        for (code, value) in to_few.iter_mut().zip(few) {
            *code = levels.code(value.to_f32(), inverse);
        }
        (values, codes, at) = (rest, rest_of_codes, at + count);
    }
}

/// Pairs of bfloat16 as they lie: to be widened they move from no lane to another.
#[inline(always)]
fn round_pairs(pairs: [u32; BLOCK / 2], inverse: f32, levels: Levels, codes: &mut [u8; BLOCK]) {
    let mut rounded = [0_u16; BLOCK / 2];
    for (rounded, pair) in rounded.iter_mut().zip(pairs) {
        let first = levels.code(f32::from_bits(pair << 16), inverse);
        let second = levels.code(f32::from_bits(pair & 0xffff_0000), inverse);
        *rounded = u16::from(first) | u16::from(second) << 8;
    }
    codes.copy_from_slice(bytemuck::cast_slice(&rounded));
}

/// The codes of a scheme.
#[derive(Clone, Copy)]
struct Levels {
    /// That of the largest value.
    largest: f32,
    /// The least and the most, counted from that of 0.
    range: [f32; 2],
    /// What stands for 0.
    zero: f32,
}

impl Levels {
    fn of(bits: Bits) -> Self {
        match bits {
            Bits::Eight => Self { largest: 127.0, range: [-127.0, 127.0], zero: 128.0 },
            Bits::Four => Self { largest: -8.0, range: [-8.0, 7.0], zero: 8.0 },
        }
    }

    /// The nearest code; of a NaN the least.
    #[inline(always)]
    fn code(self, value: f32, inverse: f32) -> u8 {
        let [least, most] = self.range;
        let product = value * inverse;
        let product = if product > least { product } else { least }; // a NaN is no more than anything
        let product = if product < most { product } else { most };
        (product + (SHIFT + self.zero)).to_bits() as u8
    }
}

/// The largest magnitudes of values without a sign and of values with one, as bits of a float32: a NaN is larger than anything.
#[inline(always)]
fn largest_of_both_sides<E: Element>(values: &[E]) -> (u32, u32) {
    match E::FORMAT {
        Format::BFloat16 => {
            let (mut positive, mut any) = (0_i16, 0_u16);
            for &bits in bytemuck::cast_slice::<E, u16>(values) {
                (positive, any) = (positive.max(bits as i16), any.max(bits));
            }
            let negative = if any & 0x8000 == 0 { 0 } else { any & 0x7fff };
            ((positive as u32) << 16, u32::from(negative) << 16)
        }
        Format::Float32 => {
            let (mut positive, mut any) = (0_i32, 0_u32);
            for &bits in bytemuck::cast_slice::<E, u32>(values) {
                (positive, any) = (positive.max(bits as i32), any.max(bits));
            }
            (positive as u32, if any & SIGN == 0 { 0 } else { any & !SIGN })
        }
    }
}

/// The value of the largest magnitude, the first of those.
#[inline(always)]
fn largest_of<E: Element>(values: &[E], (positive, negative): (u32, u32)) -> f32 {
    if positive == negative {
        return first_so_large(values, positive);
    }
    f32::from_bits(if positive > negative { positive } else { negative | SIGN })
}

#[cold]
#[inline(never)]
fn first_so_large<E: Element>(values: &[E], magnitude: u32) -> f32 {
    let mut floats = values.iter().map(|value| value.to_f32());
    floats.find(|float| float.to_bits() & !SIGN == magnitude).unwrap_or_default()
}

/// The scale at which `largest` becomes `levels`, and its inverse. Values too small to be told from 0 become 0; with one
/// that is not finite among them, all become NaN.
#[inline(always)]
pub(super) fn step(largest: f32, levels: f32) -> (f32, f32) {
    const SMALLEST: f32 = 1e-30; // the inverse is finite then
    let scale = largest / levels;
    let inverse = 1.0 / scale;
    if !largest.is_finite() {
        return (f32::NAN, 0.0);
    }
    if largest.abs() < SMALLEST { (0.0, 0.0) } else { (scale, inverse) }
}

/// To the nearest integer, ties to even; |value| < 2^22. A NaN gives some number.
///
/// Adding [`SHIFT`] pushes the fraction out of the mantissa and leaves the integer in its lowest bits.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    ((value + SHIFT).to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32)
}
