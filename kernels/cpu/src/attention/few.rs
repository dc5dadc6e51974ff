//! Few queries at once: keys and values are taken as they lie in the cache, up to four queries at a time.

use std::borrow::Borrow;
use std::ops::Range;

use bytemuck::Pod;

use super::ahead::Asked;
use super::piece::{PIECE, State, Walk};
use crate::cache::CacheFormat;
use crate::cached::Held;
use crate::element::Element;
use crate::norm::padded;
use crate::simd::{LANES, Simd};

/// How many keys ahead of their use a key's cache lines are asked for where nobody asked before: 8 KiB at 128 elements of bfloat16.
pub(super) const AHEAD: usize = 32;
/// Lines of a part of what comes next: a key of 128 elements of bfloat16.
const PART_LINES: usize = 4;
/// Keys that are scored between two calls of [`Asked::ask`], and whose values are summed up.
const KEYS_PER_CALL: usize = 4;

/// What few queries meet next.
pub(super) type Next = Asked<PART_LINES>;

/// Whether what comes next is asked for piece by piece. Where vectors are short, computing takes longer than memory, and asking would take
/// more time than it saves.
pub(super) const fn asks<const C: usize>() -> bool {
    C > 1
}

/// What is to be asked for while keys are scored.
pub(super) struct Coming<'a> {
    /// Where nobody has asked for these keys and values: the keys behind them, or of the next task.
    pub(super) late: Option<&'a [usize]>,
    pub(super) next: &'a mut Next,
}

/// How often [`Walk::score_few`] and [`Walk::values_few`] ask for what comes next, at least, where queries see all of so many keys.
pub(super) fn calls<const C: usize>(queries: usize, keys: usize, dim: usize) -> usize {
    let (fours, fewer) = (queries / 4, (queries % 4).div_ceil(2));
    let passes = fours * (1 + dim.div_ceil(C * LANES)) + fewer * (1 + dim.div_ceil(2 * C * LANES));
    passes * keys.div_ceil(KEYS_PER_CALL)
}

