//! Rows of weights turned into lanes.

use crate::simd::{LANES, Lanes, Simd};

/// Up to 16 rows of words: a float32, or a pair of bfloat16 whose first lies in the lower half. Lower bytes come first.
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
    pub(super) asks: bool,
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
        let to = &mut to[places.first + number * places.block..];
        if rows.asks {
            for row in rows.bytes.chunks(rows.apart) {
                simd.prefetch(row.as_ptr().wrapping_add(LANES * rows.apart + at));
            }
        }
        let is_whole = at + BLOCK <= rows.to && rows.bytes.len() == LANES * rows.apart;
        if is_whole {
            let from = &rows.bytes[at..];
            match places.word {
                1 => turn_whole::<S, 1>(simd, from, rows.apart, to),
                4 => turn_whole::<S, 4>(simd, from, rows.apart, to),
                word => unreachable!("no layout has words {word} vectors apart"),
            }
            continue;
        }
        let mut block = [[0; LANES]; LANES];
        let bytes = BLOCK.min(rows.to - at);
        for (row, block) in rows.bytes.chunks(rows.apart).zip(&mut block) {
            bytemuck::bytes_of_mut(block)[..bytes].copy_from_slice(&row[at..at + bytes]);
        }
        simd.transpose(&mut block);
        for (words, to) in block[..bytes.div_ceil(4)].iter().zip(to.iter_mut().step_by(places.word)) {
            *to = *words;
        }
    }
}

/// 16 words of 16 rows, to vectors so many apart. Loops of a length that is known, so that all stays in registers.
#[inline(always)]
fn turn_whole<S: Simd, const WORD: usize>(simd: S, mut from: &[u8], apart: usize, to: &mut [Lanes<u32>]) {
    let mut block = [[0; LANES]; LANES];
    for block in &mut block {
        *block = bytemuck::pod_read_unaligned(&from[..size_of::<Lanes<u32>>()]);
        from = &from[apart.min(from.len())..];
    }
    simd.transpose(&mut block);
    let to = &mut to[..(LANES - 1) * WORD + 1];
    for (at, words) in block.iter().enumerate() {
        to[at * WORD] = *words;
    }
}
