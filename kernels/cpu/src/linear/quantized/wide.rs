//! Codes as float32, where floats are multiplied and several row blocks use each piece: made floats beside the products of every block, they
//! took a fifth of the instructions.
//!
//! A piece lies within a segment. Sums of a segment that has several wait in memory between them; each takes in the same products in
//! the same order as if it did not.

use std::ops::Range;

use super::activations::{Floats, Head};
use super::scheme::Bits;
use super::tile::{Panels, Word, finish, start};
use crate::simd::{Lanes, Part, Simd};

/// How deep a piece is: 16 KiB as float32 (64 columns), which stay in the first-level cache;
const SMALL_PIECE: usize = 64;
/// and with many row blocks 64 KiB, which the second-level cache gives as fast as they are used.
const PIECE: usize = 256;
const FEW_BLOCKS: usize = 8;
/// Codes are asked for so far ahead of those that are widened.
const FURTHER: usize = 4 << 10;

/// How many blocks are enough to widen a piece for: with 8 bits two took 1.05 of the time that they take without, with 4 bits 0.87 to 0.95
/// (Emerald Rapids).
pub(super) fn blocks_for(bits: Bits) -> usize {
    match bits {
        Bits::Four => 2,
        Bits::Eight => 3,
    }
}

/// How deep the pieces of so many blocks are.
pub(super) fn piece_of(blocks: usize) -> usize {
    if blocks <= FEW_BLOCKS { SMALL_PIECE } else { PIECE }
}

/// What a thread has for itself: sums of each row of its blocks, those of the segment that is under way, and a piece.
pub(super) struct Rooms<'a, const C: usize> {
    pub sums: &'a mut [[Lanes<f32>; C]],
    pub waiting: &'a mut [[Lanes<f32>; C]],
    pub wide: &'a mut [[Lanes<f32>; C]],
}

/// The sums of one panel's columns for all rows of these blocks.
#[inline(always)]
pub(super) fn multiply<S: Simd, W: Word, const C: usize>(
    simd: S,
    panels: &Panels<'_>,
    panel: usize,
    blocks: Range<usize>,
    rooms: &mut Rooms<'_, C>,
) {
    let weight = panels.weight;
    let (layout, zero) = (weight.layout(), weight.scheme().bits.zero());
    let packed: &[f32] = bytemuck::cast_slice(panels.packed);
    let (depth, segment_depth) = (layout.padded_depth(), 4 * layout.quads);
    let first = panels.rows.block(blocks.start).start;
    let (codes, _) = weight.panel(panel).as_chunks::<C>();
    for (segment, codes) in codes.chunks_exact(layout.header + layout.words).take(layout.segments).enumerate() {
        let (header, words) = codes.split_at(layout.header);
        let mut from = 0;
        for words in words.chunks((rooms.wide.len() / (4 * W::QUADS)).max(1)) {
            let wide = &mut rooms.wide[..words.len() * 4 * W::QUADS];
            simd.apart(Widen::<W, C>::of(words, wide));
            let to = from + wide.len();
            for block in blocks.clone() {
                let rows = panels.rows.block(block);
                let within = rows.start - first..rows.end - first;
                let k = segment * segment_depth + from..segment * segment_depth + to;
                let step = Step {
                    header,
                    zero,
                    wide,
                    x: &packed[rows.start * depth..][k.start * rows.len()..k.end * rows.len()],
                    depth,
                    heads: &panels.heads[rows.start * layout.segments..][segment * rows.len()..][..rows.len()],
                    is_first: from == 0,
                    is_last: to == segment_depth,
                };
                let (sums, waiting) = (&mut rooms.sums[within.clone()], &mut rooms.waiting[within]);
                tile_of(simd, step, sums, waiting);
            }
            from = to;
        }
    }
}

/// Codes as floats, one word after the other.
struct Widen<'a, W, const C: usize> {
    words: &'a [[Lanes<u32>; C]],
    to: &'a mut [[Lanes<f32>; C]],
    word: std::marker::PhantomData<W>,
}

impl<'a, W, const C: usize> Widen<'a, W, C> {
    #[inline(always)]
    fn of(words: &'a [[Lanes<u32>; C]], to: &'a mut [[Lanes<f32>; C]]) -> Self {
        Self { words, to, word: std::marker::PhantomData }
    }
}

