//! Attention against float64, and against itself: in chunks, over other blocks, on other threads.

use super::*;
use crate::cached::Held;
use crate::element::{Bf16, Format};
use crate::simd::{Kernel, Simd};
use crate::{Element, Isa};

fn values<E: Element>(seed: u32, count: usize) -> Vec<E> {
    let value = |at: usize| {
        let word = crate::philox4x32([at as u32, 0, 0, 0], [seed, 1])[0];
        E::from_f32((word >> 8) as f32 / 4_194_304.0 - 2.0)
    };
    (0..count).map(value).collect()
}

/// Puts a head into a row of a cache.
pub(super) struct Store<'a, E, H>(pub(super) &'a [E], pub(super) &'a mut [H]);

impl<E: Element, H: Held<E>> Kernel for Store<'_, E, H> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        H::store(simd, self.0, self.1);
    }
}

/// One request of `known` tokens, its keys and values in order, as the cache has them, and a cache that holds them in blocks that
/// are not in order.
struct Request<E, H> {
    cache: CacheShape,
    heads: usize,
    known: usize,
    q: Vec<E>,
    k: Vec<f32>,
    v: Vec<f32>,
    table: Vec<i32>,
    caches: [Vec<H>; 2],
    is_whole: bool,
    window: Option<usize>,
    soft_cap: Option<f32>,
    sinks: Option<Vec<f32>>,
}

impl<E: Element, H: Held<E>> Request<E, H> {
    fn new(known: usize, heads: usize, kv_heads: usize, dim: usize, block_size: usize) -> Self {
        let used = known.div_ceil(block_size);
        let cache = CacheShape { blocks: used + 2, heads: kv_heads, block_size, dim, format: H::FORMAT };
        let table: Vec<i32> = (0..used).map(|at| (used - at) as i32).collect(); // backwards, and block 0 is not used
        // What no token has written is NaN: a kernel that looked there would show it.
        let empty = vec![E::from_f32(f32::NAN); dim];
        let mut caches = [vec![H::default(); cache.len()], vec![H::default(); cache.len()]];
        for row in caches.iter_mut().flat_map(|cache_rows| cache_rows.chunks_exact_mut(cache.row())) {
            Isa::best().run(Store(&empty, row));
        }
        let [k, v] = [2, 3].map(|seed| values::<E>(seed, known * kv_heads * dim));
        let mut held = [vec![], vec![]];
        for ((cache_rows, elements), held) in caches.iter_mut().zip([&k, &v]).zip(&mut held) {
            for (at, head) in elements.chunks_exact(dim).enumerate() {
                let (token, kv_head) = (at / kv_heads, at % kv_heads);
                let to = cache.at(table[token / block_size] as usize, kv_head, token % block_size);
                let row = &mut cache_rows[to..to + cache.row()];
                Isa::best().run(Store(head, row));
                held.extend(numbers::<E, H>(row, dim));
            }
        }
        let [k, v] = held;
        Self {
            cache,
            heads,
            known,
            q: values(1, known * heads * dim),
            k,
            v,
            table,
            caches,
            is_whole: false,
            window: None,
            soft_cap: None,
            sinks: None,
        }
    }

    /// The same with a window, a soft cap or sinks. A block that the window of token `from` has passed is no block any more.
    fn with(mut self, window: Option<usize>, soft_cap: Option<f32>, has_sinks: bool) -> Self {
        (self.window, self.soft_cap) = (window, soft_cap);
        self.sinks = has_sinks.then(|| values::<f32>(4, self.heads));
        self
    }

