//! Rows that have blocks in common: each comes out as it does alone, whoever walks beside it.

use super::super::{Attention, even_plan, paged_attention, runs};
use super::{Plan, Rows};
use crate::attention::Sight;
use crate::attention::piece::PIECE;
use crate::attention::tests::Store;
use crate::cached::Held;
use crate::element::Bf16;
use crate::{CacheShape, Cpu, Element, Isa, philox4x32};

/// Numbers from a seed.
struct Draws {
    seed: u32,
    count: u32,
}

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.count += 1;
        philox4x32([self.count, 0, 0, 0], [self.seed, 7])[0] as usize % limit
    }

    fn values<E: Element>(&mut self, count: usize) -> Vec<E> {
        let value = |word: u32| E::from_f32((word >> 8) as f32 / 4_194_304.0 - 2.0);
        self.count += 1;
        (0..count).map(|at| value(philox4x32([at as u32, self.count, 1, 0], [self.seed, 7])[0])).collect()
    }
}

/// Rows with a block table each. What nobody has written is NaN.
struct World<E, H> {
    cache: CacheShape,
    heads: usize,
    q: Vec<E>,
    caches: [Vec<H>; 2],
    table: Vec<i32>,
    max_blocks: usize,
    offsets: Vec<i32>,
    starts: Vec<i32>,
    sight: Sight<'static>,
}

/// How the rows of a world begin.
#[derive(Debug, Clone, Copy)]
enum Prefix {
    /// All with the same so many tokens, cut down to whole blocks.
    Of(usize),
    /// Each as some row before it, for as many blocks as is drawn.
    Any,
    /// As the first row, each one block later than the row before.
    Shifted,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    rows: usize,
    prefix: Prefix,
    /// Tokens behind that, at most.
    own: usize,
    /// Tokens of a row in this step, at most.
    step: usize,
    /// Query heads, KV heads, elements.
    heads: (usize, usize, usize),
    block_size: usize,
    sight: Sight<'static>,
}

impl<E: Element, H: Held<E>> World<E, H> {
    fn new(case: Case, seed: u32) -> Self {
        let mut draws = Draws { seed, count: 0 };
        let (heads, kv_heads, dim) = case.heads;
        let size = case.block_size;
        let mut next = 1; // block 0 is nobody's
        let mut tables: Vec<Vec<i32>> = vec![];
        let mut known = vec![];
        let (mut offsets, mut starts) = (vec![0], vec![]);
        for row in 0..case.rows {
            let mut table = match case.prefix {
                Prefix::Of(tokens) if row > 0 => tables[0][..tokens / size].to_vec(),
                Prefix::Any if row > 0 => {
                    let other = &tables[draws.below(row)];
                    other[..draws.below(other.len() + 1)].to_vec()
                }
                Prefix::Shifted if row > 0 => {
                    next += 1;
                    [&[next - 1], &tables[row - 1][..]].concat()
                }
                _ => vec![],
            };
            let least = match case.prefix {
                Prefix::Of(tokens) => (tokens / size * size).max(table.len() * size),
                Prefix::Any | Prefix::Shifted => table.len() * size,
            };
            let end = least + 1 + draws.below(case.own);
            let step = (1 + draws.below(case.step)).min(end);
            while table.len() * size < end {
                table.push(next);
                next += 1;
            }
            tables.push(table);
            known.push(end);
            starts.push((end - step) as i32);
            offsets.push(offsets[row] + step as i32);
        }
        let cache = CacheShape { blocks: next as usize, heads: kv_heads, block_size: size, dim, format: H::FORMAT };
        let max_blocks = tables.iter().map(Vec::len).max().expect("a row") + 1;
        let mut caches = [vec![H::default(); cache.len()], vec![H::default(); cache.len()]];
        let empty = vec![E::from_f32(f32::NAN); dim];
        for row in caches.iter_mut().flat_map(|rows| rows.chunks_exact_mut(cache.row())) {
            Isa::best().run(Store(&empty, row));
        }
        let numbers = cache.len() / cache.row() * dim;
        let written = [draws.values::<E>(numbers), draws.values::<E>(numbers)];
        let mut table = vec![];
        for ((blocks, &known), &start) in tables.iter().zip(&known).zip(&starts) {
            for position in 0..known {
                for head in 0..kv_heads {
                    let at = cache.at(blocks[position / size] as usize, head, position % size);
                    for (rows, written) in caches.iter_mut().zip(&written) {
                        let written = &written[at / cache.row() * dim..][..dim];
                        Isa::best().run(Store(written, &mut rows[at..at + cache.row()]));
                    }
                }
            }
            // What the window has passed is gone, and what is behind the row has never been: neither may be looked at.
            let gone = case.sight.first(start as usize) / size;
            table.extend(blocks.iter().enumerate().map(|(at, &block)| if at < gone { -1 } else { block }));
            table.resize(table.len().next_multiple_of(max_blocks), -1);
        }
        let q = draws.values(offsets[case.rows] as usize * heads * dim);
        Self { cache, heads, q, caches, table, max_blocks, offsets, starts, sight: case.sight }
    }

