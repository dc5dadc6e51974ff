//! Weights as a checkpoint has them: row-major matrices, one above the other, each in a storage format of its own.
//!
//! Packing reads them where they lie, in a mapped file for example, and converts a panel at a time: the whole never stands
//! in memory twice.

use std::borrow::Cow;
use std::ops::Range;

use crate::element::{Bf16, Element, Format};
use crate::simd::{Line, Simd};

/// The values of one matrix.
#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    /// IEEE binary32.
    Float32(&'a [f32]),
    /// bfloat16.
    BFloat16(&'a [Bf16]),
    /// IEEE binary16, as bits.
    Float16(&'a [u16]),
}

impl<'a> Stored<'a> {
    /// Values of a format that is computed in.
    pub fn of<E: Element>(values: &'a [E]) -> Self {
        match E::FORMAT {
            Format::Float32 => Self::Float32(bytemuck::cast_slice(values)),
            Format::BFloat16 => Self::BFloat16(bytemuck::cast_slice(values)),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::BFloat16(values) => values.len(),
            Self::Float16(values) => values.len(),
        }
    }

    fn bytes(self, range: Range<usize>) -> &'a [u8] {
        match self {
            Self::Float32(values) => bytemuck::cast_slice(&values[range]),
            Self::BFloat16(values) => bytemuck::cast_slice(&values[range]),
            Self::Float16(values) => bytemuck::cast_slice(&values[range]),
        }
    }

    /// The values themselves, where they are stored as `E`.
    fn same<E: Element>(self, range: Range<usize>) -> Option<&'a [E]> {
        match (self, E::FORMAT) {
            (Self::Float32(values), Format::Float32) => Some(bytemuck::cast_slice(&values[range])),
            (Self::BFloat16(values), Format::BFloat16) => Some(bytemuck::cast_slice(&values[range])),
            _ => None,
        }
    }

    /// Loops, for a kernel's features do not reach what iterators are given to call.
    #[inline(always)]
    fn convert<E: Element>(self, range: Range<usize>, to: &mut [E]) {
        match self {
            Self::Float32(values) => {
                for (to, &value) in to.iter_mut().zip(&values[range]) {
                    *to = E::from_f32(value);
                }
            }
            Self::BFloat16(values) => {
                for (to, value) in to.iter_mut().zip(&values[range]) {
                    *to = E::from_f32(value.to_f32());
                }
            }
            Self::Float16(values) => {
                for (to, &bits) in to.iter_mut().zip(&values[range]) {
                    *to = E::from_f32(f16_to_f32(bits));
                }
            }
        }
    }
}

/// Matrices of one depth, one above the other.
#[derive(Debug, Clone)]
pub struct Matrix<'a> {
    parts: Vec<Stored<'a>>,
    depth: usize,
}

impl<'a> Matrix<'a> {
    /// Each part has whole rows, `depth` long.
    pub fn new(parts: Vec<Stored<'a>>, depth: usize) -> Self {
        assert!(depth > 0 && parts.iter().all(|part| part.len().is_multiple_of(depth)));
        Self { parts, depth }
    }

    /// One matrix by itself.
    pub fn of<E: Element>(values: &'a [E], depth: usize) -> Self {
        Self::new(vec![Stored::of(values)], depth)
    }

    /// N: how many outputs.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum::<usize>() / self.depth
    }

    /// K: how many inputs.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// A row as it is stored; nothing, if there is none.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        let mut begin = row * self.depth;
        for part in &self.parts {
            if begin < part.len() {
                return part.bytes(begin..begin + self.depth);
            }
            begin -= part.len();
        }
        &[]
    }

    /// These rows where they lie, if they are stored as `E` in one part.
    #[inline(always)]
    pub(super) fn borrow<E: Element>(&self, rows: Range<usize>) -> Option<&'a [E]> {
        let (mut from, to) = (rows.start * self.depth, rows.end * self.depth);
        let len = to - from;
        for part in &self.parts {
            if from < part.len() {
                return (from + len <= part.len()).then(|| part.same(from..from + len)).flatten();
            }
            from -= part.len();
        }
        None
    }

    /// These rows, `depth` values each: copied only if they are stored in another format, or in two parts.
    #[inline(always)]
    pub(super) fn read<E: Element>(&self, rows: Range<usize>) -> Cow<'a, [E]> {
        if let Some(same) = self.borrow(rows.clone()) {
            return Cow::Borrowed(same);
        }
        let mut found = Vec::new();
        self.convert(rows, &mut found);
        Cow::Owned(found)
    }

    /// The same; `room`: where they are copied to.
    #[inline(always)]
    pub(super) fn read_into<'b, E: Element>(&self, rows: Range<usize>, room: &'b mut Vec<E>) -> &'b [E]
    where
        'a: 'b,
    {
        if let Some(same) = self.borrow(rows.clone()) {
            return same;
        }
        self.convert(rows, room);
        room
    }

    #[inline(always)]
    fn convert<E: Element>(&self, rows: Range<usize>, to: &mut Vec<E>) {
        let wanted = rows.start * self.depth..rows.end * self.depth;
        to.resize(wanted.len(), E::default());
        let mut begin = 0;
        for part in &self.parts {
            let end = begin + part.len();
            let (from, until) = (wanted.start.clamp(begin, end), wanted.end.clamp(begin, end));
            if from < until {
                part.convert(from - begin..until - begin, &mut to[from - wanted.start..]);
            }
            begin = end;
        }
    }
}

