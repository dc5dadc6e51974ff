//! Weighted values: by vectors for few queries ([`super::few`]), in tiles for more.

use std::borrow::Borrow;
use std::ops::Range;

use super::super::few::blocks;
use super::super::piece::{PIECE, State, Walk};
use super::few::FEW;
use super::{STEP, STEP_BYTES, Tiled, VECTORS, bytes_of_block, shape_of};
use crate::amx::{Ahead, Bf16WidePairs, Lie, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS};
use crate::cached::Held;
use crate::element::{Bf16, Element};
use crate::lined::Lined;
use crate::simd::{LANES, Lanes, Simd};

/// Up to so many queries, values stay in the first-level cache: as many of them at a time. More would rather load and store their sums less
/// often.
const SOME: usize = 2 * TILE_ROWS;
/// Keys whose values do.
const NEAR_KEYS: usize = 2 * STEP;
/// Bytes from the first half of the columns to the second.
const HALF: usize = VECTORS / 2 * size_of::<Lanes<u32>>();

impl<S: Simd> Tiled<S> {
    /// Adds weight · value of `keys` to the sums of these queries, with zeros for values that are not `seen`.
    #[inline(always)]
    pub(super) fn add_seen<E: Element, H: Held<E>>(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        keys: Range<usize>,
        seen: Range<usize>,
    ) {
        self.round_weights(state, queries.clone(), &keys);
        if queries.len() <= FEW {
            self.next.spread(keys.len().div_ceil(4) * self.dim.div_ceil(STEP));
            let seen = seen.start - keys.start..seen.end - keys.start;
            let (query, places) = (queries.start, &places[keys]);
            return match queries.len() {
                1 => self.add_few::<1, E, H>(walk, state, query, places, &seen),
                2 => self.add_few::<2, E, H>(walk, state, query, places, &seen),
                3 => self.add_few::<3, E, H>(walk, state, query, places, &seen),
                _ => self.add_few::<FEW, E, H>(walk, state, query, places, &seen),
            };
        }
        self.next.spread(keys.len().div_ceil(2));
        let some = if queries.len() <= SOME { NEAR_KEYS } else { PIECE };
        // Two rooms: tiles that are loaded right after they were stored wait for it, so others are stored between.
        let room = self.dim.div_ceil(SUM_COLUMNS) * keys.len().min(some).div_ceil(STEP) * TILE_WORDS * VECTORS;
        let reach = self.values.len().max(2 * room);
        self.values.resize(reach);
        let (mut here, mut other) = (0, room);
        let of = |first: usize| seen.start.max(first) - first..seen.end.max(first) - first;
        self.pair_values(walk, &places[keys.start..keys.end.min(keys.start + some)], &of(keys.start), here);
        for first in keys.clone().step_by(some) {
            let beyond = keys.end.min(first + some);
            if beyond < keys.end {
                self.pair_values(walk, &places[beyond..keys.end.min(beyond + some)], &of(beyond), other);
            }
            let steps = (beyond - first).div_ceil(STEP);
            for panel in 0..self.dim.div_ceil(SUM_COLUMNS) {
                let sums = &mut state.piece[queries.start * state.vectors + panel * VECTORS..];
                let sums = bytemuck::cast_slice_mut(sums.as_flattened_mut());
                let values = here + panel * steps * TILE_WORDS * VECTORS;
                let weights = (first - keys.start, queries.len());
                self.multiply_values(sums, state.vectors * LANES, weights, values, steps);
            }
            (here, other) = (other, here);
        }
    }

    /// Rounds the weights of these keys, from the first on; those of keys that a query does not see are 0.
    #[inline(always)]
    fn round_weights<E: Element>(&mut self, state: &State<E>, queries: Range<usize>, keys: &Range<usize>) {
        self.weights.resize(queries.len());
        let to = keys.len().next_multiple_of(STEP);
        for (query, row) in queries.zip(self.weights.iter_mut()) {
            let seen = state.weighed[query].seen_of(keys);
            let (first, end) = (seen.start - keys.start, seen.end - keys.start);
            let some = first / STEP..end.div_ceil(STEP);
            let (rounded, _) = row.as_chunks_mut::<STEP>();
            let (weights, _) = state.scores[query][keys.start..].as_chunks::<LANES>();
            let (pairs, _) = weights.as_chunks::<2>();
            for (rounded, weights) in rounded[some.clone()].iter_mut().zip(&pairs[some]) {
                *rounded = self.simd.round_to_bf16(weights);
            }
            row[..first].fill(Bf16::default());
            row[end..to].fill(Bf16::default());
        }
    }

