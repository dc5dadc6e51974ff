//! One thread's tasks: scores, softmax and weighted values of one piece of keys, and the merge of pieces.

use std::ops::Range;

use bytemuck::Zeroable;

use super::many::{Many, Weighed};
use super::{Run, Sight};
use crate::cache::CacheShape;
use crate::element::Element;
use crate::math::{exp, tanh};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::Shared;

/// Keys per piece. Part of the arithmetic: another size gives other bits.
pub(super) const PIECE: usize = 256;

/// Some of the tasks of one call.
pub(super) struct Walk<'a, E> {
    pub(super) out: &'a Shared<'a, E>,
    pub(super) q: &'a [E],
    pub(super) k_cache: &'a [E],
    pub(super) v_cache: &'a [E],
    pub(super) cache: CacheShape,
    pub(super) block_table: &'a [i32],
    pub(super) max_blocks: usize,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) sight: Sight<'a>,
    pub(super) runs: &'a [Run],
    pub(super) tasks: Range<usize>,
}

/// How many keys ahead of their use the cache lines of a key are asked for: 8 KiB at 128 elements of bfloat16. Blocks lie
/// anywhere, and the processor's own prefetch stops at each block's end. Values are asked for while their keys are
/// scored, since summing them up is too quick to hide a wait for memory.
const AHEAD: usize = 32;

/// From how many queries on keys are turned and values widened once for all. Below, that costs more than it saves: 16 queries of
/// 128 elements take 1.15 times as long that way, 4 queries twice as long; it pays from 16 (32 elements) to 32 (128) on.
const MANY: usize = 32;

/// What one task keeps, by query. Heads are filled up to whole vectors with zeros.
pub(super) struct State<E: Element> {
    /// `[query][block]`.
    pub(super) q: Vec<E::Block>,
    /// `[query][vector]`: Σ exp(s - max) · v over all pieces so far.
    pub(super) sums: Vec<Lanes<f32>>,
    /// `[query][vector]`: the same of one piece.
    pub(super) piece: Vec<Lanes<f32>>,
    /// `[query][key]`: scores of one piece, then their exponentials.
    pub(super) scores: Vec<[f32; PIECE]>,
    /// Greatest score so far.
    pub(super) max: Vec<f32>,
    /// Σ exp(s - max) so far.
    pub(super) weight: Vec<f32>,
    /// Of many queries: the piece.
    pub(super) weighed: Vec<Weighed>,
}

impl<E: Element> State<E> {
    fn new() -> Self {
        Self { q: vec![], sums: vec![], piece: vec![], scores: vec![], max: vec![], weight: vec![], weighed: vec![] }
    }

    fn clear(&mut self, queries: usize, vectors: usize) {
        self.q.clear();
        for lanes in [&mut self.sums, &mut self.piece] {
            lanes.clear();
            lanes.resize(queries * vectors, [0.0; LANES]);
        }
        self.scores.resize(queries, [0.0; PIECE]);
        self.max.clear();
        self.max.resize(queries, f32::NEG_INFINITY);
        self.weight.clear();
        self.weight.resize(queries, 0.0);
    }
}

impl<E: Element> Kernel for Walk<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match const { S::WIDTH } {
            4 => self.walk::<S, 4, 2>(simd),
            1 => self.walk::<S, 1, 1>(simd),
            other => unreachable!("no class has tiles of {other} vectors"),
        }
    }
}

