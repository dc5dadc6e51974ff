"""Where top-k and top-p draw their line in a list of keys, and the best token on the near side of it."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.parts import weight
from pelton_kernels.triton.sampling.philox import noise_of

WAYS = tl.constexpr(8)
LAST = tl.constexpr(0xFFFFFFFF)  # above all ids


@triton.jit
def key_of(score, token):
    """A score's magnitude above the token's id: the smaller, the better, and no two are equal."""
    return (tl.abs(score).to(tl.int32, bitcast=True).to(tl.int64) << 32) | token


@triton.jit
def score_of(key):
    """See `key_of`."""
    return -(key >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def weight_within(keys, length, most, BLOCK: tl.constexpr):
    """Of the keys up to `most`."""
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        key = tl.load(keys + at, mask=at < length, other=0)
        total += tl.where((at < length) & (key <= most), weight(score_of(key)), 0)
    return tl.sum(total, 0)


@triton.jit
def boundary(keys, length, few, most, count, needed, BY_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """A key that the fewest best keys which make up `needed` (a number, or a weight) do not exceed, and all others do.

    The keys up to `few` are too few, and the `count` keys up to `most` are enough. A search of several ways at a time, which ends
    as soon as one key is left between too few and enough: in lists of hundreds that is after three or four rounds.
    """
    fewer = tl.full([], 0, tl.int64)
    way = tl.arange(0, WAYS).to(tl.int64)
    while count - fewer > 1:
        tried = few + tl.maximum((most - few) // (WAYS - 1), 1) * way
        counts = tl.zeros([WAYS], tl.int64)
        measures = tl.zeros([WAYS], tl.int64)
        for first in range(0, length, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < length
            key = tl.load(keys + at, mask=inside, other=0)
            is_within = inside[None, :] & (key[None, :] <= tried[:, None])
            counts += tl.sum(is_within.to(tl.int32), 1).to(tl.int64)
            if BY_WEIGHT:
                measures += tl.sum(tl.where(is_within, weight(score_of(key))[None, :], 0), 1)
            else:
                measures = counts
        is_enough = measures >= needed
        most = tl.min(tl.where(is_enough, tried, most), 0)
        count = tl.min(tl.where(is_enough, counts, count), 0)
        few = tl.max(tl.where(is_enough, few, tried), 0)
        fewer = tl.max(tl.where(is_enough, fewer, counts), 0)
    return most


@triton.jit
def best_within(keys, length, most, least, record, position, vocabulary, BLOCK: tl.constexpr):
    """The token with the greatest score + noise, among those with keys up to `most` and scores not below `least`."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    drawn = tl.full([BLOCK], 0, tl.int32) + vocabulary
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        key = tl.load(keys + at, mask=at < length, other=0)
        token = key.to(tl.int32)
        score = score_of(key)
        is_kept = (at < length) & (key <= most) & (score >= least)
        noisy = tl.where(is_kept, score + noise_of(record, position, token), float("-inf"))
        is_better = (noisy > best) | ((noisy == best) & (token < drawn))
        drawn = tl.where(is_better, token, drawn)
        best = tl.where(is_better, noisy, best)
    top = tl.max(best, 0)
    return tl.min(tl.where(best == top, drawn, vocabulary), 0)