    /// The outputs of some rows, in one step.
    fn attend(&self, cpu: &mut Cpu, rows: std::ops::Range<usize>) -> Vec<E> {
        let size = self.heads * self.cache.dim;
        let offsets: Vec<i32> =
            self.offsets[rows.start..=rows.end].iter().map(|at| at - self.offsets[rows.start]).collect();
        let tokens = self.offsets[rows.start] as usize..self.offsets[rows.end] as usize;
        let mut out = vec![E::from_f32(f32::NAN); tokens.len() * size];
        let args = Attention {
            out: &mut out,
            out_row: size,
            q: &self.q[tokens.start * size..tokens.end * size],
            k_cache: &self.caches[0],
            v_cache: &self.caches[1],
            cache: self.cache,
            block_table: &self.table[rows.start * self.max_blocks..rows.end * self.max_blocks],
            row_offsets: &offsets,
            row_starts: &self.starts[rows],
            heads: self.heads,
            scale: 0.3,
            sight: self.sight,
        };
        paged_attention(cpu, args).expect("arguments are in range");
        out
    }

    fn rows(&self) -> Rows<'_> {
        let group = self.heads / self.cache.heads;
        let (table, max_blocks) = (&self.table[..], self.max_blocks);
        Rows { table, max_blocks, block_size: self.cache.block_size, sight: self.sight, group }
    }

    fn plan(&self, queries: usize) -> Plan {
        let rows = self.rows();
        Plan::new(runs(&self.offsets, &self.starts, queries.div_ceil(rows.group)), &rows, queries)
    }
}

const PLAIN: Sight<'static> = Sight { is_whole: false, window: None, soft_cap: None, sinks: None, slopes: None };
const SINKS: [f32; 8] = [0.5, -1.0, 2.0, 0.0, 1.5, -0.25, 3.0, 1.0];

fn cases() -> Vec<Case> {
    let case =
        |rows, prefix, own, step, heads, block_size| Case { rows, prefix, own, step, heads, block_size, sight: PLAIN };
    let windowed = |case, window| Case { sight: Sight { window: Some(window), ..PLAIN }, ..case };
    let mixed = case(17, Prefix::Any, 300, 5, (8, 2, 20), 16);
    let sinks = Sight { soft_cap: Some(2.0), sinks: Some(&SINKS), ..PLAIN };
    vec![
        case(1, Prefix::Of(300), 30, 1, (2, 1, 8), 32),
        case(2, Prefix::Of(0), 300, 1, (4, 2, 24), 16), // nothing in common
        case(2, Prefix::Of(512), 1, 1, (1, 1, 64), 32), // whole pieces
        case(3, Prefix::Of(640), 300, 2, (6, 2, 20), 32), // and half of one
        case(3, Prefix::Of(40), 20, 1, (3, 3, 7), 5),   // part of a piece, in blocks that do not fit into it
        case(17, Prefix::Of(530), 70, 1, (4, 4, 32), 48),
        case(17, Prefix::Of(256), 1, 3, (8, 1, 64), 32),
        case(32, Prefix::Of(300), 40, 1, (2, 1, 128), 16),
        case(32, Prefix::Any, 120, 2, (2, 2, 16), 8),
        case(9, Prefix::Shifted, 300, 1, (2, 1, 16), 16),
        mixed,
        case(5, Prefix::Any, 400, 90, (2, 1, 8), 16), // prompts, too
        windowed(case(9, Prefix::Of(300), 4, 1, (2, 1, 16), 16), 100),
        windowed(case(12, Prefix::Of(513), 30, 3, (4, 1, 20), 16), 270),
        windowed(mixed, 33),
        Case { sight: sinks, ..mixed },
        Case { sight: Sight { slopes: Some(&SINKS), ..PLAIN }, ..mixed },
        Case { sight: Sight { window: Some(300), ..sinks }, ..case(20, Prefix::Any, 200, 2, (8, 4, 16), 32) },
    ]
}

