//! Where buffers lie in the arena: buffers that are never alive together share a place.
//!
//! A buffer lives from the first call that names it to the last. Places are given in one walk over the calls: a buffer takes
//! the free place that it makes grow least, else a new one. How long a place is depends on the step's counts, and so do the
//! offsets: a step of one token stays within a few kilobytes of arena, and so within the first-level cache.

use std::ops::Range;

use super::call::{BufferId, Call, Counts, Per, Size};

/// Places begin on lines, so that any element is aligned and no two threads write one line of two buffers.
const LINE: usize = 64;

/// The places of a program's buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    of: Vec<Option<usize>>, // by buffer
    sizes: Vec<Longest>,
    starts: Vec<usize>, // by place, in the step laid out last; one more: the end
}

/// The longest of several sizes, whatever the counts are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Longest {
    per_step: usize,
    per_token: usize,
    per_draw: usize,
}

impl Longest {
    fn with(self, size: Size) -> Self {
        let mut grown = self;
        let kind = match size.per {
            Per::Step => &mut grown.per_step,
            Per::Token => &mut grown.per_token,
            Per::Draw => &mut grown.per_draw,
        };
        *kind = size.each.max(*kind);
        grown
    }

    fn bytes(self, counts: Counts) -> usize {
        self.per_step.max(self.per_token * counts.tokens).max(self.per_draw * counts.draws)
    }

    /// How much is lost by using this place for that size: what the place grows by, and what it has too much.
    fn misfit(self, size: Size) -> usize {
        const TYPICAL: Counts = Counts { tokens: 16, draws: 16 };
        self.with(size).bytes(TYPICAL) * 2 - self.bytes(TYPICAL) - size.bytes(TYPICAL)
    }
}

impl Places {
    /// `result` lives on after the last call.
    pub(super) fn plan(buffers: &[Size], calls: &[Call], result: BufferId) -> Self {
        let mut last = vec![0; buffers.len()];
        for (at, call) in calls.iter().enumerate() {
            for id in call.reads().into_iter().chain(call.writes()) {
                last[id.0] = at;
            }
        }
        last[result.0] = calls.len();

        let mut of = vec![None; buffers.len()];
        let (mut sizes, mut free) = (Vec::<Longest>::new(), Vec::<usize>::new());
        for (at, call) in calls.iter().enumerate() {
            let mut named = [call.reads(), call.writes()].concat();
            named.sort_unstable();
            named.dedup();
            for id in named.iter().filter(|id| of[id.0].is_none()).copied().collect::<Vec<_>>() {
                let size = buffers[id.0];
                let best = (0..free.len()).min_by_key(|&at| sizes[free[at]].misfit(size));
                let place = best.map_or(sizes.len(), |at| free.swap_remove(at));
                if place == sizes.len() {
                    sizes.push(Longest::default());
                }
                sizes[place] = sizes[place].with(size);
                of[id.0] = Some(place);
            }
            // Only now: a call's inputs and outputs lie apart.
            free.extend(named.iter().filter(|id| last[id.0] == at).filter_map(|id| of[id.0]));
        }
        let starts = vec![0; sizes.len() + 1];
        Self { of, sizes, starts }
    }

    /// Lays the arena out for these counts; returns its length in bytes.
    pub(super) fn lay_out(&mut self, counts: Counts) -> usize {
        let mut end = 0;
        for (start, size) in self.starts.iter_mut().zip(&self.sizes) {
            *start = end;
            end = (end + size.bytes(counts)).next_multiple_of(LINE);
        }
        self.starts[self.sizes.len()] = end;
        end
    }

    /// Where a buffer of this size lies, as laid out last.
    pub(super) fn range(&self, id: BufferId, bytes: usize) -> Range<usize> {
        let place = self.of[id.0].expect("a call names it");
        let start = self.starts[place];
        assert!(start + bytes <= self.starts[place + 1], "a place is as long as the longest buffer in it");
        start..start + bytes
    }

    /// The number of a buffer's place, if a call names it.
    pub(super) fn of(&self, id: BufferId) -> Option<usize> {
        self.of[id.0]
    }

    /// How many places there are.
    pub(super) fn count(&self) -> usize {
        self.sizes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call_back(reads: &[usize], writes: &[usize]) -> Call {
        let ids = |ids: &[usize]| ids.iter().map(|&id| BufferId(id)).collect();
        Call::CallBack { name: "op".into(), reads: ids(reads), writes: ids(writes) }
    }

    fn any_size() -> impl Strategy<Value = Size> {
        (1..500_usize, prop_oneof![Just(Per::Step), Just(Per::Token), Just(Per::Draw)])
            .prop_map(|(each, per)| Size { each, per })
    }

    proptest! {
        #[test]
        fn buffers_that_are_alive_together_never_overlap(
            sizes in prop::collection::vec(any_size(), 1..12),
            named in prop::collection::vec(prop::collection::vec(0..12_usize, 1..4), 1..20),
            tokens in 0..40_usize, draws in 0..40_usize,
        ) {
            let counts = Counts { tokens, draws };
            let calls: Vec<_> = named
                .iter()
                .map(|ids| call_back(&[], &ids.iter().map(|id| id % sizes.len()).collect::<Vec<_>>()))
                .collect();
            let result = *calls[0].writes().first().unwrap();
            let mut places = Places::plan(&sizes, &calls, result);
            let end = places.lay_out(counts);
            // The oracle: for every call, the buffers between their first and last mention, pair by pair.
            let mentions = |id: BufferId| (0..calls.len()).filter(|&at| calls[at].writes().contains(&id)).collect::<Vec<_>>();
            for at in 0..calls.len() {
                let alive: Vec<_> = (0..sizes.len()).map(BufferId).filter(|&id| {
                    let seen = mentions(id);
                    !seen.is_empty() && seen[0] <= at && (at <= seen[seen.len() - 1] || id == result)
                }).collect();
                for (index, &one) in alive.iter().enumerate() {
                    let range = places.range(one, sizes[one.0].bytes(counts));
                    prop_assert!(range.end <= end && range.start.is_multiple_of(LINE));
                    for &other in &alive[..index] {
                        let theirs = places.range(other, sizes[other.0].bytes(counts));
                        prop_assert!(range.end <= theirs.start || theirs.end <= range.start, "{one:?} and {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_chain_of_any_length_needs_two_places() {
        let sizes = vec![Size { each: 100, per: Per::Token }; 50];
        let calls: Vec<_> = (1..50).map(|at| call_back(&[at - 1], &[at])).collect();
        assert_eq!(Places::plan(&sizes, &calls, BufferId(49)).count(), 2);
    }
}
