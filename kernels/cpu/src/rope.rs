//! Rotary positions for q and k, and the write of k and v into the cache.
//!
//! Two elements are turned against each other, (a, b) → (a·cos - b·sin, b·cos + a·sin), in float32, each product rounded by
//! itself as the usual definition has it. Which two, models differ in ([`Pairs`]).

use std::ops::Range;

use crate::Cpu;
use crate::cache::CacheShape;
use crate::cached::Held;
use crate::element::Element;
use crate::error::{Refusal, check_indices};
use crate::simd::{Kernel, Simd};
use crate::split::{Shared, part};

/// Which elements of a head's rotated part make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Element i of the first half, and element i of the second.
    Halves,
    /// Elements 2i and 2i + 1, as in GPT-J and Cohere.
    Neighbours,
}

/// The arguments of [`rope_kv_write`]. `H`: what the caches hold.
pub struct RopeKvWrite<'a, E, H> {
    /// `[tokens, heads, dim]`, rotated in place.
    pub q: &'a mut [E],
    /// `[tokens, kv heads, dim]`, rotated in place.
    pub k: &'a mut [E],
    /// `[tokens, kv heads, dim]`.
    pub v: &'a [E],
    /// `[positions, rotated]`: the cosines of one position, then its sines.
    pub cos_sin: &'a [f32],
    /// How many elements of a head are rotated: even, at most `dim`.
    pub rotated: usize,
    /// Which of them are turned against each other.
    pub pairs: Pairs,
    /// `[tokens]`: which row of `cos_sin`.
    pub positions: &'a [i32],
    /// Takes the rotated k.
    pub k_cache: &'a mut [H],
    /// Takes v.
    pub v_cache: &'a mut [H],
    /// Of both caches.
    pub cache: CacheShape,
    /// `[tokens]`: block · block size + place in the block.
    pub kv_slots: &'a [i64],
    /// How many query heads.
    pub heads: usize,
}

/// Rotates q and k in place and writes k and v into the cache.
pub fn rope_kv_write<E: Element, H: Held<E>>(cpu: &mut Cpu, args: RopeKvWrite<'_, E, H>) -> Result<(), Refusal> {
    let RopeKvWrite { q, k, v, cos_sin, rotated, pairs, positions, k_cache, v_cache, cache, kv_slots, heads } = args;
    let tokens = positions.len();
    let (dim, kv_heads) = (cache.dim, cache.heads);
    assert!(rotated > 0 && rotated.is_multiple_of(2) && rotated <= dim && cos_sin.len().is_multiple_of(rotated));
    assert!(q.len() == tokens * heads * dim && k.len() == tokens * kv_heads * dim && v.len() == k.len());
    assert!(kv_slots.len() == tokens && H::FORMAT == cache.format);
    assert!(k_cache.len() == cache.len() && v_cache.len() == cache.len());
    check_indices("positions", positions, cos_sin.len() / rotated)?;
    check_indices("kv_slots", kv_slots, cache.blocks * cache.block_size)?;

    let work = q.len() + 2 * k.len();
    let parts = cpu.parts(heads.max(kv_heads), work);
    let isa = cpu.isa;
    let (q, k) = (Shared::new(q), Shared::new(k));
    let (k_cache, v_cache) = (Shared::new(k_cache), Shared::new(v_cache));
    cpu.pool.run(parts, |thread| {
        isa.run(Heads {
            q: &q,
            k: &k,
            v,
            cos_sin,
            rotated,
            pairs,
            positions,
            caches: [&k_cache, &v_cache],
            cache,
            kv_slots,
            heads,
            own: part(heads, parts, thread),
            own_kv: part(kv_heads, parts, thread),
        });
    });
    Ok(())
}

/// A thread's heads, of queries and of keys and values, and all their tokens: two tokens may name the same slot, and the later one
/// then wins.
struct Heads<'a, E, H> {
    q: &'a Shared<'a, E>,
    k: &'a Shared<'a, E>,
    v: &'a [E],
    cos_sin: &'a [f32],
    rotated: usize,
    pairs: Pairs,
    positions: &'a [i32],
    caches: [&'a Shared<'a, H>; 2],
    cache: CacheShape,
    kv_slots: &'a [i64],
    heads: usize,
    own: Range<usize>,
    own_kv: Range<usize>,
}

