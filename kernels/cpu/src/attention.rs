//! Attention over the paged cache, for rows of any mix of lengths: prefill, its chunks, and decode alike; or of whole rows, where
//! every token sees the others before and behind it.
//!
//! For each query: scores s_j = scale · q·k_j over its own position and all before, out = Σ softmax(s)_j · v_j. With a window
//! only the latest positions are seen (of a whole row: the nearest on both sides); with a soft cap a score is cap · tanh(s / cap); a head's sink is one more score, of a
//! key whose value is zero. With slopes a score falls by its head's slope for each position that its key lies back (ALiBi,
//! arXiv:2108.12409), behind the soft cap.
//!
//! 1. Keys are taken in *pieces* of 256 at absolute positions. A piece has its own maximum, sum and weighted values; pieces
//!    are merged in order. So a query's bits do not depend on where its chunk began, or on which blocks came from a cache.
//!    What a window hides at a piece's start counts as a score of -∞, and pieces that it hides whole are left out.
//! 2. A task is one KV head and a few neighbouring tokens of one request, or of several that have blocks in common: all its
//!    queries (tokens × query heads of the group) meet each key that is loaded. Queries do not touch each other's sums, so
//!    how many share a task changes no bit.
//! 3. Where caches hold codes, a score is (q · codes) times scale and the key's scale, and a value's codes meet its weight times its
//!    scale; Σ exp(s - max) is of the weights themselves.
//! 4. Threads get neighbouring tasks of nearly equal cost (queries × keys).

mod ahead;
mod few;
mod many;
mod piece;
mod products;
mod share;
#[cfg(target_arch = "x86_64")]
mod tiled;

use crate::Cpu;
use crate::cache::CacheShape;
use crate::cached::Held;
use crate::element::Element;
use crate::error::{Refusal, check_indices, check_offsets};
use crate::split::Shared;
use piece::Walk;
use share::{Plan, Rows};

/// The arguments of [`paged_attention`]. `H`: what the caches hold.
pub struct Attention<'a, E, H> {
    /// `[tokens, out_row]`, of which each row's first `heads` · `dim` are written.
    pub out: &'a mut [E],
    /// Of `out`, from a token's row to the next.
    pub out_row: usize,
    /// `[tokens, heads, dim]`.
    pub q: &'a [E],
    /// Holds the keys of these tokens already.
    pub k_cache: &'a [H],
    /// Holds their values already.
    pub v_cache: &'a [H],
    /// Of both caches.
    pub cache: CacheShape,
    /// `[rows, max blocks]`: the blocks of each row, in order.
    pub block_table: &'a [i32],
    /// `[rows + 1]`: row r has the tokens `row_offsets[r]..row_offsets[r + 1]`.
    pub row_offsets: &'a [i32],
    /// `[rows]`: the absolute position of each row's first token.
    pub row_starts: &'a [i32],
    /// How many query heads; a multiple of the cache's.
    pub heads: usize,
    /// Usually 1/√dim.
    pub scale: f32,
    /// What each query sees of it.
    pub sight: Sight<'a>,
}

/// What a query sees. By default its own position and all before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sight<'a> {
    /// Whether it sees what is behind it too, to the row's end: then a row is a request's whole text.
    pub is_whole: bool,
    /// Only so many positions, its own included; at least 1. Of a whole row so many to each side.
    pub window: Option<usize>,
    /// Scores go no farther than this from zero, in a smooth curve.
    pub soft_cap: Option<f32>,
    /// `[heads]`: the score of each head's sink.
    pub sinks: Option<&'a [f32]>,
    /// `[heads]`: a score gets slope · (key's position - query's).
    pub slopes: Option<&'a [f32]>,
}

impl Sight<'_> {
    /// The first position that a query at `position` sees.
    #[inline(always)]
    fn first(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Behind the last position that a query at `position` sees, in a row that reaches to before `reach`.
    #[inline(always)]
    fn end(&self, position: usize, reach: usize) -> usize {
        if self.is_whole {
            self.window.map_or(reach, |window| reach.min(position.saturating_add(window)))
        } else {
            position + 1
        }
    }
}

/// Neighbouring tokens of one row.
struct Run {
    row: usize,
    tokens: std::ops::Range<usize>,
    /// Absolute position of the first of them.
    position: usize,
    /// Behind the row's last position.
    reach: usize,
    /// Which of its task's queries is its first.
    query: usize,
}

impl Run {
    /// Behind the last position that one of its tokens sees.
    fn end(&self, sight: &Sight<'_>) -> usize {
        sight.end(self.position + self.tokens.len() - 1, self.reach)
    }
}

/// Queries per task, the best first: enough that turning a key and widening its value costs a fraction of using them; fewer
/// where threads would go without a task.
const TASK_QUERIES: [usize; 4] = [128, 64, 32, 16];

