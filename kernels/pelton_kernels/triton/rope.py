"""Rotary embedding of queries and keys, with their heads' norms, and the write of keys and values into the paged cache, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.heads import HeadNorm, steps_of
from pelton_kernels.triton.overlap import begin_kernel, overlapped


@triton.jit
def _turned(
    heads, out_heads, is_head, cos, sin, gain, eps, half, dim,
    HALF: tl.constexpr, DIM: tl.constexpr, INTERLEAVED: tl.constexpr, NORMED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Reads the heads [n, 1] of one token, norms and turns them: both elements of each pair, and what is beyond the pairs."""
    lane = tl.arange(0, HALF)
    inside = lane < half
    first, second = lane, half + lane
    if INTERLEAVED:
        first, second = 2 * lane, 2 * lane + 1
    pair = is_head & inside[None, :]
    a = tl.load(heads + first[None, :], mask=pair, other=0.0)
    b = tl.load(heads + second[None, :], mask=pair, other=0.0)
    column = tl.arange(0, DIM)
    beyond = (column >= 2 * half) & (column < dim)
    if not WHOLE:
        rest = tl.load(heads + column[None, :], mask=is_head & beyond[None, :], other=0.0)
    if NORMED:
        squares = tl.sum(a.to(tl.float32) * a.to(tl.float32) + b.to(tl.float32) * b.to(tl.float32), axis=1)
        if not WHOLE:
            squares += tl.sum(rest.to(tl.float32) * rest.to(tl.float32), axis=1)
        scale = tl.rsqrt(squares / dim + eps)[:, None]
        a = (a.to(tl.float32) * scale * tl.load(gain + first, mask=inside, other=0.0)[None, :]).to(a.dtype)
        b = (b.to(tl.float32) * scale * tl.load(gain + second, mask=inside, other=0.0)[None, :]).to(b.dtype)
        if not WHOLE:
            rest = (rest.to(tl.float32) * scale * tl.load(gain + column, mask=beyond, other=0.0)[None, :]).to(
                rest.dtype
            )
    low = a.to(tl.float32) * cos - b.to(tl.float32) * sin
    high = b.to(tl.float32) * cos + a.to(tl.float32) * sin
    tl.store(out_heads + first[None, :], low.to(out_heads.dtype.element_ty), mask=pair)
    tl.store(out_heads + second[None, :], high.to(out_heads.dtype.element_ty), mask=pair)
    if not WHOLE:
        tl.store(out_heads + column[None, :], rest, mask=is_head & beyond[None, :])


@triton.jit(do_not_specialize_on_alignment=["positions", "kv_slots"])
def _rope_kv_write(
    out, q, k, v, q_gain, k_gain, eps, cos_sin, positions, k_cache, v_cache, kv_slots,
    q_by_token, q_by_head, k_by_token, k_by_head, v_by_token, v_by_head, heads, kv_heads, dim, rotary, block_size,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORMED: tl.constexpr, WHOLE: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Grid: tokens × 2. One program norms and rotates a token's query heads; the other its key heads, which go, as the value heads do,
    to the token's place in the cache [blocks, kv_heads, block_size, dim], if it has one (slots from 0 on).

    Each element is read and written once; the lanes beyond `rotary` pass through unrotated (partial rotary). Lane i turns
    element i with i + half, or element 2i with 2i + 1.
    """
    token = tl.program_id(0).to(tl.int64)
    half = rotary // 2
    lane = tl.arange(0, HALF)
    position = tl.load(positions + token).to(tl.int64)
    cos = tl.load(cos_sin + position * rotary + lane, mask=lane < half, other=0.0)[None, :]
    sin = tl.load(cos_sin + position * rotary + half + lane, mask=lane < half, other=0.0)[None, :]
    slot = tl.load(kv_slots + token)
    begin_kernel(OVERLAPS)
    if tl.program_id(1) == 0:
        head = tl.arange(0, HEADS)[:, None]
        _turned(
            q + token * q_by_token + head * q_by_head, out + (token * heads + head) * dim, head < heads,
            cos, sin, q_gain, eps, half, dim, HALF, DIM, INTERLEAVED, NORMED, WHOLE,
        )  # fmt: skip
    else:
        kv_head = tl.arange(0, KV_HEADS)[:, None]
        is_cached = kv_head < tl.where(slot >= 0, kv_heads, 0)
        into = ((slot // block_size * kv_heads + kv_head) * block_size + slot % block_size) * dim
        _turned(
            k + token * k_by_token + kv_head * k_by_head, k_cache + into, is_cached,
            cos, sin, k_gain, eps, half, dim, HALF, DIM, INTERLEAVED, NORMED, WHOLE,
        )  # fmt: skip
        column = tl.arange(0, DIM)[None, :]
        is_value = is_cached & (column < dim)
        value = v + token * v_by_token + kv_head * v_by_head
        tl.store(v_cache + into + column, tl.load(value + column, mask=is_value, other=0.0), mask=is_value)


def rope_kv_write(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_slots: Tensor,
    is_interleaved: bool = False,
    norm: HeadNorm | None = None,
) -> None:
    """See `ops.rope_kv_write`."""
    tokens, heads, dim = out.shape
    kv_heads, rotary = k.shape[1], cos_sin.shape[1]
    gains = (cos_sin, cos_sin) if norm is None else (norm.q_gain, norm.k_gain)
    if tokens:
        _rope_kv_write[(tokens, 2)](
            out, q, k, v, *gains, 0.0 if norm is None else norm.eps,
            cos_sin, positions, k_cache, v_cache, kv_slots,
            *steps_of(q), *steps_of(k), *steps_of(v), heads, kv_heads, dim, rotary, k_cache.shape[2],
            HEADS=triton.next_power_of_2(heads), KV_HEADS=triton.next_power_of_2(kv_heads),
            HALF=triton.next_power_of_2(rotary // 2), DIM=triton.next_power_of_2(dim),
            INTERLEAVED=is_interleaved, NORMED=norm is not None, WHOLE=rotary == dim, num_warps=4, **overlapped(out.device),
        )  # fmt: skip
