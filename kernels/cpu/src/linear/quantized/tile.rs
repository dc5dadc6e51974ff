//! The inner loops: panels of codes times blocks of rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{Floats, Form, Head, Int8, Pairs, Quad};
use super::pack::Layout;
use super::scheme::Bits;
use super::wide::{self, Rooms};
use super::{QuantizedWeight, Results};
use crate::linear::ahead::{Ahead, Lines};
use crate::linear::{GROUP_ROWS, Rows};
use crate::simd::{Kernel, LANES, Lanes, Part, Simd};
use crate::split::part;

/// How deep a piece is that all row blocks use before the next: 128 KiB of a 64-column panel of 8 bits.
const PIECE: usize = 2048;

/// Some of the units of work of one call: a unit is one panel and one group of row blocks, as in `linear`.
pub(super) struct Panels<'a> {
    pub results: &'a Results<'a>,
    pub packed: &'a [u32],
    pub heads: &'a [Head],
    pub weight: &'a QuantizedWeight,
    pub form: Form,
    /// Whether pieces are made floats once for all blocks.
    pub is_wide: bool,
    pub rows: Rows,
    pub groups: usize,
    pub units: Range<usize>,
    /// Whether the processor foresees what lies further on.
    pub foresees: bool,
    /// Of this thread: what [`Rooms`] holds, without the last two if nothing is made floats.
    pub own: &'a mut [f32],
}

/// How many codes a word of a column has, as quads.
pub(super) trait Word {
    const QUADS: usize;

    /// The quad that comes first, or second.
    fn quad<S: Simd>(simd: S, word: S::I, at: usize) -> S::I;
    /// One code of it.
    fn float<S: Simd>(simd: S, word: S::I, at: usize, neighbour: u32) -> S::V;
    /// The same, less the middle code.
    #[cfg(target_arch = "x86_64")]
    fn centred<S: Simd>(simd: S, word: S::I, at: usize, neighbour: u32) -> S::V;
    /// Its first two codes, or its second two.
    fn two<S: Simd>(simd: S, word: S::I, at: usize, half: u32) -> S::Codes;
}

/// A byte each.
pub(super) struct EightBits;

impl Word for EightBits {
    const QUADS: usize = 1;

    #[inline(always)]
    fn quad<S: Simd>(_: S, word: S::I, _: usize) -> S::I {
        word
    }

    #[inline(always)]
    fn float<S: Simd>(simd: S, word: S::I, _: usize, neighbour: u32) -> S::V {
        simd.byte(word, 8 * neighbour)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn centred<S: Simd>(simd: S, word: S::I, _: usize, neighbour: u32) -> S::V {
        simd.sub(simd.byte(word, 8 * neighbour), simd.splat(128.0))
    }

    #[inline(always)]
    fn two<S: Simd>(simd: S, word: S::I, _: usize, half: u32) -> S::Codes {
        simd.two_bytes(word, 16 * half)
    }
}

/// Half a byte each: a word's first quad below its second.
pub(super) struct FourBits;

impl Word for FourBits {
    const QUADS: usize = 2;

    #[inline(always)]
    fn quad<S: Simd>(simd: S, word: S::I, at: usize) -> S::I {
        if at == 0 { simd.low_nibbles(word) } else { simd.high_nibbles(word) }
    }

    #[inline(always)]
    fn float<S: Simd>(simd: S, word: S::I, at: usize, neighbour: u32) -> S::V {
        simd.nibble(word, 8 * neighbour + 4 * at as u32)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn centred<S: Simd>(simd: S, word: S::I, at: usize, neighbour: u32) -> S::V {
        simd.nibble_less_8(word, 8 * neighbour + 4 * at as u32)
    }

    #[inline(always)]
    fn two<S: Simd>(simd: S, word: S::I, at: usize, half: u32) -> S::Codes {
        simd.two_nibbles(word, 16 * half + 4 * at as u32)
    }
}

impl Kernel for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match const { S::WIDTH } {
            4 => self.walk::<S, 4>(simd),
            1 => self.walk::<S, 1>(simd),
            other => unreachable!("no class has tiles of {other} vectors"),
        }
    }
}