impl<E: Element, H: Held<E>> Kernel for Heads<'_, E, H> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (dim, kv_heads) = (self.cache.dim, self.cache.heads);
        for (token, &position) in self.positions.iter().enumerate() {
            if let Some(&next) = self.kv_slots.get(token + 1) {
                self.ask_for_rows(simd, next);
            }
            let cos_sin = &self.cos_sin[position as usize * self.rotated..][..self.rotated];
            for head in self.own.clone() {
                let at = (token * self.heads + head) * dim;
                // SAFETY: only this thread touches this head.
                rotate(unsafe { self.q.piece(at..at + self.rotated) }, cos_sin, self.pairs);
            }
            for head in self.own_kv.clone() {
                let at = (token * kv_heads + head) * dim;
                // SAFETY: as above.
                let k = unsafe { self.k.piece(at..at + dim) };
                rotate(&mut k[..self.rotated], cos_sin, self.pairs);
                let row = self.row(self.kv_slots[token], head);
                // SAFETY: as above.
                let [to_k, to_v] = self.caches.map(|cache| unsafe { cache.piece(row.clone()) });
                H::store(simd, k, to_k);
                H::store(simd, &self.v[at..at + dim], to_v);
            }
        }
    }
}

impl<E: Element, H: Held<E>> Heads<'_, E, H> {
    /// Where a head's row lies in both caches.
    #[inline(always)]
    fn row(&self, slot: i64, head: usize) -> Range<usize> {
        let (block, place) = (slot as usize / self.cache.block_size, slot as usize % self.cache.block_size);
        let at = self.cache.at(block, head, place);
        at..at + self.cache.row()
    }

    /// Tokens of a decode step write far apart: what is stored to would have to be waited for.
    #[inline(always)]
    fn ask_for_rows<S: Simd>(&self, simd: S, slot: i64) {
        const LINE: usize = 64;
        for head in self.own_kv.clone() {
            let row = self.row(slot, head);
            for cache in self.caches {
                // SAFETY: only this thread touches this head.
                let start: *const u8 = unsafe { cache.piece(row.clone()) }.as_ptr().cast();
                for line in (0..self.cache.row() * size_of::<H>()).step_by(LINE) {
                    simd.prefetch(start.wrapping_add(line));
                }
            }
        }
    }
}

#[inline(always)]
fn rotate<E: Element>(head: &mut [E], cos_sin: &[f32], pairs: Pairs) {
    let half = head.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    match pairs {
        Pairs::Halves => {
            let (first, second) = head.split_at_mut(half);
            for (((first, second), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*first, *second) = turned(*first, *second, cos, sin);
            }
        }
        Pairs::Neighbours => {
            let (pairs, _) = head.as_chunks_mut::<2>();
            for (([first, second], &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                (*first, *second) = turned(*first, *second, cos, sin);
            }
        }
    }
}

#[inline(always)]
fn turned<E: Element>(first: E, second: E, cos: f32, sin: f32) -> (E, E) {
    let (a, b) = (first.to_f32(), second.to_f32());
    (E::from_f32(a * cos - b * sin), E::from_f32(b * cos + a * sin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheFormat, Isa};

    /// Of three tokens, two of which name the same slot: `[q, k, k cache, v cache]`.
    fn written(isa: Isa, threads: usize, heads: usize, kv_heads: usize) -> [Vec<f32>; 4] {
        let (dim, tokens, rotated) = (20, 3, 6);
        let numbers = |count: usize, factor: f32| (0..count).map(|at| at as f32 * factor).collect::<Vec<_>>();
        let (mut q, mut k) = (numbers(tokens * heads * dim, 0.5), numbers(tokens * kv_heads * dim, 0.25));
        let v = numbers(tokens * kv_heads * dim, 1.0);
        let cache = CacheShape { blocks: 2, heads: kv_heads, block_size: 2, dim, format: CacheFormat::Plain };
        let (mut k_cache, mut v_cache) = (vec![-1.0; cache.len()], vec![-1.0; cache.len()]);
        let mut cpu = Cpu::new(isa, threads);
        cpu.grain = 1;
        let args = RopeKvWrite {
            q: &mut q,
            k: &mut k,
            v: &v,
            cos_sin: &numbers(4 * rotated, 0.1),
            rotated,
            pairs: Pairs::Halves,
            positions: &[2, 0, 3],
            k_cache: &mut k_cache,
            v_cache: &mut v_cache,
            cache,
            kv_slots: &[1, 2, 1],
            heads,
        };
        rope_kv_write(&mut cpu, args).expect("arguments are in range");
        [q, k, k_cache, v_cache]
    }

    #[test]
    fn the_later_of_two_tokens_has_the_slot_on_any_number_of_threads() {
        for isa in Isa::available() {
            for (heads, kv_heads) in [(1, 1), (4, 2), (9, 3), (5, 5)] {
                let alone = written(isa, 1, heads, kv_heads);
                let [_, k, k_cache, v_cache] = &alone;
                for head in 0..kv_heads {
                    let (row, last) = ((head * 2 + 1) * 20, (2 * kv_heads + head) * 20);
                    assert_eq!(k_cache[row..row + 20], k[last..last + 20]);
                    assert_eq!(v_cache[row..row + 20], (last..last + 20).map(|at| at as f32).collect::<Vec<_>>());
                }
                for threads in 2..5 {
                    assert_eq!(written(isa, threads, heads, kv_heads), alone, "{heads}/{kv_heads} on {threads}");
                }
            }
        }
    }
}