impl<E: Element> Walk<'_, E> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize, const G: usize>(self, simd: S) {
        let mut state = State::new();
        let mut many = Many::<S, E, C, G>::new(simd, self.cache.dim);
        let mut places = [0; PIECE + AHEAD];
        for task in self.tasks.clone() {
            let (run, head) = (&self.runs[task / self.cache.heads], task % self.cache.heads);
            self.load_queries(&mut state, run, head);
            let is_many = state.max.len() >= MANY;
            if is_many {
                many.load_queries(&state.q);
            }
            let end = run.end(&self.sight);
            let begin = self.sight.first(run.position) / PIECE * PIECE;
            for first in (begin..end).step_by(PIECE) {
                let places = &mut places[..(PIECE + AHEAD).min(end - first)];
                self.find(places, run, head, first);
                let (keys, next) = places.split_at(PIECE.min(places.len()));
                if is_many {
                    self.score_many(simd, &mut many, &mut state, keys, next);
                } else {
                    self.score::<S, C>(simd, &mut state, keys, next);
                }
                if let Some(cap) = self.sight.soft_cap {
                    soften(simd, &mut state.scores, keys.len(), cap);
                }
                if is_many {
                    self.weigh_many(simd, &mut many, &mut state, run, keys, first);
                } else {
                    self.weigh::<S, C>(simd, &mut state, run, keys, first);
                }
            }
            self.write(simd, &state, run, head);
        }
    }

    fn group(&self) -> usize {
        self.heads / self.cache.heads
    }

    /// Query i of a run is head `i % group` of token `i / group`.
    fn load_queries(&self, state: &mut State<E>, run: &Run, head: usize) {
        let (dim, group) = (self.cache.dim, self.group());
        state.clear(run.tokens.len() * group, dim.div_ceil(LANES));
        for token in run.tokens.clone() {
            let heads = &self.q[(token * self.heads + head * group) * dim..][..group * dim];
            for query in heads.chunks_exact(dim) {
                let (whole, tail) = blocks(query);
                state.q.extend_from_slice(whole);
                state.q.extend(tail);
            }
        }
        if let Some(sinks) = self.sight.sinks {
            // As if a key of this score and no value had come first.
            let own = &sinks[head * group..(head + 1) * group];
            for (query, max) in state.max.iter_mut().enumerate() {
                *max = own[query % group];
            }
            state.weight.fill(1.0);
        }
    }

    /// Where in the caches the keys from absolute position `first` on lie. For those that the run's first query does not
    /// see, and no other does, the first one that it sees: their blocks may be gone, and their scores are not used.
    fn find(&self, places: &mut [usize], run: &Run, head: usize, first: usize) {
        let table = &self.block_table[run.row * self.max_blocks..][..self.max_blocks];
        let size = self.cache.block_size;
        let hidden = self.sight.first(run.position).saturating_sub(first);
        let (mut block, mut token) = ((first + hidden) / size, (first + hidden) % size);
        let (behind, places) = places.split_at_mut(hidden);
        behind.fill(self.cache.at(table[block] as usize, head, token));
        for place in places {
            *place = self.cache.at(table[block] as usize, head, token);
            token += 1;
            if token == size {
                (block, token) = (block + 1, 0);
            }
        }
    }

    /// All queries times all keys of the piece; those that a query may not see are left out later.
    #[inline(always)]
    fn score<S: Simd, const C: usize>(&self, simd: S, state: &mut State<E>, places: &[usize], next: &[usize]) {
        let queries = state.max.len();
        let steps = state.q.len() / queries;
        let mut query = 0;
        while query < queries {
            let next = (query == 0).then_some(next); // the first queries bring keys and values into the cache for all
            let q = &state.q[query * steps..];
            let scores = &mut state.scores[query..];
            let some = match queries - query {
                1 => self.score_some::<S, 1, C>(simd, q, scores, places, next),
                2 | 3 => self.score_some::<S, 2, C>(simd, q, scores, places, next),
                _ => self.score_some::<S, 4, C>(simd, q, scores, places, next),
            };
            query += some;
        }
    }

    /// `Q` queries: `C` keys at a time, then one at a time. Returns `Q`.
    #[inline(always)]
    fn score_some<S: Simd, const Q: usize, const C: usize>(
        &self,
        simd: S,
        q: &[E::Block],
        scores: &mut [[f32; PIECE]],
        places: &[usize],
        next: Option<&[usize]>,
    ) -> usize {
        let (several, single) = places.as_chunks::<C>();
        for (at, now) in several.iter().enumerate() {
            if let Some(next) = next {
                for (key, &place) in (at * C..).zip(now) {
                    let ahead = key + AHEAD;
                    if let Some(&ahead) = places.get(ahead).or_else(|| next.get(ahead - places.len())) {
                        self.prefetch(simd, &self.k_cache[ahead..ahead + self.cache.dim]);
                    }
                    self.prefetch(simd, &self.v_cache[place..place + self.cache.dim]);
                }
            }
            self.dots::<S, Q, C>(simd, q, scores, at * C, now);
        }
        for (at, &place) in single.iter().enumerate() {
            self.dots::<S, Q, 1>(simd, q, scores, several.len() * C + at, &[place]);
        }
        Q
    }

    /// `Q` queries times `C` keys, all sums in registers: a dot product is one sum per lane, then the tree of [`Simd::sum`].
    #[inline(always)]
    fn dots<S: Simd, const Q: usize, const C: usize>(
        &self,
        simd: S,
        q: &[E::Block],
        scores: &mut [[f32; PIECE]],
        at: usize,
        places: &[usize; C],
    ) {
        let mut keys = [(&[][..], None); C];
        for (key, &place) in keys.iter_mut().zip(places) {
            *key = blocks::<E>(&self.k_cache[place..place + self.cache.dim]);
        }
        let steps = keys[0].0.len() + usize::from(keys[0].1.is_some());
        let mut sums = [[simd.splat(0.0); C]; Q];
        for step in 0..keys[0].0.len() {
            for (query, sums) in sums.iter_mut().enumerate() {
                for (sum, (key, _)) in sums.iter_mut().zip(&keys) {
                    *sum = E::dot(simd, *sum, &q[query * steps + step], &key[step]);
                }
            }
        }
        for (query, sums) in sums.iter_mut().enumerate() {
            for (sum, (_, tail)) in sums.iter_mut().zip(&keys) {
                if let Some(tail) = tail {
                    *sum = E::dot(simd, *sum, &q[query * steps + steps - 1], tail);
                }
            }
        }
        for (scores, sums) in scores.iter_mut().zip(&sums) {
            let (fours, rest) = sums.as_chunks::<4>();
            for (scores, four) in scores[at..].chunks_mut(4).zip(fours) {
                for (score, sum) in scores.iter_mut().zip(simd.sum_four(four)) {
                    *score = sum * self.scale;
                }
            }
            for (score, &sum) in scores[at + 4 * fours.len()..].iter_mut().zip(rest) {
                *score = simd.sum(sum) * self.scale;
            }
        }
    }

    /// Which of a piece's `keys`, the first of them at position `first`, a query sees.
    #[inline(always)]
    pub(super) fn seen(&self, run: &Run, query: usize, first: usize, keys: usize) -> Range<usize> {
        let position = run.position + query / self.group();
        let to = self.sight.end(position, run.reach).saturating_sub(first).min(keys);
        self.sight.first(position).saturating_sub(first).min(to)..to
    }

    /// Asks for all cache lines of one head.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, head: &[E]) {
        for line in head.chunks(64 / size_of::<E>()) {
            simd.prefetch(line.as_ptr().cast());
        }
    }

    /// Turns one piece's scores into weights, sums up the values, and merges the piece into what came before it.
    #[inline(always)]
    fn weigh<S: Simd, const C: usize>(&self, simd: S, state: &mut State<E>, run: &Run, places: &[usize], first: usize) {
        let queries = state.max.len();
        let seen = |query: usize| self.seen(run, query, first, places.len());
        let mut query = 0;
        while query < queries {
            let some = match queries - query {
                1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
            let mut weights = [(0.0, 0.0); 4];
            for (at, weight) in weights[..some].iter_mut().enumerate() {
                *weight = exponentials(simd, &mut state.scores[query + at], seen(query + at));
            }
            // What all of them see: later queries begin and end no earlier. Each sums up its keys in their order.
            let shared_end = seen(query).end;
            let shared = seen(query + some - 1).start.min(shared_end)..shared_end;
            for at in 0..some {
                let before = seen(query + at).start..shared.start;
                if !before.is_empty() {
                    self.values::<S, 1, C>(simd, state, query + at, &places[..before.end], before.start);
                }
            }
            match some {
                1 => self.values::<S, 1, C>(simd, state, query, &places[..shared.end], shared.start),
                2 => self.values::<S, 2, C>(simd, state, query, &places[..shared.end], shared.start),
                _ => self.values::<S, 4, C>(simd, state, query, &places[..shared.end], shared.start),
            }
            for (at, &(max, weight)) in weights[..some].iter().enumerate() {
                let own = seen(query + at);
                let rest = own.start.max(shared.end)..own.end;
                if !rest.is_empty() {
                    self.values::<S, 1, C>(simd, state, query + at, &places[..rest.end], rest.start);
                }
                if !own.is_empty() {
                    self.merge(simd, state, query + at, max, weight);
                }
            }
            query += some;
        }
    }

    /// Adds weight · value of the keys from `from` on to the piece's sums of `Q` queries, key by key in order.
    #[inline(always)]
    fn values<S: Simd, const Q: usize, const C: usize>(
        &self,
        simd: S,
        state: &mut State<E>,
        query: usize,
        places: &[usize],
        from: usize,
    ) {
        let whole = self.cache.dim / LANES;
        let vectors = self.cache.dim.div_ceil(LANES);
        let mut vector = 0;
        while vector + C <= whole {
            self.values_at::<S, Q, C, true>(simd, state, query, places, from, vector);
            vector += C;
        }
        // Additions to one sum wait for each other: two vectors at a time take little longer than one.
        while C > 2 && vector + 2 <= whole {
            self.values_at::<S, Q, 2, true>(simd, state, query, places, from, vector);
            vector += 2;
        }
        while vector < whole {
            self.values_at::<S, Q, 1, true>(simd, state, query, places, from, vector);
            vector += 1;
        }
        if vector < vectors {
            self.values_at::<S, Q, 1, false>(simd, state, query, places, from, vector);
        }
    }

    /// The same for `C` vectors of the head, sums in registers; not `WHOLE`: the head's last, incomplete vector.
    #[inline(always)]
    fn values_at<S: Simd, const Q: usize, const C: usize, const WHOLE: bool>(
        &self,
        simd: S,
        state: &mut State<E>,
        query: usize,
        places: &[usize],
        from: usize,
        vector: usize,
    ) {
        let start = vector * LANES;
        let vectors = self.cache.dim.div_ceil(LANES);
        let scores = &state.scores[query..query + Q];
        let mut sums = [[simd.splat(0.0); C]; Q];
        for (at, sums) in sums.iter_mut().enumerate() {
            for (sum, from) in sums.iter_mut().zip(&state.piece[(query + at) * vectors + vector..]) {
                *sum = simd.load(from);
            }
        }
        for (key, &place) in places.iter().enumerate().skip(from) {
            let mut values = [simd.splat(0.0); C];
            if WHOLE {
                let (vectors, _) = self.v_cache[place + start..place + start + C * LANES].as_chunks();
                for (value, from) in values.iter_mut().zip(vectors) {
                    *value = E::load(simd, from);
                }
            } else {
                let mut lanes = [E::default(); LANES];
                let tail = &self.v_cache[place + start..place + self.cache.dim];
                lanes[..tail.len()].copy_from_slice(tail);
                values[0] = E::load(simd, &lanes);
            }
            for (sums, scores) in sums.iter_mut().zip(scores) {
                let weight = simd.splat(scores[key]);
                for (sum, &value) in sums.iter_mut().zip(&values) {
                    *sum = simd.fma(weight, value, *sum);
                }
            }
        }
        for (at, sums) in sums.iter().enumerate() {
            for (&sum, to) in sums.iter().zip(&mut state.piece[(query + at) * vectors + vector..]) {
                simd.store(sum, to);
            }
        }
    }

    /// Brings the sums so far and those of the piece to their common maximum, adds them, and clears the piece.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&self, simd: S, state: &mut State<E>, query: usize, max: f32, weight: f32) {
        let vectors = self.cache.dim.div_ceil(LANES);
        let before = state.max[query];
        let both = if max > before { max } else { before };
        let old = exp(simd, simd.splat(before - both));
        let new = exp(simd, simd.splat(max - both));
        state.max[query] = both;
        state.weight[query] = state.weight[query] * simd.max_lane(old) + weight * simd.max_lane(new);
        let range = query * vectors..(query + 1) * vectors;
        for (sum, piece) in state.sums[range.clone()].iter_mut().zip(&mut state.piece[range]) {
            let added = simd.mul(simd.load(piece), new);
            simd.store(simd.fma(simd.load(sum), old, added), sum);
            *piece = [0.0; LANES];
        }
    }

    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, state: &State<E>, run: &Run, head: usize) {
        let (dim, group) = (self.cache.dim, self.group());
        let vectors = dim.div_ceil(LANES);
        for (at, token) in run.tokens.clone().enumerate() {
            let start = (token * self.heads + head * group) * dim;
            // SAFETY: this token and KV head belong to this task alone, and so do the query heads of its group.
            let out = unsafe { self.out.piece(start..start + group * dim) };
            for (query, out) in out.chunks_exact_mut(dim).enumerate() {
                let query = at * group + query;
                let share = simd.splat(1.0 / state.weight[query]);
                for (out, sum) in out.chunks_mut(LANES).zip(&state.sums[query * vectors..]) {
                    let mut lanes = [E::default(); LANES];
                    E::store(simd, simd.mul(simd.load(sum), share), &mut lanes);
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
        }
    }
}

/// Replaces scores by cap · tanh(s / cap), for all queries.
#[inline(always)]
fn soften<S: Simd>(simd: S, scores: &mut [[f32; PIECE]], keys: usize, cap: f32) {
    let (cap, share) = (simd.splat(cap), simd.splat(1.0 / cap));
    for scores in scores {
        let (vectors, _) = scores[..keys.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
        for vector in vectors {
            let softened = simd.mul(cap, tanh(simd, simd.mul(simd.load(vector), share)));
            simd.store(softened, vector);
        }
    }
}

/// Replaces the scores of the keys that are seen by exp(s - max); returns max and the sum of these. The rest of their
/// vectors becomes 0.
#[inline(always)]
pub(super) fn exponentials<S: Simd>(simd: S, scores: &mut [f32; PIECE], seen: Range<usize>) -> (f32, f32) {
    if seen.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    let (begin, end) = (seen.start / LANES * LANES, seen.end.next_multiple_of(LANES));
    scores[begin..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..end].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores[begin..end].as_chunks_mut::<LANES>();
    let mut max = simd.splat(f32::NEG_INFINITY);
    for vector in vectors.iter() {
        max = simd.max(max, simd.load(vector));
    }
    let max = simd.max_lane(max);
    let mut sum = simd.splat(0.0);
    for vector in vectors {
        let weights = exp(simd, simd.sub(simd.load(vector), simd.splat(max)));
        sum = simd.add(sum, weights);
        simd.store(weights, vector);
    }
    (max, simd.sum(sum))
}

/// A head as whole blocks, and what remains of it filled up with zeros.
#[inline(always)]
fn blocks<E: Element>(head: &[E]) -> (&[E::Block], Option<E::Block>) {
    let size = size_of::<E::Block>() / size_of::<E>();
    let (whole, tail) = head.split_at(head.len() / size * size);
    if tail.is_empty() {
        return (bytemuck::cast_slice(whole), None);
    }
    let mut last = E::Block::zeroed();
    bytemuck::cast_slice_mut(std::slice::from_mut(&mut last))[..tail.len()].copy_from_slice(tail);
    (bytemuck::cast_slice(whole), Some(last))
}
