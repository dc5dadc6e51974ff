//! Rows of weights turned into lanes: what packing does with every byte of a model.

use crate::simd::{LANES, Lanes, Simd};

/// Up to 16 rows of words: a float32, a pair of bfloat16 whose first lies in the lower half, or codes. Lower bytes come first.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes from a row to the next.
    pub(super) apart: usize,
    /// Of each row: from here
    pub(super) from: usize,
    /// to here.
    pub(super) to: usize,
    /// Whether the rows behind them are asked for meanwhile: so many streams at once no processor foresees.
    pub(super) goes_on: bool,
}

/// Where vectors of words go.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) first: usize,
    /// From a word to the next.
    pub(super) word: usize,
    /// From 16 words to the next.
    pub(super) block: usize,
}

/// Words that a row has at its end only in part are filled up with zeros, and so are lanes that no row is there for. Vectors behind a row's
/// last word stay as they are.
#[inline(always)]
pub(super) fn turn<S: Simd>(simd: S, rows: Rows<'_>, to: &mut [Lanes<u32>], places: Places) {
    const BLOCK: usize = size_of::<Lanes<u32>>();
    for (number, at) in (rows.from..rows.to).step_by(BLOCK).enumerate() {
        let mut block = [[0; LANES]; LANES];
        let bytes = BLOCK.min(rows.to - at);
        for (row, block) in rows.bytes.chunks(rows.apart).zip(&mut block) {
            if rows.goes_on {
                simd.prefetch(row.as_ptr().wrapping_add(LANES * rows.apart + at));
            }
            match row[at..rows.to].first_chunk::<BLOCK>() {
                Some(whole) => *block = bytemuck::pod_read_unaligned(whole),
                None => bytemuck::bytes_of_mut(block)[..bytes].copy_from_slice(&row[at..rows.to]),
            }
        }
        simd.transpose(&mut block);
        let first = places.first + number * places.block;
        let vectors = to[first..].iter_mut().step_by(places.word);
        for (words, to) in block[..bytes.div_ceil(4)].iter().zip(vectors) {
            *to = *words;
        }
    }
}
