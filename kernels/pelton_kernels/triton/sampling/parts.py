"""What kernels tell each other about a chunk of a row, and the scores that follow from it.

`numbers` and `ids` hold a few words for every chunk: [rows, chunks, words].
"""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.record import TOP_P, number, top_k_of

NUMBERS = tl.constexpr(4)
RAW_GREATEST = tl.constexpr(0)  # of the raw logits
RAW_SUM = tl.constexpr(1)  # Σ exp(logit - the chunk's greatest); only for rows that want log-probabilities
GREATEST = tl.constexpr(2)  # of the adjusted logits
DRAWN_SCORE = tl.constexpr(3)  # with noise; only for rows that are drawn without a search

IDS = tl.constexpr(4)
IS_GOOD = tl.constexpr(0)  # raw logits are finite, adjusted ones no NaN
IS_ADJUSTED = tl.constexpr(1)  # the row's logits stand in `adjusted`
LIKELIEST = tl.constexpr(2)  # the lowest id of the greatest adjusted logit
DRAWN = tl.constexpr(3)

# Scores above which the weights (or tokens) of a row under a search are summed up: -7/64 · (i + 1)², down to -28. Below that a
# weight is 0 and no token can be drawn, so that a search never looks further.
PIVOTS = tl.constexpr(16)
LOWEST = tl.constexpr(-28.0)


@triton.jit
def pivot(index):
    """See `PIVOTS`."""
    place = index + 1.0
    return place * place * -0.109375


@triton.jit
def weight(score):
    """exp(score) as a whole multiple of 2^-40, so that sums are exact in any order."""
    return (tl.exp(score) * 1099511627776.0).to(tl.int64)


@triton.jit
def enough(top_p, total):
    """How much weight top-p wants of this much. The best token always counts, so it is never nothing."""
    return tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def greatest_of(numbers, row, chunks, CHUNKS: tl.constexpr):
    """The row's greatest adjusted logit."""
    chunk = tl.arange(0, CHUNKS)
    at = (row * chunks + chunk) * NUMBERS + GREATEST
    return tl.max(tl.load(numbers + at, mask=chunk < chunks, other=float("-inf")), 0)


@triton.jit
def scores_of(logits, adjusted, ids, row, chunk, token, vocabulary, chunks, greatest, temperature):
    """(logit - greatest) / temperature of some tokens of a chunk; -inf beyond the vocabulary."""
    is_adjusted = tl.load(ids + (row * chunks + chunk) * IDS + IS_ADJUSTED)
    unchanged = tl.where(is_adjusted != 0, 0, vocabulary)
    at = row.to(tl.int64) * vocabulary + token
    # Two loads, of which one does nothing: a choice between pointers would hide from the compiler how they are aligned.
    raw = tl.load(logits + at, mask=token < unchanged, other=float("-inf"))
    logit = tl.load(adjusted + at, mask=token < vocabulary - unchanged, other=float("-inf"))
    return tl.div_rn(tl.maximum(raw, logit) - greatest, temperature)


@triton.jit
def line_of(sums, record, row, vocabulary, chunks, CHUNKS: tl.constexpr):
    """Which pivot is the first with enough above it, for top-k or else for top-p; and what there is above the last."""
    index = tl.arange(0, PIVOTS)
    chunk = tl.arange(0, CHUNKS)
    at = (row * chunks + chunk)[:, None] * PIVOTS + index[None, :]
    totals = tl.sum(tl.load(sums + at, mask=(chunk < chunks)[:, None], other=0), 0)
    total = tl.max(totals, 0)
    needed = top_k_of(record)
    if (needed == 0) | (needed >= vocabulary):
        needed = enough(number(record, TOP_P), total)
    return tl.minimum(tl.sum((totals < needed).to(tl.int32), 0), PIVOTS - 1), total
