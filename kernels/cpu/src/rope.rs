//! Rotary positions for q and k, and the write of k and v into the cache.
//!
//! Two elements are turned against each other, (a, b) → (a·cos - b·sin, b·cos + a·sin), in float32, each product rounded by
//! itself as the usual definition has it. Which two, models differ in ([`Pairs`]).

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
    let (dim, kv_heads, cache_row) = (cache.dim, cache.heads, cache.row());
    assert!(rotated > 0 && rotated.is_multiple_of(2) && rotated <= dim && cos_sin.len().is_multiple_of(rotated));
    assert!(q.len() == tokens * heads * dim && k.len() == tokens * kv_heads * dim && v.len() == k.len());
    assert!(kv_slots.len() == tokens && H::FORMAT == cache.format);
    assert!(k_cache.len() == cache.len() && v_cache.len() == cache.len());
    check_indices("positions", positions, cos_sin.len() / rotated)?;
    check_indices("kv_slots", kv_slots, cache.blocks * cache.block_size)?;

    let work = q.len() + 2 * k.len();
    let all = heads + kv_heads;
    let parts = cpu.parts(all, work);
    let isa = cpu.isa;
    let (q, k) = (Shared::new(q), Shared::new(k));
    let (k_cache, v_cache) = (Shared::new(k_cache), Shared::new(v_cache));
    cpu.pool.run(parts, |thread| {
        // A thread has whole heads and all their tokens: two tokens may name the same slot, and the later one then wins.
        let own = part(all, parts, thread);
        for (token, (&position, &slot)) in positions.iter().zip(kv_slots).enumerate() {
            let cos_sin = &cos_sin[position as usize * rotated..][..rotated];
            let slot = slot as usize;
            for head in own.start.min(heads)..own.end.min(heads) {
                let at = (token * heads + head) * dim;
                // SAFETY: only this thread touches this head.
                isa.run(Rotate { head: unsafe { q.piece(at..at + rotated) }, cos_sin, pairs });
            }
            for head in own.start.max(heads) - heads..own.end.max(heads) - heads {
                let at = (token * kv_heads + head) * dim;
                // SAFETY: as above.
                let k = unsafe { k.piece(at..at + dim) };
                isa.run(Rotate { head: &mut k[..rotated], cos_sin, pairs });
                let to = cache.at(slot / cache.block_size, head, slot % cache.block_size);
                // SAFETY: as above.
                let [to_k, to_v] = [&k_cache, &v_cache].map(|cache| unsafe { cache.piece(to..to + cache_row) });
                isa.run(Store { head: k, row: to_k });
                isa.run(Store { head: &v[at..at + dim], row: to_v });
            }
        }
    });
    Ok(())
}

struct Rotate<'a, E> {
    head: &'a mut [E],
    cos_sin: &'a [f32],
    pairs: Pairs,
}

impl<E: Element> Kernel for Rotate<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let half = self.head.len() / 2;
        let (cos, sin) = self.cos_sin.split_at(half);
        match self.pairs {
            Pairs::Halves => {
                let (first, second) = self.head.split_at_mut(half);
                for (((first, second), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*first, *second) = turned(*first, *second, cos, sin);
                }
            }
            Pairs::Neighbours => {
                let (pairs, _) = self.head.as_chunks_mut::<2>();
                for (([first, second], &cos), &sin) in pairs.iter_mut().zip(cos).zip(sin) {
                    (*first, *second) = turned(*first, *second, cos, sin);
                }
            }
        }
    }
}

struct Store<'a, E, H> {
    head: &'a [E],
    row: &'a mut [H],
}

impl<E: Element, H: Held<E>> Kernel for Store<'_, E, H> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        H::store(simd, self.head, self.row);
    }
}

#[inline(always)]
fn turned<E: Element>(first: E, second: E, cos: f32, sin: f32) -> (E, E) {
    let (a, b) = (first.to_f32(), second.to_f32());
    (E::from_f32(a * cos - b * sin), E::from_f32(b * cos + a * sin))
}
