//! Where the arithmetic of scores and weighted values differs between classes: vectors, or tiles ([`super::tiled`]).

use std::ops::Range;

use super::few::{AHEAD, Coming, Next, asks, calls};
use super::many::Many;
use super::piece::{MANY, PIECE, State, Walk};
use crate::cached::Held;
use crate::element::Element;
use crate::simd::{LANES, Part, Simd};

/// The greatest [`Products::AHEAD`].
pub(super) const MOST_AHEAD: usize = PIECE;

/// The two products of attention. Whatever is asked for together, a query's bits are the same.
pub(super) trait Products<E: Element, H: Held<E>> {
    /// Values are summed up so many keys at a time, counted from the piece's first.
    const STEP: usize;
    /// So many keys that come next are known.
    const AHEAD: usize;

    /// How many vectors a query's sums take: a head of `dim`, and what fills it up.
    fn vectors(dim: usize) -> usize;
    /// These queries are about to walk a stretch together.
    fn enter(&mut self, state: &State<E>, queries: &Range<usize>);
    /// Scores of some queries and the keys of a piece from `from` on, which lie at `places`; those that a query may not see are left out
    /// later. `next`: the keys behind them, or of the task that comes next.
    fn score(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        from: usize,
        next: &[usize],
    );
    /// Adds weight · value of those of `keys` that each query sees to the piece's sums; the first of them begins a step.
    fn add_values(
        &mut self,
        walk: &Walk<'_, E, H>,
        state: &mut State<E>,
        queries: Range<usize>,
        places: &[usize],
        keys: Range<usize>,
    );
}

/// [`Products::score`] with its arguments.
pub(super) struct Score<'a, 'w, E: Element, H, P> {
    pub(super) products: &'a mut P,
    pub(super) walk: &'a Walk<'w, E, H>,
    pub(super) state: &'a mut State<E>,
    pub(super) queries: Range<usize>,
    pub(super) places: &'a [usize],
    pub(super) from: usize,
    pub(super) next: &'a [usize],
}

impl<S: Simd, E: Element, H: Held<E>, P: Products<E, H>> Part<S> for Score<'_, '_, E, H, P> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: S) {
        self.products.score(self.walk, self.state, self.queries, self.places, self.from, self.next);
    }
}

/// [`Products::add_values`] with its arguments.
pub(super) struct AddValues<'a, 'w, E: Element, H, P> {
    pub(super) products: &'a mut P,
    pub(super) walk: &'a Walk<'w, E, H>,
    pub(super) state: &'a mut State<E>,
    pub(super) queries: Range<usize>,
    pub(super) places: &'a [usize],
    pub(super) keys: Range<usize>,
}

impl<S: Simd, E: Element, H: Held<E>, P: Products<E, H>> Part<S> for AddValues<'_, '_, E, H, P> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: S) {
        self.products.add_values(self.walk, self.state, self.queries, self.places, self.keys);
    }
}

/// Vectors: few queries meet keys and values as they lie, many meet them turned and widened, with the same bits.
pub(super) struct Vectors<S: Simd, E, T: Element, const C: usize, const G: usize> {
    simd: S,
    many: Many<S, E, T, C, G>,
    /// Those that walk together and are many.
    entered: Range<usize>,
    /// The keys and values that come next, where few queries meet them.
    next: Next,
}

impl<S: Simd, E: Element, T: Element, const C: usize, const G: usize> Vectors<S, E, T, C, G> {
    #[inline(always)]
    pub(super) fn new(simd: S, dim: usize) -> Self {
        Self { simd, many: Many::new(simd, dim), entered: 0..0, next: Next::default() }
    }
}

impl<S: Simd, E: Element, H: Held<E>, T: Element, const C: usize, const G: usize> Products<E, H>
    for Vectors<S, E, T, C, G>
{
    const STEP: usize = 1;
    const AHEAD: usize = if asks::<C>() { PIECE } else { AHEAD };

    fn vectors(dim: usize) -> usize {
        dim.div_ceil(LANES)
    }

    #[inline(always)]
    fn enter(&mut self, state: &State<E>, queries: &Range<usize>) {
        self.entered = 0..0;
        if queries.len() >= MANY[usize::from(C == 1)] {
            self.many.load_queries(&state.q[queries.start * state.steps..queries.end * state.steps]);
            self.entered = queries.clone();
        }
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
        if queries == self.entered {
            walk.score_many(self.simd, &mut self.many, &mut state.scores[queries], places, next);
        } else {
            let places = &places[from..];
            let caches = [walk.k_cache, walk.v_cache];
            let late = if self.next.begins_at(places[0]) {
                self.next.finish(self.simd, caches);
                None
            } else {
                Some(next)
            };
            if asks::<C>() && !next.is_empty() {
                self.next.set(next, walk.cache.dim * size_of::<H>(), caches.len());
                self.next.spread(calls::<C>(queries.len(), places.len(), walk.cache.dim));
            }
            let coming = Coming { late, next: &mut self.next };
            walk.score_few::<S, C>(self.simd, state, queries, places, from, coming);
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
        if queries == self.entered {
            walk.values_many(&mut self.many, state, queries, places);
        } else {
            walk.values_few::<S, C>(self.simd, state, queries, places, keys, &mut self.next);
        }
    }
}