    /// The outputs of the tokens `from..to`, given to the kernel as one row.
    fn chunk(&self, cpu: &mut Cpu, from: usize, to: usize) -> Vec<E> {
        let size = self.heads * self.cache.dim;
        let row = size + 3; // with room behind it, which is nobody's
        let mut out = vec![E::from_f32(f32::NAN); (to - from) * row];
        let gone = self.window.map_or(0, |window| (from + 1).saturating_sub(window)) / self.cache.block_size;
        let mut table = self.table.clone();
        table[..gone].fill(-1); // must never be looked at
        let args = Attention {
            out: &mut out,
            out_row: row,
            q: &self.q[from * size..to * size],
            k_cache: &self.caches[0],
            v_cache: &self.caches[1],
            cache: self.cache,
            block_table: &table,
            row_offsets: &[0, (to - from) as i32],
            row_starts: &[from as i32],
            heads: self.heads,
            scale: 0.3,
            sight: Sight {
                is_whole: self.is_whole,
                window: self.window,
                soft_cap: self.soft_cap,
                sinks: self.sinks.as_deref(),
                slopes: None,
            },
        };
        paged_attention(cpu, args).expect("arguments are in range");
        assert!(out.chunks_exact(row).all(|row| row[size..].iter().all(|room| room.to_f32().is_nan())));
        out.chunks_exact(row).flat_map(|row| row[..size].to_vec()).collect()
    }

    fn exact(&self, token: usize, head: usize) -> Vec<f64> {
        let (dim, kv_heads) = (self.cache.dim, self.cache.heads);
        let kv_head = head / (self.heads / kv_heads);
        let q = &self.q[(token * self.heads + head) * dim..][..dim];
        let first = self.window.map_or(0, |window| (token + 1).saturating_sub(window));
        let behind = if self.is_whole {
            self.window.map_or(self.known, |window| self.known.min(token + window))
        } else {
            token + 1
        };
        let scores: Vec<f64> = (first..behind)
            .map(|key| {
                let k = &self.k[(key * kv_heads + kv_head) * dim..][..dim];
                let dot: f64 = q.iter().zip(k).map(|(q, &k)| f64::from(q.to_f32()) * f64::from(k)).sum();
                let score = f64::from(0.3_f32) * dot;
                self.soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
            })
            .collect();
        let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
        let value = |key: usize, at: usize| f64::from(self.v[(key * kv_heads + kv_head) * dim + at]);
        (0..dim).map(|at| weights.iter().zip(first..).map(|(w, key)| w / total * value(key, at)).sum()).collect()
    }
}

/// What a row means.
fn numbers<E: Element, H: Held<E>>(row: &[H], dim: usize) -> Vec<f32> {
    struct Load<'a, E, H>(&'a [H], &'a mut Vec<f32>, std::marker::PhantomData<E>);
    impl<E: Element, H: Held<E>> Kernel for Load<'_, E, H> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for some in self.0.chunks(16) {
                let mut lanes = [0.0; 16];
                simd.store(H::load(simd, &crate::norm::padded(some)), &mut lanes);
                self.1.extend(&lanes[..some.len()]);
            }
        }
    }
    let mut numbers = vec![];
    Isa::best().run(Load::<E, H>(&row[..dim], &mut numbers, std::marker::PhantomData));
    numbers.iter().map(|number| number * H::scale(row, dim)).collect()
}

/// The greatest error. In bfloat16 half a unit in the last place of values up to 2, and the float32 error; where tiles round weights, too,
/// 2⁻⁹ of each weight, of values of at most 2.
fn tolerance<E: Element>(isa: Isa) -> f64 {
    match E::FORMAT {
        Format::Float32 => 2e-5,
        Format::BFloat16 => (if isa.has_tiles() { 3.0 } else { 2.0 }) / 256.0,
    }
}