fn check<E: Element + PartialEq + std::fmt::Debug, H: Held<E>>() {
    for (seed, case) in (1..).zip(cases()) {
        let world = World::<E, H>::new(case, seed);
        for isa in Isa::available() {
            let mut one = Cpu::new(isa, 1);
            let alone: Vec<E> = (0..case.rows).flat_map(|row| world.attend(&mut one, row..row + 1)).collect();
            assert!(alone.iter().all(|value| value.to_f32().is_finite()), "{case:?} on {}", isa.name());
            for threads in 1..4 {
                let mut cpu = Cpu::new(isa, threads);
                cpu.grain = 1;
                let together = world.attend(&mut cpu, 0..case.rows);
                assert!(together == alone, "{case:?} on {threads} threads of {}", isa.name());
            }
        }
    }
}

#[test]
fn float32_rows_that_share_blocks_come_out_as_alone() {
    check::<f32, f32>();
}

#[test]
fn bfloat16_rows_that_share_blocks_come_out_as_alone() {
    check::<Bf16, Bf16>();
}

#[test]
fn rows_that_share_blocks_of_codes_come_out_as_alone() {
    check::<f32, i8>();
    check::<Bf16, i8>();
}

#[test]
fn every_run_goes_its_whole_way_once_and_in_order() {
    for (seed, case) in (1..).zip(cases()) {
        let world = World::<Bf16, Bf16>::new(case, seed);
        for queries in [64, 32, 16, 5] {
            let plan = world.plan(queries);
            let mut runs = 0;
            for bundle in &plan.bundles {
                assert_eq!(bundle.runs.start, runs);
                runs = bundle.runs.end;
                assert!(bundle.cost > 0);
                for at in bundle.runs.clone() {
                    let run = &plan.runs[at];
                    let mut reached = world.sight.first(run.position) / PIECE * PIECE;
                    for stretch in &plan.stretches[bundle.stretches.clone()] {
                        // What lies before its window it passes without a look.
                        if stretch.members.contains(&at) && stretch.to > reached {
                            assert!(stretch.from <= reached && (stretch.from..=stretch.to).contains(&stretch.shared));
                            assert!(stretch.to - stretch.shared < PIECE && stretch.from % PIECE == 0);
                            reached = stretch.to;
                        }
                    }
                    assert!(reached >= run.end(&world.sight), "{case:?}, bundles of {queries}");
                }
            }
            assert_eq!(runs, plan.runs.len());
        }
    }
}

#[test]
fn those_walk_together_that_have_the_same_blocks_at_the_same_positions() {
    let case = |rows, prefix| Case { rows, prefix, own: 40, step: 1, heads: (4, 2, 8), block_size: 16, sight: PLAIN };
    for (case, bundles) in [
        (case(32, Prefix::Of(512)), 1),
        (case(33, Prefix::Of(512)), 2),
        (case(32, Prefix::Of(32)), 1),
        (case(32, Prefix::Of(16)), 32), // not worth it
        (case(32, Prefix::Of(0)), 32),
        (case(8, Prefix::Shifted), 8),
    ] {
        let plan = World::<f32, f32>::new(case, 3).plan(64);
        assert_eq!(plan.bundles.len(), bundles, "{case:?}");
        // 33 runs are 17 and 16, not 32 and one.
        let sizes = plan.bundles.iter().map(|bundle| bundle.runs.len());
        assert!(sizes.clone().max() <= sizes.min().map(|least| least + 1), "{case:?}");
    }
}

#[test]
fn a_bundle_is_no_larger_than_keeps_threads_busy() {
    let case =
        Case { rows: 32, prefix: Prefix::Of(512), own: 1, step: 1, heads: (2, 1, 8), block_size: 16, sight: PLAIN };
    let world = World::<f32, f32>::new(case, 5);
    for (threads, bundles) in [(1, 1), (2, 2), (4, 4), (16, 4)] {
        let plan = even_plan(&world.offsets, &world.starts, &world.rows(), 1, threads);
        assert_eq!(plan.bundles.len(), bundles, "on {threads} threads");
    }
}