/// Attention of all tokens, over the cache.
pub fn paged_attention<E: Element, H: Held<E>>(cpu: &mut Cpu, args: Attention<'_, E, H>) -> Result<(), Refusal> {
    let Attention {
        out,
        out_row,
        q,
        k_cache,
        v_cache,
        cache,
        block_table,
        row_offsets,
        row_starts,
        heads,
        scale,
        sight,
    } = args;
    let rows = row_starts.len();
    assert!(row_offsets.len() == rows + 1 && (rows == 0 || block_table.len().is_multiple_of(rows)));
    assert!(heads > 0 && heads.is_multiple_of(cache.heads));
    assert!(q.len().is_multiple_of(heads * cache.dim) && out_row >= heads * cache.dim);
    assert!(H::FORMAT == cache.format && k_cache.len() == cache.len() && v_cache.len() == cache.len());
    assert!(sight.window != Some(0));
    assert!([sight.sinks, sight.slopes].iter().flatten().all(|of_heads| of_heads.len() == heads));
    let tokens = q.len() / (heads * cache.dim);
    assert!(out.len() == tokens * out_row);
    let max_blocks = block_table.len().checked_div(rows).unwrap_or(0);
    check_rows(row_offsets, row_starts, tokens, max_blocks * cache.block_size)?;
    let group = heads / cache.heads;
    let table = Rows { table: block_table, max_blocks, block_size: cache.block_size, sight, group };
    let plan = even_plan(row_offsets, row_starts, &table, cache.heads, cpu.threads());
    for run in &plan.runs {
        let (first, beyond) =
            (sight.first(run.position) / cache.block_size, run.end(&sight).div_ceil(cache.block_size));
        let blocks = &block_table[run.row * max_blocks..][first..beyond];
        check_indices("block_table", blocks, cache.blocks)?;
    }

    let shares = Shares::new(plan.bundles.iter().map(|bundle| bundle.cost), cache.heads);
    let parts = cpu.parts(plan.bundles.len() * cache.heads, shares.total * cache.dim);
    let isa = cpu.isa;
    let out = Shared::new(out);
    cpu.pool.run(parts, |thread| {
        let walk = Walk {
            out: &out,
            out_row,
            q,
            k_cache,
            v_cache,
            cache,
            block_table,
            max_blocks,
            heads,
            scale,
            sight,
            plan: &plan,
            tasks: shares.tasks(parts, thread),
            #[cfg(target_arch = "x86_64")]
            amx: isa.amx(),
        };
        isa.run(walk);
    });
    Ok(())
}

fn check_rows(offsets: &[i32], starts: &[i32], tokens: usize, room: usize) -> Result<(), Refusal> {
    let refuse = |argument, got, allowed| Err(Refusal { argument, got, allowed });
    check_offsets(offsets, tokens)?;
    for (row, &start) in starts.iter().enumerate() {
        let count = (offsets[row + 1] - offsets[row]) as usize;
        if start < 0 || start as usize + count > room {
            let got = format!("is {start} at index {row}, before {count} tokens");
            return refuse("row_starts", got, format!("0 to {room} positions, what `block_table` has room for"));
        }
    }
    Ok(())
}

/// Tasks that are as large as they may be without leaving threads idle for more than an eighth of the time.
fn even_plan(offsets: &[i32], starts: &[i32], rows: &Rows<'_>, kv_heads: usize, threads: usize) -> Plan {
    let plan = |queries: usize| Plan::new(runs(offsets, starts, queries.div_ceil(rows.group)), rows, queries);
    let is_even = |plan: &Plan| {
        let tasks = plan.bundles.len() * kv_heads;
        tasks.next_multiple_of(threads) - tasks <= tasks / 8
    };
    let [larger @ .., smallest] = TASK_QUERIES;
    larger.into_iter().map(plan).find(is_even).unwrap_or_else(|| plan(smallest))
}

/// Cuts each row into runs of at most `longest` tokens.
fn runs(offsets: &[i32], starts: &[i32], longest: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    for (row, (&start, pair)) in starts.iter().zip(offsets.windows(2)).enumerate() {
        let (from, to) = (pair[0] as usize, pair[1] as usize);
        for first in (from..to).step_by(longest) {
            let (position, reach) = (start as usize + first - from, start as usize + to - from);
            runs.push(Run { row, tokens: first..to.min(first + longest), position, reach, query: 0 });
        }
    }
    runs
}

/// Which tasks a thread does. Task t is KV head `t % heads` of bundle `t / heads`.
struct Shares {
    /// Cost of all bundles before this one.
    before: Vec<usize>,
    total: usize,
    heads: usize,
}

impl Shares {
    /// `costs`: of each bundle, for one head.
    fn new(costs: impl Iterator<Item = usize>, heads: usize) -> Self {
        let mut total = 0;
        let before = costs
            .map(|cost| {
                let before = total;
                total += cost * heads;
                before
            })
            .collect();
        Self { before, total, heads }
    }

    fn tasks(&self, parts: usize, part: usize) -> std::ops::Range<usize> {
        self.first_task(parts, part)..self.first_task(parts, part + 1)
    }

    /// The task whose start is nearest to this part's share of the cost. The first behind it would be one too far for two threads where a
    /// bundle costs a little more than the one before: 4 and 2 tasks instead of 3 and 3.
    fn first_task(&self, parts: usize, part: usize) -> usize {
        let share = (self.total as u128 * part as u128 / parts as u128) as usize;
        let bundle = self.before.partition_point(|&before| before <= share);
        let Some(bundle) = bundle.checked_sub(1) else { return 0 };
        let end = self.before.get(bundle + 1).copied().unwrap_or(self.total);
        let each = (end - self.before[bundle]) / self.heads;
        bundle * self.heads + ((share - self.before[bundle] + each / 2) / each).min(self.heads)
    }
}

#[cfg(test)]
mod tests;
