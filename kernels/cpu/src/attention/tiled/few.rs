//! Few queries: their scores by tiles of as few columns, which are near enough to rows to be turned in no time, and their weighted values
//! by vectors, with the bits of tiles: tiles would be mostly padding, and values would have to be
//! paired in memory first.
//!
//! A step's sum is two chains, one of its even keys and one of its odd ones. The instruction for pairs of bfloat16 takes the upper number's
//! product first and the lower one's then, rounds each and knows no subnormals, as tiles do: so a pair of neighbours in a chain,
//! the first of them in the upper half, is two links of it.

use std::borrow::Borrow;
use std::ops::Range;

use bytemuck::{NoUninit, Zeroable};

use super::super::few::blocks;
use super::super::piece::{PIECE, State, Walk};
use super::{STEP, Tiled, bytes_of_block};
use crate::amx::TILE_WORDS;
use crate::cached::Held;
use crate::element::Element;
use crate::lined::Lined;
use crate::simd::{LANES, Lanes, Simd};

/// A step's keys by fours: two pairs, of even keys and of odd ones.
const FOURS: usize = STEP / 4;

/// Up to so many queries are few: the values of four take less time by vectors than in tiles, those of eight more.
pub(super) const FEW: usize = 4;
const _: () = assert!(FEW == 4, "columns are 1, 2 or 4");

/// Into how many columns few queries go; 0 where they are many.
pub(super) fn columns(queries: usize) -> usize {
    if queries <= FEW { queries.next_power_of_two() } else { 0 }
}

/// Takes the sums of keys, `[key][column]`, apart into scores of queries, the first of them in column `first`; each times its key's factor.
#[inline(always)]
pub(super) fn part_scores(
    scores: &mut [[f32; PIECE]],
    from: usize,
    sums: &[u32],
    columns: usize,
    first: usize,
    factors: &[f32],
) {
    match columns {
        1 => part::<1>(scores, from, sums, first, factors),
        2 => part::<2>(scores, from, sums, first, factors),
        _ => part::<FEW>(scores, from, sums, first, factors),
    }
}

#[inline(always)]
fn part<const C: usize>(scores: &mut [[f32; PIECE]], from: usize, sums: &[u32], first: usize, factors: &[f32]) {
    let (keys, _) = sums.as_chunks::<C>();
    for (scores, column) in scores.iter_mut().zip(first..C) {
        for ((score, sums), factor) in scores[from..].iter_mut().zip(keys).zip(factors) {
            *score = f32::from_bits(sums[column]) * factor;
        }
    }
}

impl<S: Simd> Tiled<S> {
    /// Turns few queries, `[query][step]`, into columns. Those behind them are zeros.
    #[inline(always)]
    pub(super) fn turn_few<B: NoUninit>(&mut self, queries: &[B], steps: usize) {
        match self.columns {
            1 => self.turn_into::<1, B>(queries, steps),
            2 => self.turn_into::<2, B>(queries, steps),
            _ => self.turn_into::<FEW, B>(queries, steps),
        }
    }

    #[inline(always)]
    fn turn_into<const C: usize, B: NoUninit>(&mut self, queries: &[B], steps: usize) {
        self.few.resize(steps * TILE_WORDS * C);
        let (words, _) = self.few.as_chunks_mut::<C>();
        for (step, words) in words.chunks_exact_mut(TILE_WORDS).enumerate() {
            let mut rows = [[0; LANES]; C];
            for (row, query) in rows.iter_mut().zip(queries.chunks_exact(steps)) {
                *row = bytemuck::pod_read_unaligned(bytes_of_block(&query[step]));
            }
            for (word, to) in words.iter_mut().enumerate() {
                for (to, row) in to.iter_mut().zip(&rows) {
                    *to = row[word];
                }
            }
        }
    }

