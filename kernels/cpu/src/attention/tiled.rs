//! Scores and weighted values of bfloat16 in tiles (AMX), for one query or many.
//!
//! 1. A score is the tiles' sum over the head, 32 numbers at a time. 16 keys are the rows of a tile: where a block holds them side by
//!    side, as they lie in the cache. Queries are columns, and so are turned once; scores are turned back by vectors.
//! 2. Weights are rounded to bfloat16, since tiles multiply nothing longer. What they are divided by in the end is the sum of the
//!    weights before that.
//! 3. Values are columns as they lie, but for neighbouring keys, which stand in one word. Steps of 32 keys begin at multiples of 32
//!    from the piece's first, whoever walks together; a key that a query does not see has the weight 0, and one that nobody has is 0.
//!    So a step takes nothing from keys that are hidden, as long as values are finite. Where a value is not that a part of the
//!    queries sees, each query meets its own keys alone.
//! 4. Adding nothing changes no sum but −0, which a sum becomes only where it underflows; merged with others it is +0, unless these
//!    vanish beside it.

use std::borrow::Borrow;
use std::ops::Range;

use bytemuck::NoUninit;

use super::few::{blocks, shared};
use super::piece::{PIECE, State, Walk};
use super::products::Products;
use crate::amx::{Amx, Bf16WidePairs, Lie, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
use crate::cache::{CacheFormat, CacheShape};
use crate::cached::Held;
use crate::element::{Bf16, Element};
use crate::lined::Lined;
use crate::simd::{LANES, Lanes, Simd};

/// Numbers of a head, or keys, that a step takes in.
const STEP: usize = 2 * TILE_WORDS;
/// Keys of a product.
const KEYS: usize = 4 * TILE_ROWS;
/// Queries of a product of many: half of the columns.
const QUERIES: usize = SUM_COLUMNS / 2;
/// Keys whose values stay in the first-level cache: as many at a time where few queries meet them. Many would rather load and store their
/// sums less often.
const NEAR_KEYS: usize = 2 * STEP;
/// Vectors of a word or a pair: a row of the weights' tiles.
const VECTORS: usize = SUM_COLUMNS / LANES;
/// Bytes of a step of one row.
const STEP_BYTES: usize = STEP * size_of::<Bf16>();
/// Bytes from the first half of the columns to the second.
const HALF: usize = VECTORS / 2 * size_of::<Lanes<u32>>();

/// What a thread keeps.
pub(super) struct Tiled<S: Simd> {
    simd: S,
    tiles: Tiles,
    dim: usize,
    /// `[64 queries][step of the head][word][vector]`
    queries: Lined<Lanes<u32>>,
    /// Which of the task's is the first of these.
    entered: usize,
    /// `[key][step of the head]`: those that do not lie as tiles take them.
    keys: Lined<Lanes<u32>>,
    /// Places of the keys that come next, the last first: those that were not asked for.
    next: Vec<usize>,
    /// How many of these are asked for beside two keys' values.
    next_of_pair: usize,
    /// A head of zeros.
    nothing: Lined<u32>,
    /// `[key][query]` of one product, before they are turned back.
    sums: Lined<u32>,
    /// `[64 numbers of the head][step of keys][pair of keys][vector]`
    values: Lined<Lanes<u32>>,
    /// `[query]`, from the first key on that is asked for.
    weights: Lined<[Bf16; PIECE]>,
}

impl<S: Simd> Tiled<S> {
    /// # Safety
    /// No [`Tiles`] of this thread is alive until this one is dropped.
    #[inline(always)]
    pub(super) unsafe fn new(simd: S, amx: Amx, dim: usize) -> Self {
        // SAFETY: the caller vouches for it.
        let tiles = unsafe { amx.tiles(shape_of(TILE_ROWS)) };
        let (mut keys, mut sums, mut nothing) = (Lined::new(), Lined::new(), Lined::new());
        keys.resize(KEYS * dim.div_ceil(STEP));
        sums.resize(KEYS * QUERIES);
        nothing.resize(dim); // of two bytes or one
        Self {
            simd,
            tiles,
            dim,
            queries: Lined::new(),
            entered: 0,
            keys,
            next: vec![],
            next_of_pair: 0,
            nothing,
            sums,
            values: Lined::new(),
            weights: Lined::new(),
        }
    }

    /// Turns queries, `[query][step]`, into columns. What stands where there are fewer means nothing.
    #[inline(always)]
    fn turn_queries<B: NoUninit>(&mut self, queries: &[B], steps: usize) {
        let panel = steps * TILE_WORDS * VECTORS;
        self.queries.resize(queries.len().div_ceil(SUM_COLUMNS * steps) * panel);
        for (number, queries) in queries.chunks(LANES * steps).enumerate() {
            for step in 0..steps {
                let mut rows = [[0; LANES]; LANES];
                for (row, query) in rows.iter_mut().zip(queries.chunks_exact(steps)) {
                    *row = bytemuck::pod_read_unaligned(bytes_of_block(&query[step]));
                }
                self.simd.transpose(&mut rows);
                let to = &mut self.queries[number / VECTORS * panel + step * TILE_WORDS * VECTORS + number % VECTORS..];
                for (to, row) in to.iter_mut().step_by(VECTORS).zip(rows) {
                    *to = row;
                }
            }
        }
    }

    /// Puts keys that do not lie as tiles take them into room number `group`.
    #[inline(always)]
    fn gather_keys<E: Element, H: Held<E>>(&mut self, walk: &Walk<'_, E, H>, places: &[usize], group: usize) {
        let steps = self.dim.div_ceil(STEP);
        let rooms = self.keys[group * TILE_ROWS * steps..].chunks_exact_mut(steps);
        for (to, &place) in rooms.zip(places) {
            let (whole, tail) = blocks::<H, H::Block>(&walk.k_cache[place..place + self.dim]);
            for (to, from) in to.iter_mut().zip(whole.iter().chain(&tail)) {
                let wide = H::wide(self.simd, from);
                *to = bytemuck::pod_read_unaligned(bytes_of_block(wide.borrow()));
            }
        }
    }

    /// These keys come next.
    fn come_next(&mut self, places: &[usize]) {
        self.next.clear();
        self.next.extend(places.iter().rev());
    }

    /// Puts the values of these keys into pairs, with zeros for those that are not `seen` and behind the last. Asks for keys that come next: values came while scores were
    /// computed, so memory would rest now.
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
            for _ in 0..self.next_of_pair {
                if let Some(next) = self.next.pop() {
                    walk.prefetch(self.simd, &walk.k_cache[next..next + self.dim]);
                }
            }
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
                self.tiles.two_by_two::<Bf16WidePairs>(sums, x, lie, &values[half * HALF..], steps);
            }
        }
        for (first, count) in [(pairs, whole - pairs), (whole, queries - whole)] {
            if count > 0 {
                self.tiles.reshape(shape_of(count));
                let sums = Sums { sums: &mut sums[first * row..], row, are_fresh: false };
                let x = bytemuck::cast_slice(&weights[first * PIECE..]);
                self.tiles.one_by_four::<Bf16WidePairs>(sums, x, lie, values, HALF, steps);
            }
        }
    }

    /// Adds weight · value of `keys` to the sums of these queries, with zeros for values that are not `seen`.
    #[inline(always)]
    fn add_seen<E: Element, H: Held<E>>(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        keys: Range<usize>,
        seen: Range<usize>,
    ) {
        self.round_weights(state, queries.clone(), &keys);
        let some = if queries.len() <= QUERIES { NEAR_KEYS } else { PIECE };
        self.next_of_pair = self.next.len().div_ceil(keys.len().div_ceil(2));
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
}

