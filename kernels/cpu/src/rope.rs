//! Rotary positions for q and k, the norms of their heads where a model has such, and the write of k and v into the cache.
//!
//! Two elements are turned against each other, (a, b) → (a·cos - b·sin, b·cos + a·sin), in float32, each product rounded by
//! itself as the usual definition has it. Which two, models differ in ([`Pairs`]).
//!
//! Heads are read where a product has left them: nothing cuts its rows apart before. A normed head is rounded to its format before
//! it is turned, as if each were a step by itself.

use std::ops::Range;

use crate::Cpu;
use crate::cache::CacheShape;
use crate::cached::Held;
use crate::element::Element;
use crate::error::{Refusal, check_indices};
use crate::math::{filled, put};
use crate::norm::{padded, scale_of};
use crate::simd::{Kernel, LANES, Lanes, Simd};
use crate::split::{Shared, part};

/// Which elements of a head's rotated part make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Element i of the first half, and element i of the second.
    Halves,
    /// Elements 2i and 2i + 1, as in GPT-J and Cohere.
    Neighbours,
}

/// Where heads lie among larger rows: head h of token t at `from + t · by_token + h · by_head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "said above")]
pub struct HeadsAt {
    pub from: usize,
    pub by_token: usize,
    pub by_head: usize,
}

impl HeadsAt {
    /// One past the last element of `heads` heads of the first token.
    pub fn reach(self, heads: usize, dim: usize) -> usize {
        self.from + heads.saturating_sub(1) * self.by_head + dim
    }

    #[inline(always)]
    fn head(self, token: usize, head: usize, dim: usize) -> Range<usize> {
        let at = self.from + token * self.by_token + head * self.by_head;
        at..at + dim
    }
}

/// An RMS norm of each query's and each key's head.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorm<'a> {
    /// `[dim]`.
    pub q_gain: &'a [f32],
    /// `[dim]`.
    pub k_gain: &'a [f32],
    /// Added to the mean of the squares.
    pub eps: f32,
}

