//! Floats rounded to codes.

use std::ops::Range;

use super::panel::{Panel, Places};
use super::scheme::{Bits, Scheme};
use crate::element::{Bf16, Element, Format};
use crate::linear::source::Matrix;
use crate::simd::{Kernel, LANES, Lanes, Line, Simd};

/// A float32's sign.
pub(super) const SIGN: u32 = 1 << 31;

/// What is smaller becomes 0: the inverses of all others are finite.
const SMALLEST: f32 = 1e-30;

/// 1.5 · 2^23: what is added to it is an integer.
const SHIFT: f32 = 12_582_912.0;

/// What a thread uses again for each panel.
#[derive(Default)]
pub(super) struct Room {
    /// Those of a group, of sixteen columns.
    turned: Vec<Lanes<u32>>,
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

/// Rounds up to 16 columns: their values are turned, so that each has a lane of its own from the largest value to the code. Where a whole column has
/// one scale, its row is walked over twice.
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
    let (depth, segments) = (panel.depth, panel.layout.segments);
    let mut out = Out { levels: Levels::of(scheme.bits), bits: scheme.bits, rows, places: panel.places(vector) };
    match scheme.group {
        None => {
            let mut sides = Sides::default();
            for (lane, row) in rows.iter().enumerate() {
                (sides.positive[lane], sides.negative[lane]) = largest_of_both_sides(row);
            }
            let steps = out.levels.steps(simd, rows, 0..depth, &sides);
            for segment in 0..segments {
                panel.put_scales_of_lanes(simd, segment, vector, &steps.scales);
            }
            for first in (0..depth).step_by(LANES * E::PACK) {
                let values = first..depth.min(first + LANES * E::PACK);
                let mut turned = [[0; LANES]; LANES];
                turn(simd, rows, values.clone(), &mut turned);
                out.put(simd, values, &turned, &steps, panel, coming);
            }
        }
        Some(group) => {
            room.turned.resize(group.next_multiple_of(LANES * E::PACK) / E::PACK, [0; LANES]);
            for segment in 0..segments {
                let values = segment * group..depth.min((segment + 1) * group);
                for (number, turned) in room.turned.as_chunks_mut().0.iter_mut().enumerate() {
                    let first = values.end.min(values.start + number * LANES * E::PACK);
                    turn(simd, rows, first..values.end.min(first + LANES * E::PACK), turned);
                }
                let steps = out.levels.steps(simd, rows, values.clone(), &Sides::of::<E>(&room.turned));
                panel.put_scales_of_lanes(simd, segment, vector, &steps.scales);
                out.put(simd, values, &room.turned, &steps, panel, coming);
            }
        }
    }
}

/// Sixteen words of each row, filled up with zeros: a vector has all rows' words at one place.
#[inline(always)]
fn turn<S: Simd, E: Element>(simd: S, rows: &[&[E]], values: Range<usize>, turned: &mut [Lanes<u32>; LANES]) {
    for (lane, to) in turned.iter_mut().enumerate() {
        let bytes = rows.get(lane).map_or(&[][..], |row| bytemuck::cast_slice(&row[values.clone()]));
        if let Some(whole) = bytes.first_chunk::<64>() {
            *to = bytemuck::pod_read_unaligned(whole);
        } else {
            *to = [0; LANES];
            bytemuck::bytes_of_mut(to)[..bytes.len()].copy_from_slice(bytes);
        }
    }
    simd.transpose(turned);
}

/// Where codes go, and what they are made by.
struct Out<'a, E> {
    levels: Levels,
    bits: Bits,
    rows: &'a [&'a [E]],
    places: Places,
}

