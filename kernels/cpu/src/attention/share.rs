//! Which runs walk keys together: those whose tables name the same blocks at the same positions, as rows do that have a prefix
//! in common. One loads each of these keys once for all of their queries.
//!
//! Never here: arithmetic. What a query computes, and in which order, does not depend on who walks beside it.
//!
//! 1. Runs of few queries are sorted by their blocks, so that those with the longest beginning in common stand side by side.
//! 2. Neighbours that have enough in common become a *bundle*: one task for each KV head.
//! 3. A bundle's way is cut into *stretches*: all walk as far as all have the same blocks, then smaller groups, each to its end.
//!
//! ```text
//!            0        256       512       768
//!    run 0   |---------|---------|----.         stretches: 0, 1, 2, 3 from 0 to 256; 0, 1 from 256 to 512;
//!    run 1   |---------|---------|--------|.    then 0 from 512, and 1 from 512; 2, 3 from 256 to 512, of which they
//!    run 2   |---------|----+----.              share a part; and 3 from 512.
//!    run 3   |---------|----+----|--.
//! ```

use std::cmp::Ordering;
use std::ops::Range;

use super::piece::PIECE;
use super::{Run, Sight};

/// Walking together starts to pay from so many common keys on: what keys are turned and values widened at a time.
const WORTH: usize = 32;

/// What bringing a key near costs, in queries that meet it.
const KEY_COST: usize = 4;

/// Runs of one task.
pub(super) struct Bundle {
    /// Which of the plan's.
    pub(super) runs: Range<usize>,
    /// Which of the plan's.
    pub(super) stretches: Range<usize>,
    /// Of each KV head, about: queries × keys.
    pub(super) cost: usize,
}

/// Pieces that runs of a bundle walk together.
pub(super) struct Stretch {
    /// Which of the plan's runs.
    pub(super) members: Range<usize>,
    /// The absolute position of the first key; or, where a window hides that, of the piece.
    pub(super) from: usize,
    /// Behind the last key of the last piece.
    pub(super) to: usize,
    /// Behind the last key that all members have in the same block. Only in the last piece have they others behind it.
    pub(super) shared: usize,
}

/// Where the rows' keys lie.
pub(super) struct Rows<'a> {
    pub(super) table: &'a [i32],
    pub(super) max_blocks: usize,
    pub(super) block_size: usize,
    pub(super) sight: Sight<'a>,
    /// Query heads of a KV head.
    pub(super) group: usize,
}

/// Who walks with whom.
pub(super) struct Plan {
    pub(super) runs: Vec<Run>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) stretches: Vec<Stretch>,
}

impl Plan {
    /// Bundles of at most so many queries, and of one run each where there is nothing to share.
    pub(super) fn new(mut runs: Vec<Run>, rows: &Rows<'_>, queries: usize) -> Self {
        let small = rows.sort(&mut runs, queries / 2);
        // Up to where each run has the blocks of the one behind it.
        let agree: Vec<usize> =
            (0..runs.len()).map(|at| if at + 1 < small { rows.common(&runs[at], &runs[at + 1]) } else { 0 }).collect();
        let mut plan =
            Self { bundles: Vec::with_capacity(runs.len()), stretches: Vec::with_capacity(runs.len()), runs };
        let mut first = 0;
        while first < plan.runs.len() {
            let seen = rows.sight.first(plan.runs[first].position);
            let alike = agree[first..].iter().take_while(|&&agree| agree >= seen + WORTH).count();
            let end = first + 1 + alike;
            // As few bundles as may be, of nearly the same size.
            let total: usize = plan.runs[first..end].iter().map(|run| rows.queries(run)).sum();
            let most = total.div_ceil(total.div_ceil(queries));
            while first < end {
                let mut own = 0;
                let count = plan.runs[first..end].iter().take_while(|run| {
                    let has_room = own < most && own + rows.queries(run) <= queries;
                    own += rows.queries(run);
                    has_room
                });
                let next = first + count.count().max(1);
                plan.bundle(first..next, rows, &agree);
                first = next;
            }
        }
        plan
    }

    fn bundle(&mut self, members: Range<usize>, rows: &Rows<'_>, agree: &[usize]) {
        let mut query = 0;
        for run in &mut self.runs[members.clone()] {
            run.query = query;
            query += rows.queries(run);
        }
        let stretches = self.stretches.len();
        self.cut(members.clone(), rows, agree, 0);
        let stretches = stretches..self.stretches.len();
        let cost = self.stretches[stretches.clone()].iter().map(|stretch| self.cost(stretch, rows)).sum();
        self.bundles.push(Bundle { runs: members, stretches, cost });
    }