fn check<E: Element + PartialEq + std::fmt::Debug, H: Held<E>>() {
    for isa in Isa::available() {
        let tolerance = tolerance::<E>(isa);
        for ((known, heads, kv_heads, dim, block_size), (window, soft_cap, has_sinks)) in [
            ((1, 1, 1, 1, 1), (None, None, false)),
            ((5, 4, 2, 8, 3), (None, None, false)),
            ((300, 6, 2, 20, 16), (None, None, false)),
            ((530, 7, 1, 64, 32), (None, None, false)),
            ((40, 3, 3, 80, 7), (None, None, false)),
            ((290, 4, 2, 128, 32), (None, None, false)),
            ((1, 2, 1, 4, 1), (Some(1), Some(2.0), true)),
            ((40, 4, 2, 8, 3), (Some(1), None, false)),
            ((300, 6, 2, 20, 16), (Some(5), None, true)),
            ((530, 7, 1, 64, 32), (Some(256), Some(3.0), false)),
            ((700, 2, 2, 24, 8), (Some(300), None, true)),
            ((300, 4, 1, 16, 16), (None, Some(1.5), true)),
        ] {
            let request =
                Request::<E, H>::new(known, heads, kv_heads, dim, block_size).with(window, soft_cap, has_sinks);
            let whole = request.chunk(&mut Cpu::new(isa, 1), 0, known);
            for token in [0, known / 2, known - 1] {
                for head in 0..heads {
                    let got = &whole[(token * heads + head) * dim..][..dim];
                    for (got, exact) in got.iter().zip(request.exact(token, head)) {
                        let got = f64::from(got.to_f32());
                        assert!((got - exact).abs() <= tolerance, "{got} for {exact} at {token}, {head}");
                    }
                }
            }
            // B:SC2: a chunk of exactly one token is like any other; so are chunks that cut a piece or a block.
            let mut three = Cpu::new(isa, 3);
            three.grain = 1;
            for mut cuts in [vec![0, known / 2, known], vec![0, known / 3, known / 3 + 1, known - 1, known]] {
                cuts.sort_unstable();
                cuts.dedup();
                let mut joined = Vec::new();
                for pair in cuts.windows(2) {
                    joined.extend(request.chunk(&mut three, pair[0], pair[1]));
                }
                assert!(joined == whole, "chunks {cuts:?} of {known} differ on {}", isa.name());
            }
        }
    }
}

#[test]
fn float32_is_right_and_the_same_in_any_chunks() {
    check::<f32, f32>();
}

#[test]
fn bfloat16_is_right_and_the_same_in_any_chunks() {
    check::<Bf16, Bf16>();
}

#[test]
fn codes_are_right_and_the_same_in_any_chunks() {
    check::<f32, i8>(); // of what the codes mean: that rounds as activations do
    check::<Bf16, i8>();
}

/// Tiles take subnormal numbers for 0, and so do the vectors that stand in for them where queries are few.
#[test]
fn what_is_hardly_a_normal_number_is_the_same_alone_and_together() {
    for isa in Isa::available() {
        for (heads, dim) in [(1, 64), (2, 80), (3, 32), (4, 128), (5, 96)] {
            let mut request = Request::<Bf16, Bf16>::new(150, heads, 1, dim, 16);
            for value in &mut request.caches[1] {
                *value = Bf16::from_f32(value.to_f32() * 2.0_f32.powi(-122));
            }
            let mut cpu = Cpu::new(isa, 1);
            let whole = request.chunk(&mut cpu, 0, request.known);
            for (token, expected) in whole.chunks_exact(heads * dim).enumerate() {
                assert!(request.chunk(&mut cpu, token, token + 1) == expected, "{}: {token} of {heads}", isa.name());
            }
        }
    }
}

/// Each token sees both sides: against float64, and the same on any number of threads.
fn check_whole<E: Element + PartialEq + std::fmt::Debug, H: Held<E>>() {
    for isa in Isa::available() {
        let tolerance = tolerance::<E>(isa);
        for ((known, heads, kv_heads, dim, block_size), window) in [
            ((1, 1, 1, 1, 1), None),
            ((5, 4, 2, 8, 3), None),
            ((77, 3, 3, 20, 16), Some(1)),
            ((300, 6, 2, 20, 16), None),
            ((530, 7, 1, 64, 32), Some(65)),
            ((600, 2, 2, 24, 8), Some(300)),
            ((40, 3, 3, 80, 7), Some(100)),
        ] {
            let mut request = Request::<E, H>::new(known, heads, kv_heads, dim, block_size).with(window, None, false);
            request.is_whole = true;
            let whole = request.chunk(&mut Cpu::new(isa, 1), 0, known);
            for token in [0, known / 3, known - 1] {
                for head in 0..heads {
                    let got = &whole[(token * heads + head) * dim..][..dim];
                    for (got, exact) in got.iter().zip(request.exact(token, head)) {
                        let got = f64::from(got.to_f32());
                        assert!((got - exact).abs() <= tolerance, "{got} for {exact} at {token}, {head}");
                    }
                }
            }
            let mut three = Cpu::new(isa, 3);
            three.grain = 1;
            assert!(request.chunk(&mut three, 0, known) == whole, "{known} on 3 threads differ on {}", isa.name());
        }
    }
}

