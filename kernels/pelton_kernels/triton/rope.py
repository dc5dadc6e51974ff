"""Rotary embedding of queries and keys, and the write of keys and values into the paged cache, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope_kv_write(
    q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots,
    heads, kv_heads, dim, rotary, block_size,
    HALF: tl.constexpr, DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Grid: tokens × (heads + kv_heads). The first `heads` programs rotate a query head in place; the others rotate a key
    head in place, and copy it and its value head to the token's place in the cache [blocks, kv_heads, block_size, dim].

    Each element is read and written once; the lanes beyond `rotary` pass through unrotated (partial rotary). Lane i turns
    element i with i + half, or element 2i with 2i + 1.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half = rotary // 2
    lane = tl.arange(0, HALF)
    inside = lane < half
    first, second = lane, half + lane
    if INTERLEAVED:
        first, second = 2 * lane, 2 * lane + 1
    position = tl.load(positions + token).to(tl.int64)
    cos = tl.load(cos_sin + position * rotary + lane, mask=inside, other=0.0)
    sin = tl.load(cos_sin + position * rotary + half + lane, mask=inside, other=0.0)
    if head < heads:
        x = q + (token * heads + head) * dim
        a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + second, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + first, a * cos - b * sin, mask=inside)
        tl.store(x + second, b * cos + a * sin, mask=inside)
    else:
        kv_head = head - heads
        x = k + (token * kv_heads + kv_head) * dim
        slot = tl.load(kv_slots + token)
        into = ((slot // block_size * kv_heads + kv_head) * block_size + slot % block_size) * dim
        a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x + second, mask=inside, other=0.0).to(tl.float32)
        low = (a * cos - b * sin).to(k.dtype.element_ty)
        high = (b * cos + a * sin).to(k.dtype.element_ty)
        tl.store(x + first, low, mask=inside)
        tl.store(x + second, high, mask=inside)
        tl.store(k_cache + into + first, low, mask=inside)
        tl.store(k_cache + into + second, high, mask=inside)
        column = tl.arange(0, DIM)
        beyond = (column >= rotary) & (column < dim)
        tl.store(k_cache + into + column, tl.load(x + column, mask=beyond, other=0.0), mask=beyond)
        value = tl.load(v + (token * kv_heads + kv_head) * dim + column, mask=column < dim, other=0.0)
        tl.store(v_cache + into + column, value, mask=column < dim)


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
        _rope_kv_write[(tokens, heads + kv_heads)](
            q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots,
            heads, kv_heads, dim, rotary, k_cache.shape[2],
            HALF=triton.next_power_of_2(rotary // 2), DIM=triton.next_power_of_2(dim),
            INTERLEAVED=is_interleaved, num_warps=1,
        )  # fmt: skip