    /// The stretches of neighbours who have all keys before `from` behind them.
    fn cut(&mut self, members: Range<usize>, rows: &Rows<'_>, agree: &[usize], from: usize) {
        let runs = &self.runs[members.clone()];
        let begin = runs.iter().map(|run| rows.sight.first(run.position) / PIECE * PIECE).min().unwrap_or(from);
        let mut from = from.max(begin);
        if let [run] = runs {
            let end = run.end(&rows.sight);
            if from < end {
                self.stretches.push(Stretch { members, from, to: end, shared: end });
            }
            return;
        }
        let agree_of = &agree[members.start..members.end - 1];
        let shared = agree_of.iter().copied().min().expect("several members");
        let whole = shared / PIECE * PIECE;
        if from < whole {
            self.stretches.push(Stretch { members: members.clone(), from, to: whole, shared: whole });
            from = whole;
        }
        if shared >= from + WORTH {
            self.stretches.push(Stretch { members: members.clone(), from, to: from + PIECE, shared });
            from += PIECE;
        }
        // Not all share what comes now: `shared` is below `from + WORTH`, so each part is smaller.
        let mut first = members.start;
        for next in members.start + 1..=members.end {
            if next == members.end || agree[next - 1] < from + WORTH {
                self.cut(first..next, rows, agree, from);
                first = next;
            }
        }
    }

    fn cost(&self, stretch: &Stretch, rows: &Rows<'_>) -> usize {
        let members = &self.runs[stretch.members.clone()];
        let queries: usize = members.iter().map(|run| rows.queries(run)).sum();
        let begin = members.iter().map(|run| rows.sight.first(run.position)).min().unwrap_or(0).max(stretch.from);
        let own = members.iter().map(|run| {
            let keys = stretch.to.min(run.end(&rows.sight)).saturating_sub(stretch.shared);
            keys * (rows.queries(run) + KEY_COST)
        });
        stretch.shared.saturating_sub(begin) * (queries + KEY_COST) + own.sum::<usize>()
    }
}

impl Rows<'_> {
    fn queries(&self, run: &Run) -> usize {
        run.tokens.len() * self.group
    }

    /// Puts the runs of at most so many queries first, those that have the same blocks beside each other. Returns how many these
    /// are; 0 where there is nothing to share. Rows that see both sides are nobody's prefix.
    fn sort(&self, runs: &mut [Run], queries: usize) -> usize {
        if self.sight.is_whole {
            return 0;
        }
        let is_small = |run: &Run| self.queries(run) <= queries;
        let mut firsts: Vec<i32> = runs.iter().filter(|run| is_small(run)).map(|run| self.blocks(run)[0]).collect();
        firsts.sort_unstable();
        if firsts.windows(2).all(|pair| pair[0] != pair[1]) {
            return 0; // nobody shares anything: most steps cost no more than this
        }
        runs.sort_by(|a, b| {
            is_small(b).cmp(&is_small(a)).then_with(|| if is_small(a) { self.order(a, b) } else { Ordering::Equal })
        });
        firsts.len()
    }

    fn first_block(&self, run: &Run) -> usize {
        self.sight.first(run.position) / self.block_size
    }

    /// The blocks of what it sees.
    fn blocks(&self, run: &Run) -> &[i32] {
        let end = run.end(&self.sight).div_ceil(self.block_size);
        &self.table[run.row * self.max_blocks..][self.first_block(run)..end]
    }

    /// By the first block that is seen, then by all blocks from there on.
    fn order(&self, a: &Run, b: &Run) -> Ordering {
        self.first_block(a).cmp(&self.first_block(b)).then_with(|| {
            let (a, b) = (self.blocks(a), self.blocks(b));
            let same = common(a, b);
            a.get(same).cmp(&b.get(same))
        })
    }

    /// Up to which position two runs have the same blocks, from where both begin to see; 0: nowhere.
    fn common(&self, a: &Run, b: &Run) -> usize {
        let same = common(self.blocks(a), self.blocks(b));
        if self.first_block(a) != self.first_block(b) || same == 0 {
            return 0;
        }
        ((self.first_block(a) + same) * self.block_size).min(a.end(&self.sight)).min(b.end(&self.sight))
    }
}

/// How many blocks two tables have in common from their first on.
fn common(a: &[i32], b: &[i32]) -> usize {
    const MANY: usize = 16; // at a time, as bytes
    let many = a.chunks_exact(MANY).zip(b.chunks_exact(MANY)).take_while(|(a, b)| a == b).count() * MANY;
    many + a[many..].iter().zip(&b[many..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