    /// Puts the values of these keys into pairs, with zeros for those that are not `seen` and behind the last. Asks for what comes next, or
    /// memory would rest.
    #[inline(always)]
    fn pair_values<E: Element, H: Held<E>>(
        &mut self,
        walk: &Walk<'_, E, H>,
        places: &[usize],
        seen: &Range<usize>,
        room: usize,
    ) {
        let steps = places.len().div_ceil(STEP);
        let panel = steps * TILE_WORDS * VECTORS;
        let pairs = places.len().div_ceil(2);
        let nothing = std::mem::replace(&mut self.nothing, Lined::new());
        let nothing_of_head: &[H] = &bytemuck::cast_slice(&nothing)[..self.dim];
        for pair in 0..pairs {
            let (mut first, mut second) = (nothing_of_head, nothing_of_head);
            if seen.contains(&(2 * pair)) {
                first = &walk.v_cache[places[2 * pair]..][..self.dim];
            }
            if seen.contains(&(2 * pair + 1)) {
                second = &walk.v_cache[places[2 * pair + 1]..][..self.dim];
            }
            self.next.ask(self.simd, [walk.k_cache, walk.v_cache]);
            self.zip::<E, H>(room + pair * VECTORS, panel, first, second);
        }
        self.nothing = nothing;
        for pair in pairs..steps * TILE_WORDS {
            let panels = self.values[room..].chunks_exact_mut(panel);
            for panel in panels.take(self.dim.div_ceil(SUM_COLUMNS)) {
                panel[pair * VECTORS..(pair + 1) * VECTORS].fill([0; LANES]);
            }
        }
    }

    /// Two neighbouring keys' values.
    #[inline(always)]
    fn zip<E: Element, H: Held<E>>(&mut self, to: usize, panel: usize, first: &[H], second: &[H]) {
        let ((first, first_tail), (second, second_tail)) = (blocks::<H, H::Block>(first), blocks(second));
        let halves = self.dim.next_multiple_of(SUM_COLUMNS) / STEP;
        for half in 0..halves {
            let to = &mut self.values[to + half / 2 * panel + half % 2 * 2..];
            let to = to.first_chunk_mut().expect("room for a piece's pairs");
            if let (Some(first), Some(second)) = (first.get(half), second.get(half)) {
                let (first, second) = (H::wide(self.simd, first), H::wide(self.simd, second));
                self.simd.zip(bytes_of_block(first.borrow()), bytes_of_block(second.borrow()), to);
            } else if let (true, Some(first), Some(second)) = (half == first.len(), &first_tail, &second_tail) {
                let (first, second) = (H::wide(self.simd, first), H::wide(self.simd, second));
                self.simd.zip(bytes_of_block(first.borrow()), bytes_of_block(second.borrow()), to);
            } else {
                *to = [[0; LANES]; 2];
            }
        }
    }

    /// `sums += weights · values` of 64 numbers of the head, of `steps` steps, `row` words from a query to the next. `weights`: the first of
    /// the rounded ones, and of how many queries.
    #[inline(always)]
    fn multiply_values(
        &mut self,
        sums: &mut [u32],
        row: usize,
        (first_key, queries): (usize, usize),
        values: usize,
        steps: usize,
    ) {
        let weights: &[Bf16] = &self.weights.as_flattened()[first_key..];
        let lie = Lie { row: PIECE * size_of::<Bf16>(), step: STEP_BYTES };
        let values: &[u8] = bytemuck::cast_slice(&self.values[values..]);
        let whole = queries / TILE_ROWS * TILE_ROWS;
        let pairs = whole / (2 * TILE_ROWS) * 2 * TILE_ROWS;
        if whole > 0 {
            self.tiles.reshape(shape_of(TILE_ROWS));
        }
        for half in 0..2 {
            for first in (0..pairs).step_by(2 * TILE_ROWS) {
                let sums = &mut sums[first * row + half * SUM_COLUMNS / 2..];
                let x = [&weights[first * PIECE..], &weights[(first + TILE_ROWS) * PIECE..]].map(bytemuck::cast_slice);
                let sums = Sums { sums, row, are_fresh: false };
                self.tiles.two_by_two::<Bf16WidePairs>(sums, x, lie, &values[half * HALF..], Ahead::NOTHING, steps);
            }
        }
        for (first, count) in [(pairs, whole - pairs), (whole, queries - whole)] {
            if count > 0 {
                self.tiles.reshape(shape_of(count));
                let sums = Sums { sums: &mut sums[first * row..], row, are_fresh: false };
                let x = bytemuck::cast_slice(&weights[first * PIECE..]);
                self.tiles.one_by_four::<Bf16WidePairs>(sums, x, lie, values, HALF, Ahead::NOTHING, steps);
            }
        }
    }
}