/// Asks for rows that are read soon, a panel's worth after the other, in the order in which they lie: readers of panels go through many rows
/// at once, and no processor foresees so many streams.
pub(super) struct Coming<'a> {
    matrix: &'a Matrix<'a>,
    /// Those that are left, the first of which is asked for.
    panels: Range<usize>,
    rows_of_panel: usize,
    row_bytes: usize,
    /// Where the piece of each row begins that is asked for.
    piece: usize,
    /// Which row of the panel comes next.
    row: usize,
    /// What is left of the piece of the row before.
    rest: &'a [u8],
    /// How many bytes it is less ahead of the reader than it should be.
    late: usize,
}

impl<'a> Coming<'a> {
    /// Of longer rows a piece is asked for at a time: that of all rows of a panel finds room in a second-level cache of 2 MiB twice.
    const PIECE: usize = 8 << 10;

    pub(super) fn new(matrix: &'a Matrix<'a>, panels: Range<usize>, rows_of_panel: usize) -> Self {
        let row_bytes = matrix.row(0).len();
        let late = rows_of_panel * row_bytes.min(Self::PIECE);
        Self { matrix, panels, rows_of_panel, row_bytes, piece: 0, row: 0, rest: &[], late }
    }

    /// Nothing before that panel is asked for any more.
    pub(super) fn skip_to(&mut self, panel: usize) {
        if self.panels.start < panel && panel < self.panels.end {
            *self = Self::new(self.matrix, panel..self.panels.end, self.rows_of_panel);
        }
    }

    /// Asks for so many bytes, as many as are read meanwhile, and for more until it is ahead. A few at a time: a core waits with more than it can ask for at once.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, simd: S, bytes: usize) {
        let caught_up = bytes.min(self.late);
        self.late -= caught_up;
        let mut left = bytes + caught_up;
        while left > 0
            && let Some(piece) = self.next(left)
        {
            for line in piece.chunks(size_of::<Line>()) {
                simd.prefetch(line.as_ptr());
            }
            left -= piece.len();
        }
    }

    /// What comes next, at most so many bytes of a row. None: there is no more.
    #[inline(always)]
    fn next(&mut self, most: usize) -> Option<&'a [u8]> {
        while self.rest.is_empty() {
            self.rest = self.next_row()?;
        }
        let (piece, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        Some(piece)
    }

    /// Its piece: nothing, if the last panel lacks the row.
    fn next_row(&mut self) -> Option<&'a [u8]> {
        if self.panels.is_empty() {
            return None;
        }
        let row = self.matrix.row(self.panels.start * self.rows_of_panel + self.row);
        let end = row.len().min(self.piece + Self::PIECE);
        let piece = row.get(self.piece..end).unwrap_or_default();
        self.row += 1;
        if self.row == self.rows_of_panel {
            (self.row, self.piece) = (0, self.piece + Self::PIECE);
            if self.piece >= self.row_bytes {
                (self.piece, self.panels.start) = (0, self.panels.start + 1);
            }
        }
        Some(piece)
    }
}

/// Exact.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    // A float16's fields, moved into a float32, are its value over 2^112, subnormals too; so a product puts them right.
    const POWER: f32 = f32::from_bits((127 + 112) << 23);
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    let finite = (f32::from_bits(rest) * POWER).to_bits();
    let is_finite = bits & 0x7c00 != 0x7c00;
    f32::from_bits(sign | if is_finite { finite } else { 0x7f80_0000 | rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let size = match exponent {
                0 => fraction * 2_f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
            };
            let expected = if bits >> 15 == 1 { -size } else { size };
            let got = f64::from(f16_to_f32(bits));
            assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{bits:#x}: {got}");
        }
    }

    #[test]
    fn what_comes_is_all_rows_of_the_panels_piece_by_piece() {
        let depth = Coming::PIECE / 2 + 100; // of each row's bytes, 200 are left for a second piece
        let [first, second] = [70, 7].map(|rows| (0..rows * depth).map(|at| Bf16(at as u16)).collect::<Vec<_>>());
        let matrix = Matrix::new(vec![Stored::of(&first), Stored::of(&second)], depth);
        let mut coming = Coming::new(&matrix, 1..3, 32);
        let mut found = Vec::new();
        while let Some(piece) = coming.next(1000) {
            assert!(!piece.is_empty() && piece.len() <= 1000);
            found.extend_from_slice(piece);
        }
        let mut expected = Vec::new();
        for rows in [32..64, 64..77] {
            for bytes in [0..Coming::PIECE, Coming::PIECE..2 * depth] {
                for row in rows.clone() {
                    expected.extend_from_slice(&matrix.row(row)[bytes.clone()]);
                }
            }
        }
        assert!(found == expected);
        assert!(matrix.row(77).is_empty());
    }

    #[test]
    fn rows_are_found_across_parts_and_formats_and_borrowed_where_they_can_be() {
        let (first, second) = ([1.0_f32, 2.0, 3.0, 4.0], [5.0, 6.0].map(Bf16::from_f32));
        let third = [0x4700_u16, 0x4800]; // 7, 8
        let matrix = Matrix::new(vec![Stored::of(&first), Stored::BFloat16(&second), Stored::Float16(&third)], 2);
        assert_eq!((matrix.rows(), matrix.depth()), (4, 2));
        assert!(matches!(matrix.read::<f32>(0..2), Cow::Borrowed(rows) if rows == first));
        assert!(matches!(matrix.read::<Bf16>(2..3), Cow::Borrowed(rows) if rows == second));
        assert_eq!(matrix.read::<f32>(1..4).into_owned(), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert!(matrix.read::<f32>(2..2).is_empty());
    }
}
