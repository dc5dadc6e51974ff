//! One thread's tasks: stretch by stretch and piece by piece, scores, softmax and weighted values, and the merge of pieces.

use std::ops::Range;

use super::few::blocks;
use super::products::{AddValues, MOST_AHEAD, Products, Score, Vectors};
use super::share::{Bundle, Plan, Stretch};
#[cfg(target_arch = "x86_64")]
use super::tiled::Tiled;
use super::{Run, Sight};
#[cfg(target_arch = "x86_64")]
use crate::amx::Amx;
use crate::cache::{CacheFormat, CacheShape};
use crate::cached::Held;
use crate::element::Element;
use crate::lined::Lined;
use crate::math::{exp_at_most_one, put, tanh};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::Shared;

/// Keys per piece. Part of the arithmetic: another size gives other bits.
pub(super) const PIECE: usize = 256;

/// Some of the tasks of one call.
pub(super) struct Walk<'a, E, H> {
    pub(super) out: &'a Shared<'a, E>,
    /// Of `out`, from a token's row to the next.
    pub(super) out_row: usize,
    pub(super) q: &'a [E],
    pub(super) k_cache: &'a [H],
    pub(super) v_cache: &'a [H],
    pub(super) cache: CacheShape,
    pub(super) block_table: &'a [i32],
    pub(super) max_blocks: usize,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) sight: Sight<'a>,
    pub(super) plan: &'a Plan,
    pub(super) tasks: Range<usize>,
    /// The tiles, if attention goes through them.
    #[cfg(target_arch = "x86_64")]
    pub(super) amx: Option<Amx>,
}

/// From how many queries on keys are turned and values widened once for all, where there are 32 registers, and where there are 16.
/// Below, that costs more than it saves: of the first class 8 queries of 32 elements take 1.15 times as long that way, and 24
/// of 128 three quarters.
pub(super) const MANY: [usize; 2] = [16, 32];

/// What a piece is to one query.
#[derive(Clone, Default)]
pub(super) struct Weighed {
    /// Which of its keys it sees.
    seen: Range<usize>,
    /// The greatest score of these.
    max: f32,
    /// Σ exp(s - max) over them.
    weight: f32,
}

impl Weighed {
    #[inline(always)]
    pub(super) fn seen(&self) -> Range<usize> {
        self.seen.clone()
    }

    /// Which of these keys it sees.
    #[inline(always)]
    pub(super) fn seen_of(&self, keys: &Range<usize>) -> Range<usize> {
        self.seen.start.clamp(keys.start, keys.end)..self.seen.end.clamp(keys.start, keys.end)
    }
}

/// What one task keeps, by query. Heads are filled up to whole vectors with zeros.
pub(super) struct State<E: Element> {
    /// `[query][step]`.
    pub(super) q: Vec<E::Block>,
    /// Blocks of a query.
    pub(super) steps: usize,
    /// Of a query's sums.
    pub(super) vectors: usize,
    /// `[query][vector]`: Σ exp(s - max) · v over all pieces so far.
    pub(super) sums: Lined<Lanes<f32>>,
    /// `[query][vector]`: the same of one piece.
    pub(super) piece: Lined<Lanes<f32>>,
    /// `[query][key]`: scores of one piece, then their exponentials.
    pub(super) scores: Lined<[f32; PIECE]>,
    /// Greatest score so far.
    pub(super) max: Vec<f32>,
    /// Σ exp(s - max) so far.
    pub(super) weight: Vec<f32>,
    /// The piece.
    pub(super) weighed: Vec<Weighed>,
}

impl<E: Element> State<E> {
    fn new(dim: usize, vectors: usize) -> Self {
        Self {
            q: vec![],
            steps: dim.div_ceil(size_of::<E::Block>() / size_of::<E>()),
            vectors,
            sums: Lined::new(),
            piece: Lined::new(),
            scores: Lined::new(),
            max: vec![],
            weight: vec![],
            weighed: vec![],
        }
    }

