//! Many queries at once: keys are turned so that 16 of them stand in lanes, and values are widened, once for all queries of a task.
//!
//! The bits are those of few queries, which meet keys as they lie in the cache: there a dot product is 16 sums, one per lane, and
//! then a tree over the lanes. Here each of these sums is a vector over 16 keys, and the tree is 15 additions of vectors:
//!
//! 1. No lane is shuffled in the inner loop, and all of its operands come in linear streams, without an index to check.
//! 2. A turn takes two lanes, i and i + 8, the first to be added; turns follow each other so that sums wait at most three deep.
//! 3. A few keys at a time meet all queries, so that they come from the first-level cache for all but the first.
//! 4. Where floats are multiplied, keys of bfloat16 are widened as they are turned: once, not beside each block of queries.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Zeroable;

use super::few::shared;
use super::piece::{PIECE, State, Walk, Weighed};
use crate::cached::Held;
use crate::element::Element;
use crate::simd::{LANES, Lanes, Simd};

/// Keys that meet all queries before the next do: widened keys and values of 128 elements take 16 KiB each.
const NEAR: usize = 2 * LANES;
/// Vectors of a head whose sums are in registers at once.
const WIDE: usize = 2;
/// Turns of a dot product, and the first of the two lanes that each takes: 16 sums are halved to 8, 4, 2, 1.
const FIRST_LANES: [usize; LANES / 2] = [0, 4, 2, 6, 1, 5, 3, 7];

/// What a task's queries share. A register tile is `2 · Q` queries × `G · 16` keys in a turn. Keys and queries of format `E` are multiplied
/// as `T`: themselves, or float32, where a step becomes one for each element of a unit.
pub(super) struct Many<S: Simd, E, T: Element, const Q: usize, const G: usize> {
    simd: S,
    /// Of a head.
    dim: usize,
    /// `[block of Q queries][turn][step][2][query]`.
    queries: Vec<T::Activation<S>>,
    /// `[turn][step][2][group]`: the units of 16 keys.
    keys: Vec<Lanes<T::Unit>>,
    /// `[vectors / WIDE][key][WIDE]`.
    values: Vec<[Lanes<f32>; WIDE]>,
    element: PhantomData<E>,
}

impl<S: Simd, E: Element, T: Element, const Q: usize, const G: usize> Many<S, E, T, Q, G> {
    /// Steps that a step of `E` becomes.
    const PARTS: usize = E::PACK / T::PACK;

    #[inline(always)]
    pub(super) fn new(simd: S, dim: usize) -> Self {
        let steps = dim.div_ceil(elements_per_step::<E>()) * Self::PARTS;
        let keys = vec![[T::Unit::zeroed(); LANES]; LANES * steps * G];
        let values = vec![[[0.0; LANES]; WIDE]; dim.div_ceil(LANES * WIDE) * NEAR];
        Self { simd, dim, queries: vec![], keys, values, element: PhantomData }
    }

    /// Of a head, in `E`.
    fn steps(&self) -> usize {
        self.dim.div_ceil(elements_per_step::<E>())
    }

