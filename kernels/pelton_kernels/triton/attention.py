"""Attention over the paged cache, for any mix of prefill chunks and decoding rows; or of whole rows, to both sides."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.checks import refuse
from pelton_kernels.triton.math import tanh

# Keys per turn of the loop. Pieces lie at absolute positions, so a token's sum is walked in the same order in every chunking.
PIECE = 64


@triton.jit
def _paged_attention(
    out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale_log2,
    rows, table_width, heads, kv_heads, dim, block_size, window, soft_cap, sinks,
    GROUP: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, PIECE: tl.constexpr, DIM: tl.constexpr,
    IN_FLOAT32: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """out[t, h] = softmax(scale · q[t, h] · Kᵀ) V over the row's keys up to t's own position.

    WINDOW: only the latest `window` of these; the loop begins at the piece of the first key that the tile's first token sees.
    WHOLE: and behind it, to the row's end; then a window reaches to both sides.
    SOFT_CAP: a score s becomes cap · tanh(s / cap). SINKS: the sum of weights begins with the head's sink.

    Grid: tiles × kv heads. A tile is TILE query tokens of one row, with the GROUP query heads that share a kv head: LANES ≥
    TILE·GROUP lanes of one matrix, so that each key is loaded once for all of them.
      1. Row r's tiles begin at row_offsets[r] // TILE + r: a bound that needs no table; a binary search finds the row, and
         tiles past a row's end return at once.
      2. Online softmax in base 2 with the scale folded in; fp32 sums.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    low = 0
    high = rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(row_offsets + middle) // TILE + middle <= tile:
            low = middle + 1
        else:
            high = middle
    row = low - 1
    begin = tl.load(row_offsets + row)
    count = tl.load(row_offsets + row + 1) - begin
    first = (tile - (begin // TILE + row)) * TILE
    if first >= count:
        return
    start = tl.load(row_starts + row)

    lane = tl.arange(0, LANES)
    token = first + lane // GROUP
    inside = (lane < TILE * GROUP) & (token < count)
    head = kv_head * GROUP + lane % GROUP
    column = tl.arange(0, DIM)
    at = ((begin + token).to(tl.int64) * heads + head) * dim
    wanted = inside[:, None] & (column < dim)[None, :]
    query = tl.load(q + at[:, None] + column[None, :], mask=wanted, other=0.0)
    if IN_FLOAT32:
        query = query.to(tl.float32)

    position = start + token
    top = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    if SINKS:
        top = tl.load(sinks + head, mask=inside, other=0.0) * 1.4426950408889634
        total += 1.0
    sums = tl.zeros([LANES, DIM], tl.float32)
    reach = start + count
    last = start + tl.minimum(first + TILE, count)
    if WHOLE:
        last = tl.minimum(last - 1 + window, reach) if WINDOW else reach
    least = 0
    if WINDOW:
        least = tl.maximum(start + first + 1 - window, 0)
    for piece in range(least // PIECE * PIECE, last, PIECE):
        key_at = piece + tl.arange(0, PIECE)
        known = (key_at < last) & (key_at >= least)
        block = tl.load(block_table + row.to(tl.int64) * table_width + key_at // block_size, mask=known, other=0).to(
            tl.int64
        )
        base = ((block * kv_heads + kv_head) * block_size + key_at % block_size) * dim
        there = known[:, None] & (column < dim)[None, :]
        key = tl.load(k_cache + base[:, None] + column[None, :], mask=there, other=0.0)
        value = tl.load(v_cache + base[:, None] + column[None, :], mask=there, other=0.0)
        if IN_FLOAT32:
            key = key.to(tl.float32)
            value = value.to(tl.float32)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        if SOFT_CAP:
            score = tanh(score * (scale_log2 * 0.6931471805599453 / soft_cap)) * (soft_cap * 1.4426950408889634)
        else:
            score = score * scale_log2
        if WHOLE:
            seen = key_at[None, :] < reach
            if WINDOW:
                seen = seen & (key_at[None, :] < position[:, None] + window)
        else:
            seen = key_at[None, :] <= position[:, None]
        if WINDOW:
            seen = seen & (key_at[None, :] > position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        # Without a window key 0 is visible to every token, so from the first piece on the maximum is finite.
        new_top = tl.maximum(top, tl.max(score, 1))
        level = new_top
        if (
            WINDOW
        ):  # what sees nothing so far stays at -inf, so that a token's bits do not depend on its tile's first piece
            level = tl.where(new_top == float("-inf"), 0.0, new_top)
        keep = tl.exp2(top - level)
        weight = tl.exp2(score - level[:, None])
        total = total * keep + tl.sum(weight, 1)
        sums = sums * keep[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = new_top
    tl.store(out + at[:, None] + column[None, :], sums / total[:, None], mask=wanted)


def paged_attention(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, row_offsets: Tensor, row_starts: Tensor, scale: float,
    window: int | None = None, soft_cap: float | None = None, sinks: Tensor | None = None,
    is_whole: bool = False, slopes: Tensor | None = None,
) -> None:  # fmt: skip
    """See `ops.paged_attention`."""
    if slopes is not None:
        raise refuse("slopes", "given", "None on a GPU")
    tokens, heads, dim = q.shape
    rows = row_starts.shape[0]
    kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    group = heads // kv_heads
    lanes = max(16, triton.next_power_of_2(group))
    tile = lanes // group
    # The interpreter computes bf16 products wrongly, and float32 tensors need them anyway.
    in_float32 = q.dtype is torch.float32 or not q.is_cuda
    if tokens:
        _paged_attention[(tokens // tile + rows, kv_heads)](
            out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale * 1.4426950408889634,
            rows, block_table.shape[1], heads, kv_heads, dim, block_size, window or 0, soft_cap or 0.0, sinks,
            GROUP=group, TILE=tile, LANES=lanes, PIECE=PIECE, DIM=max(16, triton.next_power_of_2(dim)),
            IN_FLOAT32=in_float32, WINDOW=window is not None, SOFT_CAP=soft_cap is not None, SINKS=sinks is not None,
            WHOLE=is_whole,
            num_warps=4,
        )  # fmt: skip