    /// Adds weight · value of the keys at these places, which begin a step, to the sums of `Q` queries, with zeros for values that are not
    /// `seen`. Their weights are rounded.
    #[inline(always)]
    pub(super) fn add_few<const Q: usize, E: Element, H: Held<E>>(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        query: usize,
        places: &[usize],
        seen: &Range<usize>,
    ) {
        let nothing = std::mem::replace(&mut self.nothing, Lined::new());
        let nothing_of_head: &[H] = &bytemuck::cast_slice(&nothing)[..self.dim];
        for first in (0..places.len()).step_by(STEP) {
            let count = STEP.min(places.len() - first);
            let mut heads = [[nothing_of_head; 4]; FOURS];
            for (at, head) in heads.as_flattened_mut()[..count].iter_mut().enumerate() {
                if seen.contains(&(first + at)) {
                    *head = &walk.v_cache[places[first + at]..][..self.dim];
                }
            }
            let mut pairs = [[[S::Pair::zeroed(); 2]; FOURS]; Q];
            for (at, pairs) in pairs.iter_mut().enumerate() {
                let (fours, _) = self.weights[at][first..first + STEP].as_chunks::<4>();
                for (to, &[a, b, c, d]) in pairs.iter_mut().zip(fours) {
                    *to = [self.simd.pair(c, a), self.simd.pair(d, b)];
                }
            }
            // Those behind the last key add nothing.
            let heads = &heads[..count.div_ceil(4)];
            let mut whole = [[&[][..]; 4]; FOURS];
            for (whole, heads) in whole.as_flattened_mut().iter_mut().zip(heads.as_flattened()) {
                *whole = blocks::<H, H::Block>(heads).0;
            }
            let blocks_of_head = self.dim / STEP;
            for block in 0..blocks_of_head {
                self.add_step::<Q, E, H>(walk, state, query, block, &whole[..heads.len()], block, &pairs);
            }
            if blocks_of_head * STEP < self.dim {
                let mut tails = [[H::Block::zeroed(); 4]; FOURS];
                for (tail, head) in tails.as_flattened_mut().iter_mut().zip(heads.as_flattened()) {
                    *tail = blocks::<H, H::Block>(head).1.expect("a head ends as all do");
                }
                let mut heads_of_tails = [[&[][..]; 4]; FOURS];
                for (head, tail) in heads_of_tails.as_flattened_mut().iter_mut().zip(tails.as_flattened()) {
                    *head = std::slice::from_ref(tail);
                }
                self.add_step::<Q, E, H>(walk, state, query, blocks_of_head, &heads_of_tails[..heads.len()], 0, &pairs);
            }
        }
        self.nothing = nothing;
    }

    /// One step of keys and one block of the head, which stands at `at` in each key's.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what is added to what, and what is asked for meanwhile")]
    fn add_step<const Q: usize, E: Element, H: Held<E>>(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        query: usize,
        block: usize,
        heads: &[[&[H::Block]; 4]],
        at: usize,
        pairs: &[[[S::Pair; 2]; FOURS]; Q],
    ) {
        // `[query][chain][even or odd numbers of the block]`
        let mut chains = [[[self.simd.splat(0.0); 2]; 2]; Q];
        for (four, heads) in heads.iter().enumerate() {
            self.next.ask(self.simd, [walk.k_cache, walk.v_cache]);
            for chain in 0..2 {
                let (first, second) =
                    (H::wide(self.simd, &heads[chain][at]), H::wide(self.simd, &heads[2 + chain][at]));
                let mut values = [[0; LANES]; 2];
                self.simd.turn(bytes_of_block(first.borrow()), bytes_of_block(second.borrow()), &mut values);
                for (chains, pairs) in chains.iter_mut().zip(pairs) {
                    for (sum, values) in chains[chain].iter_mut().zip(&values) {
                        *sum = self.simd.dot_pairs(*sum, values, pairs[four][chain]);
                    }
                }
            }
        }
        for (at, [even, odd]) in chains.iter().enumerate() {
            let to = &mut state.piece[(query + at) * state.vectors + 2 * block..];
            let to: &mut [Lanes<f32>; 2] = to.first_chunk_mut().expect("a block's sums");
            let sums = [self.flushed_sum(even[0], odd[0]), self.flushed_sum(even[1], odd[1])];
            for (to, sum) in to.iter_mut().zip(self.simd.alternate(sums)) {
                self.simd.store(self.flushed_sum(self.simd.load(to), sum), to);
            }
        }
    }

    /// a + b, or 0 where that is subnormal.
    #[inline(always)]
    fn flushed_sum(&self, a: S::V, b: S::V) -> S::V {
        self.simd.flush(self.simd.add(a, b))
    }
}