impl<E: Element, H: Held<E>> Walk<'_, E, H> {
    /// Some queries times keys of a piece, the first of them its key `from`; those that a query may not see are left out later.
    #[inline(always)]
    pub(super) fn score_few<S: Simd, const C: usize>(
        &self,
        simd: S,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        from: usize,
        mut coming: Coming<'_>,
    ) {
        let steps = state.steps;
        // Of what comes behind fewer keys than these are ahead, nobody else asks for the first.
        for &place in coming.late.unwrap_or(&[]).iter().take(AHEAD.saturating_sub(places.len())) {
            self.prefetch(simd, &self.k_cache[place..place + self.cache.dim]);
        }
        let mut query = queries.start;
        while query < queries.end {
            let q = &state.q[query * steps..];
            let scores = &mut state.scores[query..];
            // As many sums as there are lanes, where there are registers for them.
            let some = if const { C == 4 } {
                match queries.end - query {
                    1 => self.score_some::<S, 1, 16>(simd, q, scores, places, from, &mut coming),
                    2 | 3 => self.score_some::<S, 2, 8>(simd, q, scores, places, from, &mut coming),
                    _ => self.score_some::<S, 4, 4>(simd, q, scores, places, from, &mut coming),
                }
            } else {
                match queries.end - query {
                    1 => self.score_some::<S, 1, 1>(simd, q, scores, places, from, &mut coming),
                    2 | 3 => self.score_some::<S, 2, 1>(simd, q, scores, places, from, &mut coming),
                    _ => self.score_some::<S, 4, 1>(simd, q, scores, places, from, &mut coming),
                }
            };
            query += some;
            coming.late = None; // the first queries bring keys and values into the cache for all
        }
    }

    /// `Q` queries, `K` keys at a time. Returns `Q`.
    #[inline(always)]
    fn score_some<S: Simd, const Q: usize, const K: usize>(
        &self,
        simd: S,
        q: &[E::Block],
        scores: &mut [[f32; PIECE]],
        places: &[usize],
        from: usize,
        coming: &mut Coming<'_>,
    ) -> usize {
        for (now, at) in places.chunks(K).zip((0..).step_by(K)) {
            if let Some(behind) = coming.late {
                for (key, &place) in (at..).zip(now) {
                    let ahead = key + AHEAD;
                    if let Some(&ahead) = places.get(ahead).or_else(|| behind.get(ahead - places.len())) {
                        self.prefetch(simd, &self.k_cache[ahead..ahead + self.cache.dim]);
                    }
                    self.prefetch(simd, &self.v_cache[place..place + self.cache.dim]);
                }
            }
            let mut keys = [now[0]; K]; // behind the last one any will do
            keys[..now.len()].copy_from_slice(now);
            let sums = self.dots::<S, Q, K>(simd, q, &keys, coming.next);
            for (scores, sums) in scores.iter_mut().zip(&sums) {
                match scores[from + at..].first_chunk_mut() {
                    Some(whole) if now.len() == K => *whole = *sums,
                    _ => scores[from + at..][..now.len()].copy_from_slice(&sums[..now.len()]),
                }
            }
        }
        Q
    }

    /// Scores of `Q` queries and `K` keys: a dot product is one sum per lane, then the tree of [`Simd::sum`].
    #[inline(always)]
    fn dots<S: Simd, const Q: usize, const K: usize>(
        &self,
        simd: S,
        q: &[E::Block],
        places: &[usize; K],
        next: &mut Next,
    ) -> [[f32; K]; Q] {
        let mut scores = [[0.0; K]; Q];
        if const { Q * K == LANES } {
            let mut all = [simd.splat(0.0); LANES];
            // Four at a time, or there are no registers for them.
            for (group, places) in places.as_chunks::<KEYS_PER_CALL>().0.iter().enumerate() {
                next.ask(simd, [self.k_cache, self.v_cache]);
                let sums = self.sums::<S, Q, KEYS_PER_CALL>(simd, q, places);
                for (query, sums) in sums.iter().enumerate() {
                    for (key, &sum) in sums.iter().enumerate() {
                        all[query * K + group * KEYS_PER_CALL + key] = sum;
                    }
                }
            }
            let mut factors = simd.splat(self.scale);
            if H::FORMAT == CacheFormat::Codes {
                let mut lanes = [0.0; LANES];
                for (key, &place) in places.iter().enumerate() {
                    let of_key = self.factor(place);
                    for query in 0..Q {
                        lanes[query * K + key] = of_key;
                    }
                }
                factors = simd.load(&lanes);
            }
            let to = scores.as_flattened_mut().first_chunk_mut().expect("as many as sums");
            simd.store(simd.mul(simd.sum_each(&all), factors), to);
            return scores;
        }
        let sums = self.sums::<S, Q, K>(simd, q, places);
        for (scores, sums) in scores.iter_mut().zip(&sums) {
            for ((score, &sum), &place) in scores.iter_mut().zip(sums).zip(places) {
                *score = simd.sum(sum) * self.factor(place);
            }
        }
        scores
    }

    /// `Q` queries times `K` keys, lane by lane, all in registers.
    #[inline(always)]
    fn sums<S: Simd, const Q: usize, const K: usize>(
        &self,
        simd: S,
        q: &[E::Block],
        places: &[usize; K],
    ) -> [[S::V; K]; Q] {
        let mut keys = [(&[][..], None); K];
        for (key, &place) in keys.iter_mut().zip(places) {
            *key = blocks::<H, H::Block>(&self.k_cache[place..place + self.cache.dim]);
        }
        let steps = keys[0].0.len() + usize::from(keys[0].1.is_some());
        let mut sums = [[simd.splat(0.0); K]; Q];
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
        sums
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
        next: &mut Next,
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
                    self.values::<S, 1, C>(simd, state, at, &places[..before.end], before.start, next);
                }
            }
            match some {
                1 => self.values::<S, 1, C>(simd, state, query, &places[..all.end], all.start, next),
                2 => self.values::<S, 2, C>(simd, state, query, &places[..all.end], all.start, next),
                _ => self.values::<S, 4, C>(simd, state, query, &places[..all.end], all.start, next),
            }
            for at in query..query + some {
                let own = own(state, at);
                let behind = own.start.max(all.end)..own.end;
                if !behind.is_empty() {
                    self.values::<S, 1, C>(simd, state, at, &places[..behind.end], behind.start, next);
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
        next: &mut Next,
    ) {
        let whole = self.cache.dim / LANES;
        let vectors = self.cache.dim.div_ceil(LANES);
        let mut vector = 0;
        // As many sums as of four queries.
        while C == 4 && Q <= 2 && vector + 8 <= whole {
            self.values_at::<S, Q, 8, true>(simd, state, query, places, from, vector, next);
            vector += 8;
        }
        while vector + C <= whole {
            self.values_at::<S, Q, C, true>(simd, state, query, places, from, vector, next);
            vector += C;
        }
        // Additions to one sum wait for each other: two vectors at a time take little longer than one.
        while C > 2 && vector + 2 <= whole {
            self.values_at::<S, Q, 2, true>(simd, state, query, places, from, vector, next);
            vector += 2;
        }
        while vector < whole {
            self.values_at::<S, Q, 1, true>(simd, state, query, places, from, vector, next);
            vector += 1;
        }
        if vector < vectors {
            self.values_at::<S, Q, 1, false>(simd, state, query, places, from, vector, next);
        }
    }

    /// The same for `C` vectors of the head, sums in registers; not `WHOLE`: the head's last, incomplete vector.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what is added to what, and what is asked for meanwhile")]
    fn values_at<S: Simd, const Q: usize, const C: usize, const WHOLE: bool>(
        &self,
        simd: S,
        state: &mut State<E>,
        query: usize,
        places: &[usize],
        from: usize,
        vector: usize,
        next: &mut Next,
    ) {
        let start = vector * LANES;
        let vectors = self.cache.dim.div_ceil(LANES);
        // Loops of a known length, or the sums would pass through the stack.
        let scores: &[_; Q] = state.scores[query..].first_chunk().expect("a row of scores for each query");
        let are_apart = C > 1 && H::are_apart::<S>();
        let mut sums = [[simd.splat(0.0); C]; Q];
        for (at, sums) in sums.iter_mut().enumerate() {
            let piece: &[_; C] =
                state.piece[(query + at) * vectors + vector..].first_chunk().expect("a head's vectors");
            for (sum, from) in sums.iter_mut().zip(piece) {
                *sum = simd.load(from);
            }
            if are_apart {
                for pair in 0..C / 2 {
                    let at = 2 * pair;
                    [sums[at], sums[at + 1]] = simd.separate([sums[at], sums[at + 1]]);
                }
            }
        }
        let together = const { if asks::<C>() { KEYS_PER_CALL } else { PIECE } };
        for (some, first) in places[from..].chunks(together).zip((from..).step_by(together)) {
            next.ask(simd, [self.k_cache, self.v_cache]);
            for (key, &place) in (first..).zip(some) {
                let mut values = [simd.splat(0.0); C];
                if are_apart {
                    let (pairs, _) = self.v_cache[place + start..place + start + C * LANES].as_chunks();
                    for pair in 0..C / 2 {
                        [values[2 * pair], values[2 * pair + 1]] = H::load_apart(simd, &pairs[pair]);
                    }
                } else if WHOLE {
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
        }
        for (at, sums) in sums.iter_mut().enumerate() {
            if are_apart {
                for pair in 0..C / 2 {
                    let at = 2 * pair;
                    [sums[at], sums[at + 1]] = simd.alternate([sums[at], sums[at + 1]]);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As often as scores and values of so many queries together ask.
    fn made(queries: usize, keys: usize, dim: usize) -> usize {
        let scores = keys.div_ceil(LANES / queries) * LANES / queries / KEYS_PER_CALL;
        let whole = dim / LANES;
        let (eights, rest) = if queries <= 2 { (whole / 8, whole % 8) } else { (0, whole) };
        let passes = eights + rest / 4 + rest % 4 / 2 + rest % 2 + usize::from(!dim.is_multiple_of(LANES));
        scores + passes * keys.div_ceil(KEYS_PER_CALL)
    }

    #[test]
    fn no_more_calls_are_counted_with_than_are_made() {
        for (queries, groups) in
            [(1, vec![1]), (3, vec![2, 1]), (7, vec![4, 2, 1]), (12, vec![4; 3]), (14, vec![4, 4, 4, 2])]
        {
            for keys in [1, 4, 17, 256] {
                for dim in [16, 40, 64, 80, 128, 192, 256, 300] {
                    let made: usize = groups.iter().map(|&queries| made(queries, keys, dim)).sum();
                    assert!(calls::<4>(queries, keys, dim) <= made, "{queries} queries, {keys} keys, {dim}");
                }
            }
        }
    }
}