impl<S: Simd, W: Word, const C: usize> Part<S> for Widen<'_, W, C> {
    type Output = ();

    #[inline(always)]
    fn run(self, simd: S) {
        for (words, to) in self.words.iter().zip(self.to.chunks_exact_mut(4 * W::QUADS)) {
            for (column, word) in words.iter().enumerate() {
                simd.prefetch(word.as_ptr().cast::<u8>().wrapping_add(FURTHER));
                let word = simd.load_words(word);
                for quad in 0..W::QUADS {
                    for neighbour in 0..4 {
                        let code = W::float(simd, word, quad, neighbour as u32);
                        simd.store(code, &mut to[4 * quad + neighbour][column]);
                    }
                }
            }
        }
    }
}

/// A piece, and what a block of rows has for it.
#[derive(Clone, Copy)]
struct Step<'a, const C: usize> {
    /// Of its segment.
    header: &'a [[Lanes<u32>; C]],
    zero: i32,
    wide: &'a [[Lanes<f32>; C]],
    /// `[k][row]`, of a block that is so deep.
    x: &'a [f32],
    depth: usize,
    heads: &'a [Head],
    /// Of its segment.
    is_first: bool,
    is_last: bool,
}

/// As the tile of so many rows.
#[inline(always)]
fn tile_of<S: Simd, const C: usize>(
    simd: S,
    step: Step<'_, C>,
    sums: &mut [[Lanes<f32>; C]],
    waiting: &mut [[Lanes<f32>; C]],
) {
    match step.heads.len() {
        1 => simd.apart(Tile::<1, C> { step, sums, waiting }),
        2 => simd.apart(Tile::<2, C> { step, sums, waiting }),
        3 => simd.apart(Tile::<3, C> { step, sums, waiting }),
        4 => simd.apart(Tile::<4, C> { step, sums, waiting }),
        5 => simd.apart(Tile::<5, C> { step, sums, waiting }),
        6 => simd.apart(Tile::<6, C> { step, sums, waiting }),
        other => unreachable!("no class takes {other} rows at once"),
    }
}

/// M rows times 16 · C columns over one piece.
struct Tile<'a, const M: usize, const C: usize> {
    step: Step<'a, C>,
    sums: &'a mut [[Lanes<f32>; C]],
    waiting: &'a mut [[Lanes<f32>; C]],
}

impl<S: Simd, const M: usize, const C: usize> Part<S> for Tile<'_, M, C> {
    type Output = ();

    #[inline(always)]
    fn run(self, simd: S) {
        let Self { step: Step { header, zero, wide, x, depth, heads, is_first, is_last }, sums, waiting } = self;
        // Loops of a known length, or the sums would pass through the stack.
        let sums: &mut [_; M] = sums.first_chunk_mut().expect("sums of each row");
        let waiting: &mut [[Lanes<f32>; C]; M] = waiting.first_chunk_mut().expect("the same");
        let heads = heads.first_chunk().expect("a head of each row");
        let mut held = [[simd.splat(0.0); C]; M];
        if is_first {
            held = start::<S, Floats, M, C>(simd, header, zero, heads);
        } else {
            for (held, waiting) in held.iter_mut().zip(waiting.iter()) {
                for (held, waiting) in held.iter_mut().zip(waiting) {
                    *held = simd.load(waiting);
                }
            }
        }
        // The next block's: the processor foresees one linear stream, and they are as far away as a block is deep.
        let further = x.as_ptr().cast::<[f32; M]>().wrapping_add(depth);
        for (at, (codes, x)) in wide.iter().zip(x.as_chunks::<M>().0).enumerate() {
            simd.prefetch(further.wrapping_add(at).cast());
            for (held, &x) in held.iter_mut().zip(x) {
                let x = simd.splat(x);
                for (held, code) in held.iter_mut().zip(codes) {
                    *held = simd.fma(simd.load(code), x, *held);
                }
            }
        }
        if is_last {
            finish::<S, Floats, M, C>(simd, &held, header, heads, sums);
        } else {
            for (held, waiting) in held.iter().zip(waiting) {
                for (&held, waiting) in held.iter().zip(waiting) {
                    simd.store(held, waiting);
                }
            }
        }
    }
}