impl<E: Element> Out<'_, E> {
    /// The codes of these values, of which `turned` has all words.
    #[inline(always)]
    fn put<S: Simd>(
        &mut self,
        simd: S,
        values: Range<usize>,
        turned: &[Lanes<u32>],
        steps: &Steps,
        panel: &mut Panel<'_>,
        coming: &mut Next<'_>,
    ) {
        let inverse = simd.load(&steps.inverses);
        let each = panel.codes_of_word();
        let words = values.len() / each;
        for turned in turned.chunks_exact(each / E::PACK).take(words) {
            coming.ask(simd, LANES * each);
            let mut line = match self.bits {
                Bits::Eight => simd.join_bytes(self.levels.four::<S, E>(simd, turned, inverse)),
                Bits::Four => {
                    let (low, high) = turned.split_at(4 / E::PACK);
                    let low = self.levels.four::<S, E>(simd, low, inverse);
                    simd.join_nibbles(low, self.levels.four::<S, E>(simd, high, inverse))
                }
            };
            if self.rows.len() < LANES {
                line[self.rows.len()..].fill(0);
            }
            simd.stream_line(bytemuck::cast_ref(&line), &mut panel.lines[self.places.next()]);
        }
        let rest = values.start + words * each..values.end;
        if !rest.is_empty() {
            let mut line = [0; LANES];
            for ((word, row), inverse) in line.iter_mut().zip(self.rows).zip(steps.inverses) {
                for (at, value) in row[rest.clone()].iter().enumerate() {
                    let shift = if at < 4 { 8 * at } else { 8 * (at - 4) + 4 };
                    *word |= u32::from(self.levels.code(value.to_f32(), inverse)) << shift;
                }
            }
            simd.stream_line(bytemuck::cast_ref(&line), &mut panel.lines[self.places.next()]);
        }
    }
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

    /// Four values of each column, whose codes are the lowest byte of what comes.
    #[inline(always)]
    fn four<S: Simd, E: Element>(self, simd: S, turned: &[Lanes<u32>], inverse: S::V) -> [S::V; 4] {
        let mut values = match E::FORMAT {
            Format::BFloat16 => {
                let [first, second] = simd.widen(&turned[0]);
                let [third, fourth] = simd.widen(&turned[1]);
                [first, second, third, fourth]
            }
            Format::Float32 => {
                let mut values = [inverse; 4];
                for (value, turned) in values.iter_mut().zip(turned) {
                    *value = simd.load(bytemuck::cast_ref(turned));
                }
                values
            }
        };
        let [least, most] = self.range;
        let (least, most, shift) = (simd.splat(least), simd.splat(most), simd.splat(SHIFT + self.zero));
        for value in &mut values {
            let product = simd.max(simd.mul(*value, inverse), least); // of a NaN the least
            *value = simd.add(simd.min(product, most), shift);
        }
        values
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

    /// The scales of columns, and their inverses, as of [`step`].
    #[inline(always)]
    fn steps<S: Simd, E: Element>(self, simd: S, rows: &[&[E]], values: Range<usize>, sides: &Sides) -> Steps {
        let is_signed = self.largest < 0.0;
        let sign = if is_signed { SIGN } else { 0 };
        let (mut largest, mut are_some_equal) = ([0; LANES], false);
        for ((largest, &positive), &negative) in largest.iter_mut().zip(&sides.positive).zip(&sides.negative) {
            *largest = if positive >= negative { positive } else { negative | sign };
            are_some_equal |= positive == negative;
        }
        if is_signed && are_some_equal {
            first_of_largest(rows, values, sides, &mut largest);
        }
        let largest = simd.load(bytemuck::cast_ref(&largest));
        let (zero, infinity) = (simd.splat(0.0), simd.splat(f32::INFINITY));
        let (magnitude, smallest) = (simd.max(largest, simd.sub(zero, largest)), simd.splat(SMALLEST));
        let scale = simd.div(largest, simd.splat(self.largest));
        let inverse = simd.div(simd.splat(1.0), scale);
        let mut steps = Steps { scales: [0.0; LANES], inverses: [0.0; LANES] };
        let scale = simd.select_less(magnitude, smallest, zero, scale);
        simd.store(simd.select_less(magnitude, infinity, scale, simd.splat(f32::NAN)), &mut steps.scales);
        let inverse = simd.select_less(magnitude, smallest, zero, inverse);
        simd.store(simd.select_less(magnitude, infinity, inverse, zero), &mut steps.inverses);
        steps
    }
}

/// Of sixteen columns.
struct Steps {
    scales: Lanes<f32>,
    inverses: Lanes<f32>,
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

/// The same of sixteen columns.
#[derive(Default)]
struct Sides {
    positive: Lanes<u32>,
    negative: Lanes<u32>,
}

impl Sides {
    /// Of each lane of what was turned.
    #[inline(always)]
    fn of<E: Element>(turned: &[Lanes<u32>]) -> Self {
        let mut sides = Self::default();
        match E::FORMAT {
            Format::BFloat16 => {
                let (mut positive, mut any) = ([0_i16; 2 * LANES], [0_u16; 2 * LANES]);
                for words in turned {
                    let halves: &[u16; 2 * LANES] = bytemuck::cast_ref(words);
                    for ((positive, any), &bits) in positive.iter_mut().zip(&mut any).zip(halves) {
                        (*positive, *any) = ((*positive).max(bits as i16), (*any).max(bits));
                    }
                }
                let (positive, any): (Lanes<u32>, Lanes<u32>) = (bytemuck::cast(positive), bytemuck::cast(any));
                for lane in 0..LANES {
                    let (first, second) = (positive[lane] << 16, positive[lane] & 0xffff_0000);
                    sides.positive[lane] = first.max(second); // neither is negative
                    let any = (any[lane] << 16).max(any[lane] & 0xffff_0000);
                    sides.negative[lane] = if any & SIGN == 0 { 0 } else { any & !SIGN };
                }
            }
            Format::Float32 => {
                let mut positive = [0_i32; LANES];
                for words in turned {
                    for ((positive, any), &bits) in positive.iter_mut().zip(&mut sides.negative).zip(words) {
                        (*positive, *any) = ((*positive).max(bits as i32), (*any).max(bits));
                    }
                }
                sides.positive = positive.map(|positive| positive as u32);
                for any in &mut sides.negative {
                    *any = if *any & SIGN == 0 { 0 } else { *any & !SIGN };
                }
            }
        }
        sides
    }
}

/// Where both signs have the same largest magnitude, the first value that has it.
#[cold]
#[inline(never)]
fn first_of_largest<E: Element>(rows: &[&[E]], values: Range<usize>, sides: &Sides, largest: &mut Lanes<u32>) {
    for (lane, row) in rows.iter().enumerate() {
        let mut floats = row[values.clone()].iter().map(|value| value.to_f32().to_bits());
        if sides.positive[lane] == sides.negative[lane] {
            largest[lane] = floats.find(|bits| bits & !SIGN == sides.positive[lane]).unwrap_or_default();
        }
    }
}

/// The scale at which `largest` becomes `levels`, and its inverse. Values too small to be told from 0 become 0; with one
/// that is not finite among them, all become NaN.
#[inline(always)]
pub(super) fn step(largest: f32, levels: f32) -> (f32, f32) {
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