/// The arguments of [`rope_kv_write`]. `H`: what the caches hold.
pub struct RopeKvWrite<'a, E, H> {
    /// `[tokens, heads, dim]`: takes q, normed and rotated.
    pub out: &'a mut [E],
    /// `heads` of each token.
    pub q: (&'a [E], HeadsAt),
    /// As many of each token as the cache has.
    pub k: (&'a [E], HeadsAt),
    /// As many, too.
    pub v: (&'a [E], HeadsAt),
    /// None: heads are not normed.
    pub norm: Option<HeadNorm<'a>>,
    /// `[positions, rotated]`: the cosines of one position, then its sines.
    pub cos_sin: &'a [f32],
    /// How many elements of a head are rotated: even, at most `dim`.
    pub rotated: usize,
    /// Which of them are turned against each other.
    pub pairs: Pairs,
    /// `[tokens]`: which row of `cos_sin`.
    pub positions: &'a [i32],
    /// Takes k, normed and rotated.
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

/// Norms and rotates q and k, and writes k and v into the cache.
pub fn rope_kv_write<E: Element, H: Held<E>>(cpu: &mut Cpu, args: RopeKvWrite<'_, E, H>) -> Result<(), Refusal> {
    let RopeKvWrite {
        out,
        q,
        k,
        v,
        norm,
        cos_sin,
        rotated,
        pairs,
        positions,
        k_cache,
        v_cache,
        cache,
        kv_slots,
        heads,
    } = args;
    let tokens = positions.len();
    let (dim, kv_heads) = (cache.dim, cache.heads);
    assert!(rotated > 0 && rotated.is_multiple_of(2) && rotated <= dim && cos_sin.len().is_multiple_of(rotated));
    assert!(out.len() == tokens * heads * dim);
    if tokens > 0 {
        for ((data, at), heads) in [(q, heads), (k, kv_heads), (v, kv_heads)] {
            assert!((tokens - 1) * at.by_token + at.reach(heads, dim) <= data.len(), "{at:?} of {}", data.len());
        }
    }
    assert!(norm.is_none_or(|norm| norm.q_gain.len() == dim && norm.k_gain.len() == dim));
    assert!(kv_slots.len() == tokens && H::FORMAT == cache.format);
    assert!(k_cache.len() == cache.len() && v_cache.len() == cache.len());
    check_indices("positions", positions, cos_sin.len() / rotated)?;
    check_indices("kv_slots", kv_slots, cache.blocks * cache.block_size)?;

    let work = out.len() + 2 * tokens * kv_heads * dim;
    let parts = cpu.parts(heads.max(kv_heads), work);
    let isa = cpu.isa;
    let out = Shared::new(out);
    let (k_cache, v_cache) = (Shared::new(k_cache), Shared::new(v_cache));
    cpu.pool.run(parts, |thread| {
        isa.run(Heads {
            out: &out,
            q,
            k,
            v,
            norm,
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
    out: &'a Shared<'a, E>,
    q: (&'a [E], HeadsAt),
    k: (&'a [E], HeadsAt),
    v: (&'a [E], HeadsAt),
    norm: Option<HeadNorm<'a>>,
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
        let dim = self.cache.dim;
        let mut key = vec![E::default(); dim];
        let mut scales = vec![[0.0; 2]; self.own.len().max(self.own_kv.len())];
        let [mut q_norm, mut k_norm] = [None; 2];
        for (token, &position) in self.positions.iter().enumerate() {
            if let Some(&next) = self.kv_slots.get(token + 1) {
                self.ask_for_rows(simd, next);
                self.ask_for_heads(simd, token + 1);
            }
            let cos_sin = &self.cos_sin[position as usize * self.rotated..][..self.rotated];
            if let Some(norm) = self.norm {
                self.scale(simd, &mut scales, token, norm.eps);
            }
            for (head, &[scale, _]) in self.own.clone().zip(&scales) {
                if let Some(norm) = self.norm {
                    q_norm = Some((norm.q_gain, simd.splat(scale)));
                }
                let (q, at) = (self.q.0, (token * self.heads + head) * dim);
                // SAFETY: only this thread touches this head.
                let out = unsafe { self.out.piece(at..at + dim) };
                turn(simd, &q[self.q.1.head(token, head, dim)], q_norm, cos_sin, self.pairs, out);
            }
            for (head, &[_, scale]) in self.own_kv.clone().zip(&scales) {
                if let Some(norm) = self.norm {
                    k_norm = Some((norm.k_gain, simd.splat(scale)));
                }
                let row = self.row(self.kv_slots[token], head);
                // SAFETY: as above.
                let [to_k, to_v] = self.caches.map(|cache| unsafe { cache.piece(row.clone()) });
                let k = &self.k.0[self.k.1.head(token, head, dim)];
                match H::as_plain(to_k) {
                    Some(to_k) => turn(simd, k, k_norm, cos_sin, self.pairs, to_k),
                    None => {
                        turn(simd, k, k_norm, cos_sin, self.pairs, &mut key);
                        H::store(simd, &key, to_k);
                    }
                }
                H::store(simd, &self.v.0[self.v.1.head(token, head, dim)], to_v);
            }
        }
    }
}

impl<E: Element, H: Held<E>> Heads<'_, E, H> {
    /// What a token's queries and keys are multiplied with by their norm. All of them before any is turned: a root and a division take long,
    /// and many wait for nothing.
    #[inline(always)]
    fn scale<S: Simd>(&self, simd: S, scales: &mut [[f32; 2]], token: usize, eps: f32) {
        let dim = self.cache.dim;
        for ([scale, _], head) in scales.iter_mut().zip(self.own.clone()) {
            *scale = scale_of(simd, &self.q.0[self.q.1.head(token, head, dim)], eps);
        }
        for ([_, scale], head) in scales.iter_mut().zip(self.own_kv.clone()) {
            *scale = scale_of(simd, &self.k.0[self.k.1.head(token, head, dim)], eps);
        }
    }

    /// Where a head's row lies in both caches.
    #[inline(always)]
    fn row(&self, slot: i64, head: usize) -> Range<usize> {
        let (block, place) = (slot as usize / self.cache.block_size, slot as usize % self.cache.block_size);
        let at = self.cache.at(block, head, place);
        at..at + self.cache.row()
    }

    /// A token's heads lie in another page than those before, which the processor does not run ahead into.
    #[inline(always)]
    fn ask_for_heads<S: Simd>(&self, simd: S, token: usize) {
        let (own, own_kv) = (self.own.clone(), self.own_kv.clone());
        for ((data, at), heads) in [(self.q, own), (self.k, own_kv.clone()), (self.v, own_kv)] {
            for head in heads {
                ask_for(simd, &data[at.head(token, head, self.cache.dim)]);
            }
        }
    }

    /// Tokens of a decode step write far apart: what is stored to would have to be waited for.
    #[inline(always)]
    fn ask_for_rows<S: Simd>(&self, simd: S, slot: i64) {
        for head in self.own_kv.clone() {
            let row = self.row(slot, head);
            for cache in self.caches {
                // SAFETY: only this thread touches this head.
                ask_for(simd, unsafe { cache.piece(row.clone()) });
            }
        }
    }
}

#[inline(always)]
fn ask_for<S: Simd, T>(simd: S, piece: &[T]) {
    const LINE: usize = 64;
    let start: *const u8 = piece.as_ptr().cast();
    for line in (0..size_of_val(piece)).step_by(LINE) {
        simd.prefetch(start.wrapping_add(line));
    }
}

/// One head, normed with these gains and this scale if there are some, and turned.
#[inline(always)]
fn turn<S: Simd, E: Element>(
    simd: S,
    head: &[E],
    normed: Option<(&[f32], S::V)>,
    cos_sin: &[f32],
    pairs: Pairs,
    out: &mut [E],
) {
    let (half, dim) = (cos_sin.len() / 2, head.len());
    let (cos, sin) = cos_sin.split_at(half);
    match pairs {
        Pairs::Halves if half.is_multiple_of(LANES) => turn_vectors(simd, head, normed, [cos, sin], out),
        Pairs::Halves => {
            for at in (0..half).step_by(LANES) {
                let end = half.min(at + LANES);
                let a = value(simd, head, normed, at..end);
                let b = value(simd, head, normed, half + at..half + end);
                let (cos, sin) = (filled(simd, &cos[at..end], 0.0), filled(simd, &sin[at..end], 0.0));
                put(simd, simd.sub(simd.mul(a, cos), simd.mul(b, sin)), &mut out[at..end]);
                put(simd, simd.add(simd.mul(b, cos), simd.mul(a, sin)), &mut out[half + at..half + end]);
            }
        }
        Pairs::Neighbours => {
            for at in (0..2 * half).step_by(LANES) {
                let end = (2 * half).min(at + LANES);
                let mut lanes = [0.0; LANES];
                simd.store(value(simd, head, normed, at..end), &mut lanes);
                for (pair, [a, b]) in lanes[..end - at].as_chunks::<2>().0.iter().enumerate() {
                    let (cos, sin) = (cos[at / 2 + pair], sin[at / 2 + pair]);
                    out[at + 2 * pair] = E::from_f32(a * cos - b * sin);
                    out[at + 2 * pair + 1] = E::from_f32(b * cos + a * sin);
                }
            }
        }
    }
    for at in (2 * half..dim).step_by(LANES) {
        let range = at..dim.min(at + LANES);
        match normed {
            Some(_) => put(simd, value(simd, head, normed, range.clone()), &mut out[range]),
            None => out[range.clone()].copy_from_slice(&head[range]),
        }
    }
}

/// As `turn` does halves that are whole vectors: of a known length each, which nothing has to look up.
#[inline(always)]
fn turn_vectors<S: Simd, E: Element>(
    simd: S,
    head: &[E],
    normed: Option<(&[f32], S::V)>,
    angles: [&[f32]; 2],
    out: &mut [E],
) {
    let [cosines, sines] = angles.map(|angles| angles.as_chunks::<LANES>().0);
    let (vectors, outs) = (head.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
    let gains = normed.map(|(gains, scale)| (gains.as_chunks::<LANES>().0, scale));
    let half = cosines.len();
    let (firsts, seconds) = (&vectors[..half], &vectors[half..2 * half]);
    let (to_firsts, to_seconds) = outs[..2 * half].split_at_mut(half);
    for at in 0..half {
        let (mut a, mut b) = (E::load(simd, &firsts[at]), E::load(simd, &seconds[at]));
        if let Some((gains, scale)) = gains {
            a = scaled::<S, E>(simd, a, &gains[at], scale);
            b = scaled::<S, E>(simd, b, &gains[half + at], scale);
        }
        let (cos, sin) = (simd.load(&cosines[at]), simd.load(&sines[at]));
        E::store(simd, simd.sub(simd.mul(a, cos), simd.mul(b, sin)), &mut to_firsts[at]);
        E::store(simd, simd.add(simd.mul(b, cos), simd.mul(a, sin)), &mut to_seconds[at]);
    }
}

/// A normed vector, rounded.
#[inline(always)]
fn scaled<S: Simd, E: Element>(simd: S, x: S::V, gain: &Lanes<f32>, scale: S::V) -> S::V {
    let mut lanes = [E::default(); LANES];
    E::store(simd, simd.mul(simd.mul(x, scale), simd.load(gain)), &mut lanes);
    E::load(simd, &lanes)
}

/// Up to 16 elements of a head, normed and rounded if there is a norm.
#[inline(always)]
fn value<S: Simd, E: Element>(simd: S, head: &[E], normed: Option<(&[f32], S::V)>, range: Range<usize>) -> S::V {
    let x = &head[range.clone()];
    let x = match x.try_into() {
        Ok(whole) => E::load(simd, whole),
        Err(_) => E::load(simd, &padded(x)),
    };
    let Some((gain, scale)) = normed else { return x };
    let mut lanes = [E::default(); LANES];
    E::store(simd, simd.mul(simd.mul(x, scale), filled(simd, &gain[range], 0.0)), &mut lanes);
    E::load(simd, &lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheFormat, Isa};

    /// Of three tokens, two of which name the same slot: `[rotated q, k cache, v cache]`. A token's queries, keys and values are one row.
    fn written(isa: Isa, threads: usize, heads: usize, kv_heads: usize) -> [Vec<f32>; 3] {
        let (dim, tokens, rotated) = (20, 3, 6);
        let numbers = |count: usize, factor: f32| (0..count).map(|at| at as f32 * factor).collect::<Vec<_>>();
        let by_token = (heads + 2 * kv_heads) * dim;
        let qkv = numbers(tokens * by_token, 0.5);
        let at = |from: usize| HeadsAt { from: from * dim, by_token, by_head: dim };
        let mut out = vec![-1.0; tokens * heads * dim];
        let cache = CacheShape { blocks: 2, heads: kv_heads, block_size: 2, dim, format: CacheFormat::Plain };
        let (mut k_cache, mut v_cache) = (vec![-1.0; cache.len()], vec![-1.0; cache.len()]);
        let mut cpu = Cpu::new(isa, threads);
        cpu.grain = 1;
        let args = RopeKvWrite {
            out: &mut out,
            q: (&qkv, at(0)),
            k: (&qkv, at(heads)),
            v: (&qkv, at(heads + kv_heads)),
            norm: None,
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
        [out, k_cache, v_cache]
    }

    #[test]
    fn the_later_of_two_tokens_has_the_slot_on_any_number_of_threads() {
        for isa in Isa::available() {
            for (heads, kv_heads) in [(1, 1), (4, 2), (9, 3), (5, 5)] {
                let alone = written(isa, 1, heads, kv_heads);
                let [_, k_cache, v_cache] = &alone;
                let last_token = 2 * (heads + 2 * kv_heads);
                for head in 0..kv_heads {
                    let row = (head * 2 + 1) * 20;
                    let [k, v] = [heads, heads + kv_heads].map(|first| (last_token + first + head) * 20);
                    // What is not turned shows whose it is.
                    let numbers = |from: usize, to: usize| (from..to).map(|at| at as f32 * 0.5).collect::<Vec<_>>();
                    assert_eq!(k_cache[row + 6..row + 20], numbers(k + 6, k + 20));
                    assert_eq!(v_cache[row..row + 20], numbers(v, v + 20));
                }
                for threads in 2..5 {
                    assert_eq!(written(isa, threads, heads, kv_heads), alone, "{heads}/{kv_heads} on {threads}");
                }
            }
        }
    }
}