    /// `queries`: `[query][step]`, the last step filled up with zeros.
    #[inline(always)]
    pub(super) fn load_queries(&mut self, queries: &[E::Block]) {
        let (simd, steps) = (self.simd, self.steps());
        let blocks = queries.len().div_ceil(Q * steps);
        let none = T::activation(simd, &[T::default()]);
        self.queries.resize(blocks * LANES * steps * Self::PARTS * Q, none);
        let (to, _) = self.queries.as_chunks_mut::<Q>();
        for (queries, to) in queries.chunks(Q * steps).zip(to.chunks_exact_mut(LANES * steps * Self::PARTS)) {
            // What a block's missing queries give means nothing.
            for (query, blocks) in queries.chunks_exact(steps).enumerate() {
                for (step, block) in blocks.iter().enumerate() {
                    let units: &[E] = bytemuck::cast_slice(std::slice::from_ref(block));
                    for (turn, first) in FIRST_LANES.into_iter().enumerate() {
                        for (half, lane) in [first, first + LANES / 2].into_iter().enumerate() {
                            let unit = &units[lane * E::PACK..(lane + 1) * E::PACK];
                            for part in 0..Self::PARTS {
                                let at = ((turn * steps + step) * Self::PARTS + part) * 2 + half;
                                to[at][query] = Self::activation(simd, &unit[part * T::PACK..(part + 1) * T::PACK]);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Some elements as a product takes them.
    #[inline(always)]
    fn activation(simd: S, elements: &[E]) -> T::Activation<S> {
        match const { Self::PARTS } {
            1 => T::activation(simd, bytemuck::cast_slice(elements)),
            _ => T::activation(simd, &[T::from_f32(elements[0].to_f32())]),
        }
    }

    /// Turns up to [`NEAR`] keys. What stands where there are fewer means nothing.
    #[inline(always)]
    fn turn_keys<H: Held<E>>(&mut self, cache: &[H], places: &[usize]) {
        let (steps, size) = (self.steps(), elements_per_step::<E>());
        for (group, places) in places.chunks(LANES).enumerate() {
            for step in 0..steps {
                let from = step * size;
                let mut rows = [[0; LANES]; LANES];
                for (row, place) in rows.iter_mut().zip(places) {
                    let elements = &cache[place + from..place + self.dim.min(from + size)];
                    *row = words(self.simd, elements);
                }
                self.simd.transpose(&mut rows);
                for (turn, &lane) in FIRST_LANES.iter().enumerate() {
                    let at = (turn * steps + step) * Self::PARTS * 2 * G + group;
                    for (half, units) in [&rows[lane], &rows[lane + LANES / 2]].into_iter().enumerate() {
                        if const { Self::PARTS == 1 } {
                            self.keys[at + half * G] = bytemuck::cast(*units);
                        } else {
                            let [first, second] = self.simd.widen(units);
                            self.simd.store(first, bytemuck::cast_mut(&mut self.keys[at + half * G]));
                            self.simd.store(second, bytemuck::cast_mut(&mut self.keys[at + (2 + half) * G]));
                        }
                    }
                }
            }
        }
    }

    /// `scores[query][from..]`: dot products with the turned keys, each times its key's factor.
    #[inline(always)]
    fn score(&self, scores: &mut [[f32; PIECE]], from: usize, factors: &[Lanes<f32>; G]) {
        let turns = LANES / 2 * self.steps() * Self::PARTS;
        let keys = pairs::<_, G>(&self.keys);
        let queries = pairs::<_, Q>(&self.queries);
        for (queries, scores) in queries.chunks_exact(turns).zip(scores.chunks_mut(Q)) {
            let sums = self.dots(keys, queries);
            for (scores, sums) in scores.iter_mut().zip(sums) {
                let (vectors, _) = scores[from..].as_chunks_mut::<LANES>();
                for ((to, sum), factors) in vectors.iter_mut().zip(sums).zip(factors) {
                    self.simd.store(self.simd.mul(sum, self.simd.load(factors)), to);
                }
            }
        }
    }

    /// `Q` queries times 16 · `G` keys.
    #[inline(always)]
    fn dots(&self, keys: &[[[Lanes<T::Unit>; G]; 2]], queries: &[[[T::Activation<S>; Q]; 2]]) -> [[S::V; G]; Q] {
        let steps = self.steps() * Self::PARTS;
        let zero = [[self.simd.splat(0.0); G]; Q];
        let mut waiting = [zero; 4];
        for (turn, (keys, queries)) in keys.chunks_exact(steps).zip(queries.chunks_exact(steps)).enumerate() {
            let mut sums = [zero; 2];
            for (keys, queries) in keys.iter().zip(queries) {
                for ((sums, keys), queries) in sums.iter_mut().zip(keys).zip(queries) {
                    for (sums, &query) in sums.iter_mut().zip(queries) {
                        for (sum, key) in sums.iter_mut().zip(keys) {
                            *sum = T::multiply_add(self.simd, *sum, key, query);
                        }
                    }
                }
            }
            let mut both = self.added(&sums[0], &sums[1]);
            let depth = turn.trailing_ones() as usize;
            for earlier in &waiting[..depth] {
                both = self.added(earlier, &both);
            }
            waiting[depth] = both;
        }
        waiting[3]
    }

    #[inline(always)]
    fn added(&self, a: &[[S::V; G]; Q], b: &[[S::V; G]; Q]) -> [[S::V; G]; Q] {
        let mut sums = *a;
        for (sums, b) in sums.iter_mut().zip(b) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = self.simd.add(*sum, b);
            }
        }
        sums
    }

    /// Widens up to [`NEAR`] values.
    #[inline(always)]
    fn widen_values<H: Held<E>>(&mut self, cache: &[H], places: &[usize]) {
        for (vectors, start) in self.values.chunks_exact_mut(NEAR).zip((0..self.dim).step_by(LANES * WIDE)) {
            let end = self.dim.min(start + LANES * WIDE);
            for (to, place) in vectors.iter_mut().zip(places) {
                for (to, from) in to.iter_mut().zip(cache[place + start..place + end].chunks(LANES)) {
                    let lanes = match from.try_into() {
                        Ok(whole) => H::load(self.simd, whole),
                        Err(_) => H::load(self.simd, &crate::norm::padded(from)),
                    };
                    self.simd.store(lanes, to);
                }
            }
        }
    }

    /// sums[query] += weight · value, key by key in order, for `N` queries and these keys of a piece. `from`: the key whose
    /// value was widened first. `sums`: `[query][vector]`.
    #[inline(always)]
    fn add_values<const N: usize>(
        &self,
        sums: &mut [Lanes<f32>],
        scores: &[[f32; PIECE]],
        keys: Range<usize>,
        from: usize,
    ) {
        let simd = self.simd;
        let vectors = self.dim.div_ceil(LANES);
        let weights: &[[f32; PIECE]; N] = scores.first_chunk().expect("a row of scores for each query");
        assert!(keys.end <= PIECE);
        for (values, vector) in self.values.chunks_exact(NEAR).zip((0..vectors).step_by(WIDE)) {
            let values = &values[keys.start - from..keys.end - from];
            let mut held = [[simd.splat(0.0); WIDE]; N];
            // Loops of a known length, or the sums would pass through the stack. A head's last pair may be one.
            let is_pair = vector + 1 < vectors;
            for (query, held) in held.iter_mut().enumerate() {
                held[0] = simd.load(&sums[query * vectors + vector]);
                if is_pair {
                    held[1] = simd.load(&sums[query * vectors + vector + 1]);
                }
            }
            for (key, values) in keys.clone().zip(values) {
                let values = [simd.load(&values[0]), simd.load(&values[1])];
                for (held, weights) in held.iter_mut().zip(weights) {
                    let weight = simd.splat(weights[key]);
                    for (held, &value) in held.iter_mut().zip(&values) {
                        *held = simd.fma(weight, value, *held);
                    }
                }
            }
            for (query, held) in held.iter().enumerate() {
                simd.store(held[0], &mut sums[query * vectors + vector]);
                if is_pair {
                    simd.store(held[1], &mut sums[query * vectors + vector + 1]);
                }
            }
        }
    }
}

impl<E: Element, H: Held<E>> Walk<'_, E, H> {
    /// Scores of the queries that were loaded and some keys of a piece, from its first on. `next`: the keys behind them.
    #[inline(always)]
    pub(super) fn score_many<S: Simd, T: Element, const Q: usize, const G: usize>(
        &self,
        simd: S,
        many: &mut Many<S, E, T, Q, G>,
        scores: &mut [[f32; PIECE]],
        places: &[usize],
        next: &[usize],
    ) {
        let some = G * LANES;
        for (keys, from) in places.chunks(some).zip((0..).step_by(some)) {
            for &place in places[from..].iter().chain(next).skip(some).take(some) {
                self.prefetch(simd, &self.k_cache[place..place + self.cache.dim]);
            }
            for &place in keys {
                self.prefetch(simd, &self.v_cache[place..place + self.cache.dim]);
            }
            many.turn_keys(self.k_cache, keys);
            let mut factors = [[self.scale; LANES]; G];
            for (factor, &place) in factors.as_flattened_mut().iter_mut().zip(keys) {
                *factor = self.factor(place);
            }
            many.score(scores, from, &factors);
        }
    }

    /// Adds weight · value of those of these keys, from a piece's first on, that each query sees to the piece's sums.
    #[inline(always)]
    pub(super) fn values_many<S: Simd, T: Element, const Q: usize, const G: usize>(
        &self,
        many: &mut Many<S, E, T, Q, G>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
    ) {
        let vectors = self.cache.dim.div_ceil(LANES);
        let seen_by_all = shared(state.weighed[queries.clone()].iter().map(Weighed::seen));
        for from in (0..places.len()).step_by(NEAR) {
            let near = from..places.len().min(from + NEAR);
            many.widen_values(self.v_cache, &places[near.clone()]);
            let State { weighed, piece, scores, .. } = &mut *state;
            let own = |query: usize| weighed[query].seen_of(&near);
            let is_seen = seen_by_all.start <= near.start && near.end <= seen_by_all.end;
            let mut query = queries.start;
            while query < queries.end {
                let some = match queries.end - query {
                    left if left >= 2 * Q => 2 * Q,
                    left if left >= Q => Q,
                    _ => 1,
                };
                // What all of them see. Each sums up its keys in their order: those before, these, those behind.
                let all = if is_seen { near.clone() } else { shared((query..query + some).map(own)) };
                let apart = if is_seen { query..query } else { query..query + some };
                for at in apart.clone() {
                    let before = own(at).start..all.start;
                    if before.start < before.end {
                        many.add_values::<1>(&mut piece[at * vectors..], &scores[at..], before, from);
                    }
                }
                let (sums, weights) = (&mut piece[query * vectors..], &scores[query..]);
                match some {
                    1 => many.add_values::<1>(sums, weights, all.clone(), from),
                    2 => many.add_values::<2>(sums, weights, all.clone(), from),
                    4 => many.add_values::<4>(sums, weights, all.clone(), from),
                    _ => many.add_values::<8>(sums, weights, all.clone(), from),
                }
                for at in apart {
                    let behind = own(at).start.max(all.end)..own(at).end;
                    if behind.start < behind.end {
                        many.add_values::<1>(&mut piece[at * vectors..], &scores[at..], behind, from);
                    }
                }
                query += some;
            }
        }
    }
}

/// Elements of an [`Element::Block`].
fn elements_per_step<E: Element>() -> usize {
    LANES * E::PACK
}

/// Neighbouring elements as one unit per lane, filled up with zeros.
#[inline(always)]
fn words<E: Element, H: Held<E>, S: Simd>(simd: S, elements: &[H]) -> Lanes<u32> {
    let bytes: &[u8] = bytemuck::cast_slice(elements);
    let mut block = H::Block::zeroed();
    if bytes.len() == size_of::<H::Block>() {
        block = bytemuck::pod_read_unaligned(bytes);
    } else {
        bytemuck::bytes_of_mut(&mut block)[..bytes.len()].copy_from_slice(bytes);
    }
    bytemuck::cast::<E::Block, _>(*H::wide(simd, &block).borrow())
}

/// As pairs of arrays.
#[inline(always)]
fn pairs<T, const N: usize>(flat: &[T]) -> &[[[T; N]; 2]] {
    flat.as_chunks::<N>().0.as_chunks::<2>().0
}
