//! Few queries at once: keys and values are taken as they lie in the cache, up to four queries and four keys at a time.

use std::borrow::Borrow;
use std::ops::Range;

use bytemuck::Pod;

use super::piece::{PIECE, State, Walk};
use crate::cached::Held;
use crate::element::Element;
use crate::norm::padded;
use crate::simd::{LANES, Simd};

/// How many keys ahead of their use the cache lines of a key are asked for: 8 KiB at 128 elements of bfloat16. Blocks lie
/// anywhere, and the processor's own prefetch stops at each block's end. Values are asked for while their keys are
/// scored, since summing them up is too quick to hide a wait for memory.
pub(super) const AHEAD: usize = 32;

impl<E: Element, H: Held<E>> Walk<'_, E, H> {
    /// Some queries times keys of a piece, the first of them its key `from`; those that a query may not see are left out later.
    /// `next`: the keys behind them, or of the next task.
    #[inline(always)]
    pub(super) fn score_few<S: Simd, const C: usize>(
        &self,
        simd: S,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        from: usize,
        next: &[usize],
    ) {
        let steps = state.steps;
        // Of what comes behind fewer keys than these are ahead, nobody else asks for the first.
        for &place in next.iter().take(AHEAD.saturating_sub(places.len())) {
            self.prefetch(simd, &self.k_cache[place..place + self.cache.dim]);
        }
        let mut query = queries.start;
        while query < queries.end {
            let next = (query == queries.start).then_some(next); // the first queries bring keys and values into the cache for all
            let q = &state.q[query * steps..];
            let scores = &mut state.scores[query..];
            let some = match queries.end - query {
                1 => self.score_some::<S, 1, C>(simd, q, scores, places, from, next),
                2 | 3 => self.score_some::<S, 2, C>(simd, q, scores, places, from, next),
                _ => self.score_some::<S, 4, C>(simd, q, scores, places, from, next),
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
        from: usize,
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
            self.dots::<S, Q, C>(simd, q, scores, from + at * C, now);
        }
        for (at, &place) in single.iter().enumerate() {
            self.dots::<S, Q, 1>(simd, q, scores, from + several.len() * C + at, &[place]);
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
        let mut factors = [0.0; C];
        for ((key, factor), &place) in keys.iter_mut().zip(&mut factors).zip(places) {
            *key = blocks::<H, H::Block>(&self.k_cache[place..place + self.cache.dim]);
            *factor = self.factor(place);
        }
        let steps = keys[0].0.len() + usize::from(keys[0].1.is_some());
        let mut sums = [[simd.splat(0.0); C]; Q];
        for step in 0..keys[0].0.len() {
            for (at, (key, _)) in keys.iter().enumerate() {
                let key = H::wide(simd, &key[step]); // once for all queries
                for (query, sums) in sums.iter_mut().enumerate() {
                    sums[at] = E::dot(simd, sums[at], &q[query * steps + step], key.borrow());
                }
            }
        }
        for (at, (_, tail)) in keys.iter().enumerate() {
            if let Some(tail) = tail {
                let key = H::wide(simd, tail);
                for (query, sums) in sums.iter_mut().enumerate() {
                    sums[at] = E::dot(simd, sums[at], &q[query * steps + steps - 1], key.borrow());
                }
            }
        }
        let (factors_of_four, factors_of_rest) = factors.as_chunks::<4>();
        for (scores, sums) in scores.iter_mut().zip(&sums) {
            let (fours, rest) = sums.as_chunks::<4>();
            for ((scores, four), factors) in scores[at..].chunks_mut(4).zip(fours).zip(factors_of_four) {
                for ((score, sum), factor) in scores.iter_mut().zip(simd.sum_four(four)).zip(factors) {
                    *score = sum * factor;
                }
            }
            let scores = &mut scores[at + 4 * fours.len()..];
            for ((score, &sum), factor) in scores.iter_mut().zip(rest).zip(factors_of_rest) {
                *score = simd.sum(sum) * factor;
            }
        }
    }

    /// Adds weight · value of those of `keys` that each query sees to the piece's sums.
    #[inline(always)]
    pub(super) fn values_few<S: Simd, const C: usize>(
        &self,
        simd: S,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        keys: Range<usize>,
    ) {
        let mut query = queries.start;
        while query < queries.end {
            let some = match queries.end - query {
                1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
            let own = |state: &State<E>, at: usize| state.weighed[at].seen_of(&keys);
            // What all of them see. Each sums up its keys in their order: those before, these, those behind.
            let all = shared((query..query + some).map(|at| own(state, at)));
            for at in query..query + some {
                let before = own(state, at).start..all.start;
                if !before.is_empty() {
                    self.values::<S, 1, C>(simd, state, at, &places[..before.end], before.start);
                }
            }
            match some {
                1 => self.values::<S, 1, C>(simd, state, query, &places[..all.end], all.start),
                2 => self.values::<S, 2, C>(simd, state, query, &places[..all.end], all.start),
                _ => self.values::<S, 4, C>(simd, state, query, &places[..all.end], all.start),
            }
            for at in query..query + some {
                let own = own(state, at);
                let behind = own.start.max(all.end)..own.end;
                if !behind.is_empty() {
                    self.values::<S, 1, C>(simd, state, at, &places[..behind.end], behind.start);
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
        // Loops of a known length, or the sums would pass through the stack.
        let scores: &[_; Q] = state.scores[query..].first_chunk().expect("a row of scores for each query");
        let mut sums = [[simd.splat(0.0); C]; Q];
        for (at, sums) in sums.iter_mut().enumerate() {
            let piece: &[_; C] =
                state.piece[(query + at) * vectors + vector..].first_chunk().expect("a head's vectors");
            for (sum, from) in sums.iter_mut().zip(piece) {
                *sum = simd.load(from);
            }
        }
        for (key, &place) in places.iter().enumerate().skip(from) {
            let mut values = [simd.splat(0.0); C];
            if WHOLE {
                let (vectors, _) = self.v_cache[place + start..place + start + C * LANES].as_chunks();
                for (value, from) in values.iter_mut().zip(vectors) {
                    *value = H::load(simd, from);
                }
            } else {
                values[0] = H::load(simd, &padded(&self.v_cache[place + start..place + self.cache.dim]));
            }
            for (sums, scores) in sums.iter_mut().zip(scores) {
                let weight = simd.splat(scores[key]);
                for (sum, &value) in sums.iter_mut().zip(&values) {
                    *sum = simd.fma(weight, value, *sum);
                }
            }
        }
        for (at, sums) in sums.iter().enumerate() {
            let piece = &mut state.piece[(query + at) * vectors + vector..];
            let piece: &mut [_; C] = piece.first_chunk_mut().expect("a head's vectors");
            for (&sum, to) in sums.iter().zip(piece) {
                simd.store(sum, to);
            }
        }
    }
}

/// What all of some ranges have in common; where that is nothing, nothing at the first end among them.
#[inline(always)]
pub(super) fn shared(ranges: impl Iterator<Item = Range<usize>>) -> Range<usize> {
    let (start, end) = ranges.fold((0, usize::MAX), |(start, end), own| (own.start.max(start), own.end.min(end)));
    start.min(end)..end
}

/// A head as whole blocks, and what remains of it filled up with zeros.
#[inline(always)]
pub(super) fn blocks<T: Pod, B: Pod>(head: &[T]) -> (&[B], Option<B>) {
    let size = size_of::<B>() / size_of::<T>();
    let (whole, tail) = head.split_at(head.len() / size * size);
    if tail.is_empty() {
        return (bytemuck::cast_slice(whole), None);
    }
    let mut last = B::zeroed();
    bytemuck::cast_slice_mut(std::slice::from_mut(&mut last))[..tail.len()].copy_from_slice(tail);
    (bytemuck::cast_slice(whole), Some(last))
}