#[test]
fn a_whole_row_sees_both_sides() {
    check_whole::<f32, f32>();
    check_whole::<Bf16, Bf16>();
    check_whole::<f32, i8>();
    check_whole::<Bf16, i8>();
}

#[test]
fn shares_give_every_task_to_one_thread() {
    for (lengths, heads) in [(vec![1], 1), (vec![1, 500, 3], 4), (vec![40; 17], 3), (vec![], 2)] {
        let offsets: Vec<i32> = std::iter::once(0)
            .chain(lengths.iter().scan(0, |sum, &len| {
                *sum += len;
                Some(*sum)
            }))
            .collect();
        let runs = runs(&offsets, &vec![7; lengths.len()], 8);
        let shares = Shares::new(runs.iter().map(|run| run.tokens.len() * 9), heads);
        for parts in 1..6 {
            let tasks: Vec<usize> = (0..parts).flat_map(|part| shares.tasks(parts, part)).collect();
            assert_eq!(tasks, (0..runs.len() * heads).collect::<Vec<_>>(), "{lengths:?} on {parts} threads");
        }
    }
}

#[test]
fn threads_share_tasks_of_nearly_the_same_cost_evenly() {
    // Bundles of a prompt's last tokens: each sees a few keys more than the one before.
    for (bundles, heads, threads, expected) in
        [(2, 3, 2, vec![3, 3]), (2, 3, 3, vec![2, 2, 2]), (4, 3, 4, vec![3; 4]), (5, 8, 3, vec![13, 14, 13])]
    {
        let shares = Shares::new((0..bundles).map(|bundle| 2_000 + 10 * bundle), heads);
        let own: Vec<usize> = (0..threads).map(|part| shares.tasks(threads, part).len()).collect();
        assert_eq!(own, expected, "{bundles} bundles of {heads} heads");
    }
}

#[test]
fn runs_are_long_unless_threads_would_wait() {
    for (tokens, threads, longest) in [
        (2080, 2, 64), // 33 runs of 3 heads
        (32, 1, 32),
        (32, 2, 16), // 3 tasks would be two for one thread and one for the other
        (32, 4, 8),  // 6 tasks are as uneven: 12
        (32, 16, 8), // 12 tasks are all there are
        (1, 16, 1),
    ] {
        let table: Vec<i32> = (0..2080 / 16 * 2).collect();
        let rows = Rows { table: &table, max_blocks: table.len(), block_size: 16, sight: Sight::default(), group: 2 };
        let runs = even_plan(&[0, tokens], &[2048], &rows, 3, threads).runs;
        assert_eq!(runs[0].tokens.len(), longest, "{tokens} tokens on {threads} threads");
        assert_eq!(runs.iter().map(|run| run.tokens.len()).sum::<usize>(), tokens as usize);
    }
}

#[test]
fn what_lies_outside_is_refused_by_name() {
    let request = Request::<f32, f32>::new(4, 1, 1, 2, 2);
    let mut cpu = Cpu::new(Isa::best(), 1);
    let mut refused = |table: &[i32], offsets: &[i32], starts: &[i32]| {
        let mut out = vec![0.0; 8];
        let args = Attention {
            out: &mut out,
            out_row: 2,
            q: &request.q,
            k_cache: &request.caches[0],
            v_cache: &request.caches[1],
            cache: request.cache,
            block_table: table,
            row_offsets: offsets,
            row_starts: starts,
            heads: 1,
            scale: 1.0,
            sight: Sight::default(),
        };
        paged_attention(&mut cpu, args).expect_err("out of range").argument
    };
    assert_eq!(refused(&[1, 4], &[0, 4], &[0]), "block_table");
    assert_eq!(refused(&[1, 2], &[0, 3], &[0]), "row_offsets");
    assert_eq!(refused(&[1, 2, 1, 2], &[0, 5, 4], &[0, 0]), "row_offsets");
    assert_eq!(refused(&[1, 2], &[0, 4], &[1]), "row_starts");
    assert_eq!(refused(&[1, 2], &[0, 4], &[-1]), "row_starts");
    assert_eq!(request.known, 4);
}
