"""Rotary embedding of queries and keys, and the write of keys and values into the paged cache, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotated(x, first, second, cos, sin, is_there):
    """Each pair of elements, turned, as x has them."""
    a = tl.load(x + first[None, :], mask=is_there, other=0.0).to(tl.float32)
    b = tl.load(x + second[None, :], mask=is_there, other=0.0).to(tl.float32)
    return (a * cos - b * sin).to(x.dtype.element_ty), (b * cos + a * sin).to(x.dtype.element_ty)


@triton.jit(do_not_specialize_on_alignment=["positions", "kv_slots"])
def _rope_kv_write(
    q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots,
    heads, kv_heads, dim, rotary, block_size,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Grid: tokens × 2. One program rotates a token's query heads in place; the other rotates its key heads in place, and copies
    them and the value heads to the token's place in the cache [blocks, kv_heads, block_size, dim], if it has one (slots from 0 on).

    Each element is read and written once; the lanes beyond `rotary` pass through unrotated (partial rotary). Lane i turns
    element i with i + half, or element 2i with 2i + 1.
    """
    token = tl.program_id(0).to(tl.int64)
    half = rotary // 2
    lane = tl.arange(0, HALF)
    inside = lane < half
    first, second = lane, half + lane
    if INTERLEAVED:
        first, second = 2 * lane, 2 * lane + 1
    position = tl.load(positions + token).to(tl.int64)
    cos = tl.load(cos_sin + position * rotary + lane, mask=inside, other=0.0)[None, :]
    sin = tl.load(cos_sin + position * rotary + half + lane, mask=inside, other=0.0)[None, :]
    if tl.program_id(1) == 0:
        head = tl.arange(0, HEADS)[:, None]
        query = q + (token * heads + head) * dim
        is_query = (head < heads) & inside[None, :]
        low, high = _rotated(query, first, second, cos, sin, is_query)
        tl.store(query + first[None, :], low, mask=is_query)
        tl.store(query + second[None, :], high, mask=is_query)
    else:
        kv_head = tl.arange(0, KV_HEADS)[:, None]
        at = (token * kv_heads + kv_head) * dim
        key = k + at
        slot = tl.load(kv_slots + token)
        into = ((slot // block_size * kv_heads + kv_head) * block_size + slot % block_size) * dim
        is_key = (kv_head < kv_heads) & inside[None, :]
        key_low, key_high = _rotated(key, first, second, cos, sin, is_key)
        tl.store(key + first[None, :], key_low, mask=is_key)
        tl.store(key + second[None, :], key_high, mask=is_key)
        cached = tl.where(slot >= 0, kv_heads, 0)
        is_cached = (kv_head < cached) & inside[None, :]
        tl.store(k_cache + into + first[None, :], key_low, mask=is_cached)
        tl.store(k_cache + into + second[None, :], key_high, mask=is_cached)
        column = tl.arange(0, DIM)[None, :]
        is_value = (kv_head < cached) & (column < dim)
        beyond = is_value & (column >= rotary)
        tl.store(k_cache + into + column, tl.load(key + column, mask=beyond, other=0.0), mask=beyond)
        tl.store(v_cache + into + column, tl.load(v + at + column, mask=is_value, other=0.0), mask=is_value)


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_slots: Tensor,
    is_interleaved: bool = False,
) -> None:
    """See `ops.rope_kv_write`."""
    tokens, heads, dim = q.shape
    kv_heads, rotary = k.shape[1], cos_sin.shape[1]
    if tokens:
        _rope_kv_write[(tokens, 2)](
            q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots,
            heads, kv_heads, dim, rotary, k_cache.shape[2],
            HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(kv_heads),
            HALF=triton.next_power_of_2(rotary // 2), DIM=triton.next_power_of_2(dim),
            INTERLEAVED=is_interleaved, num_warps=4,
        )  # fmt: skip