    fn clear(&mut self, queries: usize) {
        self.q.clear();
        for lanes in [&mut self.sums, &mut self.piece] {
            lanes.resize(queries * self.vectors);
            lanes.fill([0.0; LANES]);
        }
        self.scores.resize(queries);
        self.max.clear();
        self.max.resize(queries, f32::NEG_INFINITY);
        self.weight.clear();
        self.weight.resize(queries, 0.0);
        self.weighed.resize(queries, Weighed::default());
    }
}

/// Where the keys of a piece lie.
struct Places {
    /// Of those that all members of a stretch share, and some behind them.
    shared: [usize; PIECE + MOST_AHEAD],
    /// Of the first keys of the task that comes next.
    next: [usize; MOST_AHEAD],
    /// Of one member's.
    own: [usize; PIECE],
    /// The scales of values, where caches hold codes.
    scales: [f32; PIECE],
}

impl<E: Element, H: Held<E>> Kernel for Walk<'_, E, H> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let dim = self.cache.dim;
        #[cfg(target_arch = "x86_64")]
        if const { S::HAS_PAIRS && size_of::<E>() == size_of::<crate::element::Bf16>() }
            && let Some(amx) = self.amx
        {
            // SAFETY: the only one that this thread has: nothing below makes another.
            return self.walk(simd, unsafe { Tiled::new(simd, amx, dim) });
        }
        match const { (S::WIDTH, S::HAS_PAIRS) } {
            (4, true) => self.walk(simd, Vectors::<S, E, E, 4, 2>::new(simd, dim)),
            (4, false) => self.walk(simd, Vectors::<S, E, f32, 4, 2>::new(simd, dim)),
            (1, false) => self.walk(simd, Vectors::<S, E, f32, 1, 1>::new(simd, dim)),
            other => unreachable!("no class has these tiles: {other:?}"),
        }
    }
}