impl Panels<'_> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(mut self, simd: S) {
        let own = std::mem::take(&mut self.own).as_chunks_mut::<LANES>().0.as_chunks_mut::<C>().0;
        let group_rows = GROUP_ROWS.min(self.rows.rows);
        let (all_sums, own) = own.split_at_mut(group_rows);
        let (waiting, wide) = own.split_at_mut(if self.is_wide { group_rows } else { 0 });
        let scheme = self.weight.scheme();
        for unit in self.units.clone() {
            let (panel, group) = (unit / self.groups, unit % self.groups);
            let blocks = part(self.rows.blocks(), self.groups, group);
            let first = self.rows.block(blocks.start).start;
            let sums = &mut all_sums[..self.rows.block(blocks.end - 1).end - first];
            sums.fill([[0.0; LANES]; C]);
            let mut rooms = Rooms { sums, waiting: &mut *waiting, wide: &mut *wide };
            match (scheme.bits, self.form) {
                (Bits::Eight, _) if self.is_wide => {
                    wide::multiply::<S, EightBits, C>(simd, &self, panel, blocks, &mut rooms);
                }
                (Bits::Four, _) if self.is_wide => {
                    wide::multiply::<S, FourBits, C>(simd, &self, panel, blocks, &mut rooms);
                }
                (Bits::Eight, Form::Int8) => self.multiply::<S, EightBits, Int8, C>(simd, panel, blocks, rooms.sums),
                (Bits::Eight, Form::Floats) => {
                    self.multiply::<S, EightBits, Floats, C>(simd, panel, blocks, rooms.sums)
                }
                // Where there are no products of pairs, their words are floats, and so is what is compiled.
                (Bits::Eight, Form::Pairs) if const { S::HAS_PAIRS } => {
                    self.multiply::<S, EightBits, Pairs, C>(simd, panel, blocks, rooms.sums);
                }
                (Bits::Eight, Form::Pairs) => self.multiply::<S, EightBits, Floats, C>(simd, panel, blocks, rooms.sums),
                (Bits::Four, Form::Int8) => self.multiply::<S, FourBits, Int8, C>(simd, panel, blocks, rooms.sums),
                (Bits::Four, Form::Floats) => self.multiply::<S, FourBits, Floats, C>(simd, panel, blocks, rooms.sums),
                (Bits::Four, Form::Pairs) if const { S::HAS_PAIRS } => {
                    self.multiply::<S, FourBits, Pairs, C>(simd, panel, blocks, rooms.sums);
                }
                (Bits::Four, Form::Pairs) => self.multiply::<S, FourBits, Floats, C>(simd, panel, blocks, rooms.sums),
            }
            let width = C * LANES;
            // SAFETY: this panel's columns of these rows belong to this unit of work alone.
            unsafe {
                self.results.write(simd, (first, panel * width), width, rooms.sums.as_flattened().as_flattened(), false)
            };
        }
    }

    /// The sums of one panel's columns for all rows of these blocks.
    #[inline(always)]
    fn multiply<S: Simd, W: Word, Q: Quad, const C: usize>(
        &self,
        simd: S,
        panel: usize,
        blocks: Range<usize>,
        sums: &mut [[Lanes<f32>; C]],
    ) {
        let layout = self.weight.layout();
        let packed: &[Q::X<S>] = bytemuck::cast_slice(self.packed);
        let panel = self.weight.panel(panel);
        let start = self.rows.block(blocks.start).start;
        let zero = self.weight.scheme().bits.zero();
        let step = (PIECE / (4 * layout.quads)).max(1);
        for from in (0..layout.segments).step_by(step) {
            let to = layout.segments.min(from + step);
            let size = layout.segment_vectors();
            let (codes, _) = panel[from * size..to * size].as_chunks::<C>();
            for (pass, block) in blocks.clone().enumerate() {
                let rows = self.rows.block(block);
                let (count, quads) = (rows.len(), layout.quads);
                let x = &packed[rows.start * layout.segments * quads..][from * quads * count..to * quads * count];
                let heads = &self.heads[rows.start * layout.segments..][from * count..to * count];
                let piece = Piece { layout, zero, codes, x, heads };
                let sums = &mut sums[rows.start - start..rows.end - start];
                let ahead = match blocks.len() {
                    1 => Lines::further_on(codes, self.foresees),
                    several => Lines::of_next_piece(codes, pass, several),
                };
                tile_of::<S, W, Q, C>(simd, count, piece, sums, ahead);
            }
        }
    }
}

/// Some segments of a panel, and what a block of rows has for them.
#[derive(Clone, Copy)]
struct Piece<'a, X, const C: usize> {
    layout: Layout,
    zero: i32,
    codes: &'a [[Lanes<u32>; C]],
    x: &'a [X],
    heads: &'a [Head],
}

/// `rows` rows times 16 · C columns, as the tile of that many rows.
#[inline(always)]
fn tile_of<S: Simd, W: Word, Q: Quad, const C: usize>(
    simd: S,
    rows: usize,
    piece: Piece<'_, Q::X<S>, C>,
    sums: &mut [[Lanes<f32>; C]],
    ahead: impl Ahead,
) {
    match rows {
        1 => simd.apart(Tile::<_, W, Q, _, 1, C>::of(piece, sums, ahead)),
        2 => simd.apart(Tile::<_, W, Q, _, 2, C>::of(piece, sums, ahead)),
        3 => simd.apart(Tile::<_, W, Q, _, 3, C>::of(piece, sums, ahead)),
        4 => simd.apart(Tile::<_, W, Q, _, 4, C>::of(piece, sums, ahead)),
        5 => simd.apart(Tile::<_, W, Q, _, 5, C>::of(piece, sums, ahead)),
        6 => simd.apart(Tile::<_, W, Q, _, 6, C>::of(piece, sums, ahead)),
        other => unreachable!("no class takes {other} rows at once"),
    }
}

