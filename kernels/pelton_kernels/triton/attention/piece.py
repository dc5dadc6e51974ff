"""One piece of keys: what all kernels of attention do with it."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.math import tanh


@triton.jit
def load_queries(
    q, begin, first, count, kv_head, heads,
    GROUP: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """TILE tokens of a row from `first` on, with the GROUP query heads of a kv head: LANES lanes of one matrix, so that each key is
    loaded once for all of them. Also each lane's token in the row, its head, whether it is one, and where its head stands in q and out."""
    lane = tl.arange(0, LANES)
    token = first + lane // GROUP
    inside = (lane < TILE * GROUP) & (token < count)
    head = kv_head * GROUP + lane % GROUP
    at = ((begin + token).to(tl.int64) * heads + head) * HEAD_DIM
    column = tl.arange(0, DIM)
    query = tl.load(q + at[:, None] + column[None, :], mask=inside[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    if IN_FLOAT32:
        query = query.to(tl.float32)
    return query, token, head, inside, at


@triton.jit
def begin_sums(sinks, head, inside, LANES: tl.constexpr, DIM: tl.constexpr, SINKS: tl.constexpr):
    """Of values, of weights, and the largest score, in base 2, before the first key. SINKS: the sum of weights begins with the head's sink."""
    top = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    if SINKS:
        top = tl.load(sinks + head, mask=inside, other=0.0) * 1.4426950408889634
        total += 1.0
    return tl.zeros([LANES, DIM], tl.float32), total, top


@triton.jit
def add_piece(
    sums, total, top, query, position, k_cache, v_cache, row_table, kv_head, piece, least, last, reach,
    scale_log2, window, soft_cap,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PIECE: tl.constexpr,
    IN_FLOAT32: tl.constexpr, MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The PIECE keys from `piece` on, of which `least` to `last` are read. Online softmax in base 2 with the scale folded in; fp32 sums.

    Not MASKED: each lane sees all of them. Else keys up to its own `position`, or WHOLE: up to `reach`, the row's end. WINDOW: only the
    latest `window` of these, or so many to both sides. SOFT_CAP: a score s becomes cap · tanh(s / cap).
    """
    key_at = piece + tl.arange(0, PIECE)
    column = tl.arange(0, DIM)
    there = (column < HEAD_DIM)[None, :]
    if MASKED:
        known = (key_at < last) & (key_at >= least)
        block = tl.load(row_table + key_at // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        there = known[:, None] & there
    else:
        block = tl.load(row_table + key_at // BLOCK_SIZE).to(tl.int64)
    base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + key_at % BLOCK_SIZE) * HEAD_DIM
    at = base[:, None] + column[None, :]
    if MASKED or HEAD_DIM != DIM:
        key = tl.load(k_cache + at, mask=there, other=0.0)
        value = tl.load(v_cache + at, mask=there, other=0.0)
    else:
        key = tl.load(k_cache + at)
        value = tl.load(v_cache + at)
    if IN_FLOAT32:
        key = key.to(tl.float32)
        value = value.to(tl.float32)
    score = tl.dot(query, tl.trans(key), input_precision="ieee")
    gain = scale_log2
    if SOFT_CAP:
        score = tanh(score * (scale_log2 * 0.6931471805599453 / soft_cap))
        gain = soft_cap * 1.4426950408889634
    if MASKED:
        if WHOLE:
            seen = key_at[None, :] < reach
            if WINDOW:
                seen = seen & (key_at[None, :] < position[:, None] + window)
        else:
            seen = key_at[None, :] <= position[:, None]
        if WINDOW:
            seen = seen & (key_at[None, :] > position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
    new_top = tl.maximum(
        top, tl.max(score, 1) * gain
    )  # the gain is positive, and one multiply-add takes it to each score
    level = new_top
    if MASKED:  # a lane that has seen no key yet: 0 is subtracted, not -inf, and its weights are 0
        level = tl.where(new_top == float("-inf"), 0.0, new_top)
    keep = tl.exp2(top - level)
    weight = tl.exp2(score * gain - level[:, None])
    total = total * keep + tl.sum(weight, 1)
    sums = sums * keep[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return sums, total, new_top