impl<E: Element, H: Held<E>> Walk<'_, E, H> {
    #[inline(always)]
    fn walk<S: Simd, P: Products<E, H>>(self, simd: S, mut products: P) {
        let mut state = State::new(self.cache.dim, P::vectors(self.cache.dim));
        let mut places =
            Places { shared: [0; PIECE + MOST_AHEAD], next: [0; MOST_AHEAD], own: [0; PIECE], scales: [0.0; PIECE] };
        for task in self.tasks.clone() {
            let (bundle, head) = self.task(task);
            let runs = &self.plan.runs[bundle.runs.clone()];
            self.load_queries(&mut state, runs, head);
            let stretches = &self.plan.stretches[bundle.stretches.clone()];
            for (at, stretch) in stretches.iter().enumerate() {
                let next = Some(task + 1).filter(|next| at + 1 == stretches.len() && self.tasks.contains(next));
                self.stretch(simd, &mut products, &mut state, &mut places, stretch, head, next);
            }
            for run in runs {
                self.write(simd, &state, run, head);
            }
        }
    }

    /// A task's bundle and KV head.
    fn task(&self, task: usize) -> (&Bundle, usize) {
        (&self.plan.bundles[task / self.cache.heads], task % self.cache.heads)
    }

    fn group(&self) -> usize {
        self.heads / self.cache.heads
    }

    /// Which queries of the task are those of neighbouring runs.
    fn queries(&self, runs: &[Run]) -> Range<usize> {
        let (first, last) = (&runs[0], &runs[runs.len() - 1]);
        first.query..last.query + last.tokens.len() * self.group()
    }

    fn queries_of(&self, run: &Run) -> Range<usize> {
        self.queries(std::slice::from_ref(run))
    }

    /// Query i of a run is head `i % group` of token `i / group`.
    fn load_queries(&self, state: &mut State<E>, runs: &[Run], head: usize) {
        let (dim, group) = (self.cache.dim, self.group());
        state.clear(self.queries(runs).len());
        for token in runs.iter().flat_map(|run| run.tokens.clone()) {
            let heads = &self.q[(token * self.heads + head * group) * dim..][..group * dim];
            for query in heads.chunks_exact(dim) {
                let (whole, tail) = blocks::<E, E::Block>(query);
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

    /// Takes its members through a stretch. `next`: the task that comes behind it.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what a thread keeps, and what it is to do")]
    fn stretch<S: Simd, P: Products<E, H>>(
        &self,
        simd: S,
        products: &mut P,
        state: &mut State<E>,
        found: &mut Places,
        stretch: &Stretch,
        head: usize,
        next: Option<usize>,
    ) {
        let members = &self.plan.runs[stretch.members.clone()];
        let queries = self.queries(members);
        products.enter(state, &queries);
        for first in (stretch.from..stretch.to).step_by(PIECE) {
            let places = &mut found.shared[..(PIECE + P::AHEAD).min(members[0].end(&self.sight) - first)];
            self.find(places, members, head, first);
            let (keys, mut behind) = places.split_at(PIECE.min(stretch.shared - first));
            if let Some(next) = next.filter(|_| first + PIECE >= stretch.to) {
                behind = self.first_keys(next, &mut found.next[..P::AHEAD]);
            }
            // How many of the piece's keys a member has; those behind the shared ones are its own.
            let known = |run: &Run| PIECE.min(run.end(&self.sight) - first);
            simd.apart(Score {
                products,
                walk: self,
                state,
                queries: queries.clone(),
                places: keys,
                from: 0,
                next: behind,
            });
            for run in members.iter().filter(|run| known(run) > keys.len()) {
                let places = &mut found.own[..known(run)];
                self.find(places, std::slice::from_ref(run), head, first);
                let (queries, from) = (self.queries_of(run), keys.len());
                simd.apart(Score { products, walk: self, state, queries, places, from, next: &[] });
            }
            let has_scales = H::FORMAT == CacheFormat::Codes;
            if has_scales {
                self.find_scales(&mut found.scales, keys);
            }
            for run in members {
                self.weigh(simd, state, run, head, first, known(run));
                if has_scales {
                    if known(run) > keys.len() {
                        let places = &mut found.own[..known(run)];
                        self.find(places, std::slice::from_ref(run), head, first);
                        self.find_scales(&mut found.scales[keys.len()..], &places[keys.len()..]);
                    }
                    self.weigh_values(simd, state, run, &found.scales);
                }
            }
            // A step of which a member has a part for itself is no common one.
            let is_common = members.iter().all(|run| known(run) <= keys.len());
            let common = if is_common { keys.len() } else { keys.len() / P::STEP * P::STEP };
            let (walk, places) = (self, keys);
            simd.apart(AddValues { products, walk, state, queries: queries.clone(), places, keys: 0..common });
            for run in members.iter().filter(|run| known(run) > common) {
                let places = &mut found.own[..known(run)];
                self.find(places, std::slice::from_ref(run), head, first);
                let (queries, keys) = (self.queries_of(run), common..known(run));
                simd.apart(AddValues { products, walk, state, queries, places, keys });
            }
            for query in queries.clone() {
                self.merge(simd, state, query);
            }
        }
    }

    /// Where the first keys of a task lie, at most as many as there is room for.
    fn first_keys<'p>(&self, task: usize, places: &'p mut [usize]) -> &'p [usize] {
        let (bundle, head) = self.task(task);
        let stretch = &self.plan.stretches[bundle.stretches.start];
        let count = places.len().min(stretch.shared - stretch.from);
        let places = &mut places[..count];
        self.find(places, &self.plan.runs[stretch.members.clone()], head, stretch.from);
        places
    }

    /// Where in the caches the keys from absolute position `first` on lie: of one run, or of several as far as they have the same
    /// blocks (what is found behind is the first one's). For keys that none of their queries sees, the first one that
    /// one does: their blocks may be gone, and their scores are not used.
    fn find(&self, places: &mut [usize], runs: &[Run], head: usize, first: usize) {
        let table = &self.block_table[runs[0].row * self.max_blocks..][..self.max_blocks];
        let size = self.cache.block_size;
        let seen = runs.iter().map(|run| self.sight.first(run.position)).min().unwrap_or(first);
        let hidden = seen.saturating_sub(first);
        let (mut block, mut token) = ((first + hidden) / size, (first + hidden) % size);
        let (behind, places) = places.split_at_mut(hidden.min(places.len()));
        behind.fill(self.cache.at(table[block] as usize, head, token));
        let mut places = places;
        while !places.is_empty() {
            let (here, rest) = places.split_at_mut(places.len().min(size - token));
            let start = self.cache.at(table[block] as usize, head, token);
            for (at, place) in here.iter_mut().enumerate() {
                *place = start + at * self.cache.row();
            }
            (block, token, places) = (block + 1, 0, rest);
        }
    }

    /// Turns the scores of a run's queries for the first `keys` of a piece into weights.
    #[inline(always)]
    fn weigh<S: Simd>(&self, simd: S, state: &mut State<E>, run: &Run, head: usize, first: usize, keys: usize) {
        let queries = self.queries_of(run);
        if let Some(cap) = self.sight.soft_cap {
            soften(simd, &mut state.scores[queries.clone()], keys, cap);
        }
        if let Some(slopes) = self.sight.slopes {
            let group = self.group();
            for (at, scores) in state.scores[queries.clone()].iter_mut().enumerate() {
                let behind = first as f32 - (run.position + at / group) as f32;
                lean(simd, scores, keys, slopes[head * group + at % group], behind);
            }
        }
        // All maxima first: many of them, which wait for nothing, are found at once.
        for (at, query) in queries.clone().enumerate() {
            let seen = self.seen(run, at, first, keys);
            let max = greatest(simd, &mut state.scores[query], seen.clone());
            state.weighed[query] = Weighed { seen, max, weight: 0.0 };
        }
        for query in queries {
            let Weighed { seen, max, weight } = &mut state.weighed[query];
            *weight = exponentials(simd, &mut state.scores[query], seen.clone(), *max);
        }
    }

    /// The scales of the values at these places.
    #[inline(always)]
    fn find_scales(&self, scales: &mut [f32], places: &[usize]) {
        for (scale, &place) in scales.iter_mut().zip(places) {
            *scale = H::scale(&self.v_cache[place..place + self.cache.row()], self.cache.dim);
        }
    }

    /// Brings the scales of the values that a run's queries see into their weights.
    #[inline(always)]
    fn weigh_values<S: Simd>(&self, simd: S, state: &mut State<E>, run: &Run, scales: &[f32; PIECE]) {
        for query in self.queries_of(run) {
            let whole = whole(&state.weighed[query].seen);
            let (weights, _) = state.scores[query][whole.clone()].as_chunks_mut::<LANES>();
            for (weights, scales) in weights.iter_mut().zip(scales[whole].as_chunks::<LANES>().0) {
                simd.store(simd.mul(simd.load(weights), simd.load(scales)), weights);
            }
        }
    }

    /// What the dot product of a query and the key at this place is multiplied with.
    #[inline(always)]
    pub(super) fn factor(&self, place: usize) -> f32 {
        self.scale * H::scale(&self.k_cache[place..place + self.cache.row()], self.cache.dim)
    }

    /// Which of a piece's `keys`, the first of them at position `first`, a query of a run sees.
    #[inline(always)]
    fn seen(&self, run: &Run, query: usize, first: usize, keys: usize) -> Range<usize> {
        let position = run.position + query / self.group();
        let to = self.sight.end(position, run.reach).saturating_sub(first).min(keys);
        self.sight.first(position).saturating_sub(first).min(to)..to
    }

    /// Asks for all cache lines of one head.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, head: &[H]) {
        for line in head.chunks(64 / size_of::<H>()) {
            simd.prefetch(line.as_ptr().cast());
        }
    }

    /// Brings the sums so far and those of the piece to their common maximum, adds them, and clears the piece.
    #[inline(always)]
    fn merge<S: Simd>(&self, simd: S, state: &mut State<E>, query: usize) {
        let Weighed { ref seen, max, weight } = state.weighed[query];
        if seen.is_empty() {
            return;
        }
        let before = state.max[query];
        let both = if max > before { max } else { before };
        let old = exp_at_most_one(simd, simd.splat(before - both));
        let new = exp_at_most_one(simd, simd.splat(max - both));
        state.max[query] = both;
        state.weight[query] = state.weight[query] * simd.max_lane(old) + weight * simd.max_lane(new);
        let range = query * state.vectors..(query + 1) * state.vectors;
        for (sum, piece) in state.sums[range.clone()].iter_mut().zip(&mut state.piece[range]) {
            let added = simd.mul(simd.load(piece), new);
            simd.store(simd.fma(simd.load(sum), old, added), sum);
            *piece = [0.0; LANES];
        }
    }

    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, state: &State<E>, run: &Run, head: usize) {
        let (dim, group) = (self.cache.dim, self.group());
        for (at, token) in run.tokens.clone().enumerate() {
            let start = token * self.out_row + head * group * dim;
            // SAFETY: this token and KV head belong to this task alone, and so do the query heads of its group.
            let out = unsafe { self.out.piece(start..start + group * dim) };
            for (query, out) in out.chunks_exact_mut(dim).enumerate() {
                let query = run.query + at * group + query;
                let share = simd.splat(1.0 / state.weight[query]);
                for (out, sum) in out.chunks_mut(LANES).zip(&state.sums[query * state.vectors..]) {
                    put(simd, simd.mul(simd.load(sum), share), out);
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

/// Adds slope · (key - query) to scores. `behind`: that distance of the piece's first key. Exact, as positions are: below 2^24.
#[inline(always)]
fn lean<S: Simd>(simd: S, scores: &mut [f32; PIECE], keys: usize, slope: f32, behind: f32) {
    let mut lanes = [0.0; LANES];
    for (at, lane) in lanes.iter_mut().enumerate() {
        *lane = at as f32;
    }
    let (slope, lanes) = (simd.splat(slope), simd.load(&lanes));
    let (vectors, _) = scores[..keys.next_multiple_of(LANES)].as_chunks_mut::<LANES>();
    for (at, vector) in vectors.iter_mut().enumerate() {
        let distance = simd.add(simd.splat(behind + (at * LANES) as f32), lanes);
        simd.store(simd.fma(slope, distance, simd.load(vector)), vector);
    }
}

/// The vectors in which the keys that are seen lie.
#[inline(always)]
fn whole(seen: &Range<usize>) -> Range<usize> {
    seen.start / LANES * LANES..seen.end.next_multiple_of(LANES)
}

/// The greatest score of the keys that are seen; -∞ if there are none. The rest of their vectors becomes -∞.
#[inline(always)]
fn greatest<S: Simd>(simd: S, scores: &mut [f32; PIECE], seen: Range<usize>) -> f32 {
    if seen.is_empty() {
        return f32::NEG_INFINITY;
    }
    let range = whole(&seen);
    scores[range.start..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..range.end].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores[range].as_chunks::<LANES>();
    let mut max = simd.splat(f32::NEG_INFINITY);
    for vector in vectors {
        max = simd.max(max, simd.load(vector));
    }
    simd.max_lane(max)
}

/// Replaces the scores of the keys that are seen by exp(s - max), and the rest of their vectors by 0; returns the sum of these.
#[inline(always)]
fn exponentials<S: Simd>(simd: S, scores: &mut [f32; PIECE], seen: Range<usize>, max: f32) -> f32 {
    if seen.is_empty() {
        return 0.0;
    }
    let (vectors, _) = scores[whole(&seen)].as_chunks_mut::<LANES>();
    let mut sum = simd.splat(0.0);
    for vector in vectors {
        let weights = exp_at_most_one(simd, simd.sub(simd.load(vector), simd.splat(max)));
        sum = simd.add(sum, weights);
        simd.store(weights, vector);
    }
    simd.sum(sum)
}