/// [`tile`] with its arguments.
struct Tile<'a, X, W, Q, A, const M: usize, const C: usize> {
    piece: Piece<'a, X, C>,
    sums: &'a mut [[Lanes<f32>; C]],
    ahead: A,
    form: PhantomData<(W, Q)>,
}

impl<'a, X, W, Q, A, const M: usize, const C: usize> Tile<'a, X, W, Q, A, M, C> {
    #[inline(always)]
    fn of(piece: Piece<'a, X, C>, sums: &'a mut [[Lanes<f32>; C]], ahead: A) -> Self {
        Self { piece, sums, ahead, form: PhantomData }
    }
}

impl<S: Simd, W: Word, Q: Quad, A: Ahead, const M: usize, const C: usize> Part<S> for Tile<'_, Q::X<S>, W, Q, A, M, C> {
    type Output = ();

    #[inline(always)]
    fn run(self, simd: S) {
        tile::<S, W, Q, M, C>(simd, self.piece, self.sums, self.ahead);
    }
}

/// M rows times 16 · C columns over one piece; a segment's sums stay in registers, its results are added in memory.
#[inline(always)]
fn tile<S: Simd, W: Word, Q: Quad, const M: usize, const C: usize>(
    simd: S,
    piece: Piece<'_, Q::X<S>, C>,
    sums: &mut [[Lanes<f32>; C]],
    mut ahead: impl Ahead,
) {
    // Loops of a known length, or the sums would pass through the stack.
    let sums: &mut [_; M] = sums.first_chunk_mut().expect("sums of each row");
    let Layout { quads, header, words, .. } = piece.layout;
    let segments = piece.codes.chunks_exact(header + words);
    let x = piece.x.as_chunks::<M>().0.chunks_exact(quads);
    let firsts = (0..).step_by(header + words);
    for (((segment, first), x), heads) in segments.zip(firsts).zip(x).zip(piece.heads.as_chunks::<M>().0) {
        let (header, words) = segment.split_at(header);
        let mut held = start::<S, Q, M, C>(simd, header, piece.zero, heads);
        for (at, (words, x)) in words.iter().zip(x.chunks_exact(W::QUADS)).enumerate() {
            ahead.step(simd, first + header.len() + at);
            // Written out, so that `at` is a constant.
            Q::add::<S, W, M, C>(simd, &mut held, words, 0, &x[0]);
            if const { W::QUADS == 2 } {
                Q::add::<S, W, M, C>(simd, &mut held, words, 1, &x[1]);
            }
        }
        finish::<S, Q, M, C>(simd, &held, header, heads, sums);
    }
}

/// The sums with which a segment of this header begins.
#[inline(always)]
pub(super) fn start<S: Simd, Q: Quad, const M: usize, const C: usize>(
    simd: S,
    header: &[[Lanes<u32>; C]],
    zero: i32,
    heads: &[Head; M],
) -> [[Q::Sum<S>; C]; M] {
    let mut held = [[Q::start(simd, 0, heads[0]); C]; M];
    for (held, &head) in held.iter_mut().zip(heads) {
        match header.get(1) {
            None => *held = [Q::start(simd, zero, head); C],
            Some(zeros) => {
                for (held, zeros) in held.iter_mut().zip(zeros) {
                    *held = Q::start_each(simd, zeros, head);
                }
            }
        }
    }
    held
}

/// Adds a segment's sums, times the scales of its header and of its rows.
#[inline(always)]
pub(super) fn finish<S: Simd, Q: Quad, const M: usize, const C: usize>(
    simd: S,
    held: &[[Q::Sum<S>; C]; M],
    header: &[[Lanes<u32>; C]],
    heads: &[Head; M],
    sums: &mut [[Lanes<f32>; C]; M],
) {
    for ((held, sums), head) in held.iter().zip(sums.iter_mut()).zip(heads) {
        let x_scale = simd.splat(head.scale);
        for ((&held, sum), scales) in held.iter().zip(sums).zip(&header[0]) {
            let scales = simd.load(bytemuck::cast_ref(scales));
            let total = simd.fma(Q::finish(simd, held), simd.mul(scales, x_scale), simd.load(sum));
            simd.store(total, sum);
        }
    }
}
