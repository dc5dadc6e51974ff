//! Scores and weighted values of bfloat16 in tiles (AMX), for one query or many.
//!
//! 1. A score is the tiles' sum over the head, 32 numbers at a time. 16 keys are the rows of a tile: where a block holds them side by
//!    side, as they lie in the cache. Queries are columns, and so are turned once; scores are turned back by vectors, and those of few queries
//!    taken apart.
//! 2. Weights are rounded to bfloat16, since tiles multiply nothing longer. What they are divided by in the end is the sum of the
//!    weights before that.
//! 3. Values are columns as they lie, but for neighbouring keys, which stand in one word ([`values`]); few queries' are summed up by vectors,
//!    with the same bits ([`few`]). Steps of 32 keys begin at multiples of 32 from the piece's first, whoever walks together; a key that a
//!    query does not see has the weight 0, and one that nobody has is 0. So a step takes nothing from keys that are hidden, as long as
//!    values are finite. Where a value is not that a part of the queries sees, each query meets its own keys alone.
//! 4. Adding nothing changes no sum but −0, which a sum becomes only where it underflows; merged with others it is +0, unless these
//!    vanish beside it.

mod few;
mod values;

use std::borrow::Borrow;
use std::ops::Range;

use bytemuck::NoUninit;

use super::ahead::Asked;
use super::few::{blocks, shared};
use super::piece::{PIECE, State, Walk};
use super::products::Products;
use crate::amx::{Ahead, Amx, Bf16WidePairs, Lie, SUM_COLUMNS, Sums, TILE_ROWS, TILE_WORDS, TileShape, Tiles};
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
/// Vectors of a word or a pair: a row of the weights' tiles.
const VECTORS: usize = SUM_COLUMNS / LANES;
/// Bytes of a step of one row.
const STEP_BYTES: usize = STEP * size_of::<Bf16>();

/// Lines that are asked for at once.
const PART_LINES: usize = 2;

/// What a thread keeps.
pub(super) struct Tiled<S: Simd> {
    simd: S,
    tiles: Tiles,
    dim: usize,
    /// `[64 queries][step of the head][word][vector]`
    queries: Lined<Lanes<u32>>,
    /// `[step of the head][word][column]`: those of few.
    few: Lined<u32>,
    /// How many columns these are; 0 where many walk together.
    columns: usize,
    /// Which of the task's is the first of these.
    entered: usize,
    /// `[key][step of the head]`: those that do not lie as tiles take them.
    keys: Lined<Lanes<u32>>,
    /// The keys and values that come next.
    next: Asked<PART_LINES>,
    /// The values of the keys whose scores are computed, where nobody has asked for them before.
    late: Asked<PART_LINES>,
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
            few: Lined::new(),
            columns: 0,
            entered: 0,
            keys,
            next: Asked::default(),
            late: Asked::default(),
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
}

/// Turns the sums of 16 keys, `row` words from one to the next, back to scores of queries, the first of them in column `first`; each times
/// its key's factor.
#[inline(always)]
fn turn_scores<S: Simd>(
    simd: S,
    scores: &mut [[f32; PIECE]],
    from: usize,
    sums: &[u32],
    row: usize,
    first: usize,
    factors: &[f32],
) {
    let mut rows = [[0; LANES]; LANES];
    for (key, (to, &factor)) in rows.iter_mut().zip(factors).enumerate() {
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
    TileShape::new(rows, TILE_WORDS)
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
        self.columns = few::columns(queries.len());
        let rows = &state.q[queries.start * state.steps..queries.end * state.steps];
        if self.columns > 0 { self.turn_few(rows, state.steps) } else { self.turn_queries(rows, state.steps) }
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
        let bytes = self.dim * size_of::<H>();
        let late = if self.next.has_asked_from(places[from]) { &[] } else { &places[from..] };
        self.late.set(late, bytes, 1);
        if !next.is_empty() {
            self.next.set(next, bytes, 2);
        }
        let groups = (places.len() - from).div_ceil(TILE_ROWS);
        self.late.spread(groups);
        self.next.spread(4 * groups); // the rest beside the values
        let steps = state.steps;
        let lie = Lie { row: steps * STEP_BYTES, step: STEP_BYTES };
        // Columns.
        let (start, end) = (queries.start - self.entered, queries.end - self.entered);
        let scores = &mut state.scores[queries];
        let shape = if self.columns > 0 { TileShape::of_columns(self.columns) } else { shape_of(TILE_ROWS) };
        self.tiles.reshape(shape);
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
            if self.columns > 0 {
                self.tiles.four_by_few::<Bf16WidePairs>(&mut self.sums, x, lie, &self.few, steps);
                let groups = keys.len().div_ceil(TILE_ROWS);
                for _ in 0..groups {
                    self.late.ask(self.simd, [walk.v_cache]);
                    self.next.ask(self.simd, [walk.k_cache, walk.v_cache]);
                }
                let factors = &factors[..groups * TILE_ROWS];
                few::part_scores(scores, from, &self.sums, self.columns, start, factors);
                continue;
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
                        self.tiles.two_by_two::<Bf16WidePairs>(sums, x, lie, weights, Ahead::NOTHING, steps);
                    }
                }
                for block in (column..end.min(column + width)).step_by(LANES) {
                    let (first, beyond) = (start.max(block), end.min(block + LANES));
                    let scores = &mut scores[first - start..beyond - start];
                    for group in 0..keys.len().div_ceil(TILE_ROWS) {
                        let key = group * TILE_ROWS;
                        let sums = &self.sums[key * width + block - column..];
                        let factors = &factors[key..key + TILE_ROWS];
                        if is_first {
                            self.late.ask(self.simd, [walk.v_cache]);
                            self.next.ask(self.simd, [walk.k_cache, walk.v_cache]);
                        }
                        turn_scores(self.simd, scores, from + key, sums, width, first - block, factors);
                    }
                    is_first = false;
                }
                column += width;
            }
        }
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