/// Turns the sums of 16 keys, `row` words from one to the next, back to scores of queries, the first of them in column `first`; each times
/// its key's factor. Asks for the values at the places of `asked`.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "where sums lie, where scores do, and what is asked for")]
fn turn_scores<S: Simd, E: Element, H: Held<E>>(
    simd: S,
    scores: &mut [[f32; PIECE]],
    from: usize,
    sums: &[u32],
    row: usize,
    first: usize,
    factors: &[f32],
    (walk, asked): (&Walk<'_, E, H>, &[usize]),
) {
    let mut rows = [[0; LANES]; LANES];
    for (key, (to, &factor)) in rows.iter_mut().zip(factors).enumerate() {
        if let Some(&place) = asked.get(key) {
            walk.prefetch(simd, &walk.v_cache[place..place + walk.cache.dim]);
        }
        let sums: &Lanes<u32> = sums[key * row..].first_chunk().expect("16 queries");
        let product = simd.mul(simd.load(bytemuck::cast_ref(sums)), simd.splat(factor));
        simd.store(product, bytemuck::cast_mut(to));
    }
    simd.transpose(&mut rows);
    for (scores, row) in scores.iter_mut().zip(&rows[first..]) {
        let to: &mut Lanes<f32> = scores[from..].first_chunk_mut().expect("16 keys");
        simd.store(simd.load(bytemuck::cast_ref(row)), to);
    }
}

/// Whether no value at these places is infinite or none at all. Codes always are numbers.
#[inline(always)]
fn are_finite<E: Element, H: Held<E>>(walk: &Walk<'_, E, H>, places: &[usize]) -> bool {
    const EXPONENT: u16 = 0x7f80;
    H::FORMAT == CacheFormat::Codes
        || places.iter().all(|&place| {
            let head: &[u16] = bytemuck::cast_slice(&walk.v_cache[place..place + walk.cache.dim]);
            head.iter().fold(0, |most, bits| most.max(bits & EXPONENT)) < EXPONENT
        })
}

/// A block of bfloat16 as bytes.
#[inline(always)]
fn bytes_of_block<B: NoUninit>(block: &B) -> &[u8; 64] {
    bytemuck::bytes_of(block).try_into().expect("blocks have 64 bytes")
}

/// Whether these keys, of a group of 16 that begins a block or a part of one, lie in the cache as a tile takes its rows. Then there are 16
/// of them, known or not.
#[inline(always)]
fn are_rows<E: Element, H: Held<E>>(cache: &CacheShape, keys: &[usize], row_bytes: usize) -> bool {
    let is_whole = H::FORMAT == CacheFormat::Plain && cache.dim * size_of::<H>() == row_bytes;
    is_whole
        && cache.block_size.is_multiple_of(TILE_ROWS)
        && keys[keys.len() - 1] - keys[0] == (keys.len() - 1) * cache.dim
}

fn shape_of(rows: usize) -> TileShape {
    TileShape { rows, words: TILE_WORDS }
}

impl<S: Simd, E: Element, H: Held<E>> Products<E, H> for Tiled<S> {
    const STEP: usize = STEP;
    const AHEAD: usize = PIECE;

    fn vectors(dim: usize) -> usize {
        dim.div_ceil(SUM_COLUMNS) * VECTORS
    }

    #[inline(always)]
    fn enter(&mut self, state: &State<E>, queries: &Range<usize>) {
        self.entered = queries.start;
        self.turn_queries(&state.q[queries.start * state.steps..queries.end * state.steps], state.steps);
    }

    #[inline(always)]
    fn score(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        from: usize,
        next: &[usize],
    ) {
        if !next.is_empty() {
            self.come_next(next);
        }
        let steps = state.steps;
        let lie = Lie { row: steps * STEP_BYTES, step: STEP_BYTES };
        // Columns.
        let (start, end) = (queries.start - self.entered, queries.end - self.entered);
        let scores = &mut state.scores[queries];
        self.tiles.reshape(shape_of(TILE_ROWS));
        for from in (from / KEYS * KEYS..places.len()).step_by(KEYS) {
            let keys = &places[from..places.len().min(from + KEYS)];
            let mut lies_apart = [true; VECTORS];
            let mut factors = [walk.scale; KEYS];
            for (group, keys) in keys.chunks(TILE_ROWS).enumerate() {
                lies_apart[group] = !are_rows::<E, H>(&walk.cache, keys, lie.row);
                if lies_apart[group] {
                    self.gather_keys(walk, keys, group);
                }
            }
            if H::FORMAT == CacheFormat::Codes {
                for (factor, &place) in factors.iter_mut().zip(keys) {
                    *factor = walk.factor(place);
                }
            }
            let mut x = [&[][..]; VECTORS];
            for (group, x) in x.iter_mut().enumerate() {
                // Behind the last keys any will do.
                let group = if group * TILE_ROWS < keys.len() { group } else { 0 };
                *x = if lies_apart[group] {
                    bytemuck::cast_slice(&self.keys[group * TILE_ROWS * steps..])
                } else {
                    bytemuck::cast_slice(&walk.k_cache[keys[group * TILE_ROWS]..])
                };
            }
            let mut column = start / LANES * LANES;
            let mut is_first = true;
            while column < end {
                let panel = column / SUM_COLUMNS * steps * TILE_WORDS * VECTORS;
                let weights: &[u8] = bytemuck::cast_slice(&self.queries[panel + column % SUM_COLUMNS / LANES..]);
                let width = if column.is_multiple_of(QUERIES) && column + LANES < end { QUERIES } else { LANES };
                if width == LANES {
                    self.tiles.four_by_one::<Bf16WidePairs>(&mut self.sums, x, lie, weights, steps);
                } else {
                    for (sums, x) in self.sums.chunks_exact_mut(KEYS * QUERIES / 2).zip([[x[0], x[1]], [x[2], x[3]]]) {
                        let sums = Sums { sums, row: QUERIES, are_fresh: true };
                        self.tiles.two_by_two::<Bf16WidePairs>(sums, x, lie, weights, steps);
                    }
                }
                for block in (column..end.min(column + width)).step_by(LANES) {
                    let (first, beyond) = (start.max(block), end.min(block + LANES));
                    let scores = &mut scores[first - start..beyond - start];
                    for group in 0..keys.len().div_ceil(TILE_ROWS) {
                        let key = group * TILE_ROWS;
                        let sums = &self.sums[key * width + block - column..];
                        let factors = &factors[key..key + TILE_ROWS];
                        // Values are asked for along with the first queries' scores.
                        let asked = if is_first { &keys[key..keys.len().min(key + TILE_ROWS)] } else { &[] };
                        turn_scores(self.simd, scores, from + key, sums, width, first - block, factors, (walk, asked));
                    }
                    is_first = false;
                }
                column += width;
            }
        }
    }

    fn ask(&mut self, _: &Walk<'_, E, H>, places: &[usize]) {
        self.come_next(places);
    }

    #[inline(always)]
    fn add_values(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        keys: Range<usize>,
    ) {
        if keys.is_empty() {
            return;
        }
        let all = shared(state.weighed[queries.clone()].iter().map(|weighed| weighed.seen_of(&keys)));
        if are_finite(walk, &places[keys.start..all.start]) && are_finite(walk, &places[all.end..keys.end]) {
            return self.add_seen(walk, state, queries, places, keys.clone(), keys);
        }
        for query in queries {
            let seen = state.weighed[query].seen_of(&keys);
            self.add_seen(walk, state, query..query + 1, places, keys.clone(), seen);
        }
    }
}
