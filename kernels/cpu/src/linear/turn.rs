//! Rows of weights turned into lanes: what packing does with every byte of a model.

use crate::simd::{LANES, Lanes, Line, Simd};

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

/// Where a vector of words can be put.
pub(super) trait Place {
    fn put<S: Simd>(&mut self, simd: S, words: &Lanes<u32>);
}

/// Near: it is read again soon.
impl Place for Lanes<u32> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, _: S, words: &Lanes<u32>) {
        *self = *words;
    }
}

/// Far: nobody needs it soon, and others see it when the thread has drained.
impl Place for Line {
    #[inline(always)]
    fn put<S: Simd>(&mut self, simd: S, words: &Lanes<u32>) {
        simd.stream_line(words, self);
    }
}

/// Words that a row has at its end only in part are filled up with zeros, and so are lanes that no row is there for. Vectors behind a row's
/// last word stay as they are.
#[inline(always)]
pub(super) fn turn<S: Simd, P: Place>(simd: S, rows: Rows<'_>, to: &mut [P], places: Places) {
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
                1 => turn_whole::<S, P, 1>(simd, from, rows.apart, to),
                4 => turn_whole::<S, P, 4>(simd, from, rows.apart, to),
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
            to.put(simd, words);
        }
    }
}

/// 16 words of 16 rows, to vectors so many apart. Loops of a length that is known, so that all stays in registers.
#[inline(always)]
fn turn_whole<S: Simd, P: Place, const WORD: usize>(simd: S, mut from: &[u8], apart: usize, to: &mut [P]) {
    let mut block = [[0; LANES]; LANES];
    for block in &mut block {
        *block = bytemuck::pod_read_unaligned(&from[..size_of::<Lanes<u32>>()]);
        from = &from[apart.min(from.len())..];
    }
    simd.transpose(&mut block);
    let to = &mut to[..(LANES - 1) * WORD + 1];
    for (at, words) in block.iter().enumerate() {
        to[at * WORD].put(simd, words);
    }
}
