"""Noise and the best token of each chunk; or, where a threshold must be searched for, how much lies above each of some scores."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.parts import (
    DRAWN,
    DRAWN_SCORE,
    GREATEST,
    IDS,
    LOWEST,
    NUMBERS,
    PIVOTS,
    greatest_of,
    pivot,
    scores_of,
    weight,
)
from pelton_kernels.triton.sampling.philox import HOPELESS, gumbel, noise_words
from pelton_kernels.triton.sampling.record import (
    TEMPERATURE,
    is_searched,
    least_score,
    number,
    record_of,
    top_k_of,
)


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def draw(
    numbers, ids, sums, logits, adjusted, rules, slots, positions, vocabulary, chunks,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The greatest s + g of each chunk, s = (logit - greatest) / temperature and g Gumbel noise.   Grid: chunks × rows.

    Greedy rows end at once, and so do chunks in which no token comes near enough to the row's greatest.
    Of rows with top-k or top-p: sums[row, chunk, i] = tokens (top-k) or weight (top-p alone) with a score of `pivot(i)` or more.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    record = record_of(rules, slots, row)
    temperature = number(record, TEMPERATURE)
    if temperature > 0.0:
        greatest = greatest_of(numbers, row, chunks, CHUNKS)
        part = row * chunks + chunk
        nearest = tl.div_rn(tl.load(numbers + part * NUMBERS + GREATEST) - greatest, temperature)
        if is_searched(record, vocabulary):
            if nearest >= LOWEST:
                token = chunk * BLOCK + tl.arange(0, BLOCK)
                score = scores_of(
                    logits, adjusted, ids, row, chunk, token, vocabulary, chunks, greatest, temperature
                )  # fmt: skip
                _weigh(sums + part * PIVOTS, record, score, vocabulary)
            else:
                tl.store(sums + part * PIVOTS + tl.arange(0, PIVOTS), tl.zeros([PIVOTS], tl.int64))
        else:
            best = float("-inf")
            drawn = vocabulary
            if nearest >= HOPELESS:
                best, drawn = _best(
                    logits, adjusted, ids, record, tl.load(positions + row), row, chunk, vocabulary, chunks, greatest,
                    temperature, BLOCK,
                )  # fmt: skip
            tl.store(numbers + part * NUMBERS + DRAWN_SCORE, best)
            tl.store(ids + part * IDS + DRAWN, drawn)


@triton.jit
def _weigh(sums, record, score, vocabulary):
    """top-k goes first where there are both: then the weight that top-p shares out is known only of what top-k has left."""
    top_k = top_k_of(record)
    measure = weight(score)
    if (top_k > 0) & (top_k < vocabulary):
        measure = tl.full(score.shape, 1, tl.int64)
    for index in range(PIVOTS):
        tl.store(sums + index, tl.sum(tl.where(score >= pivot(index), measure, 0), 0))


@triton.jit
def _best(
    logits, adjusted, ids, record, position, row, chunk, vocabulary, chunks, greatest, temperature, BLOCK: tl.constexpr
):
    """Of equals the lowest id. A counter's four words are for tokens 16 apart, so each is taken along with tokens of its own."""
    counter = chunk * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    token = counter // 16 * 64 + counter % 16
    words = noise_words(record, position, counter)
    least = least_score(record)
    best = tl.full([BLOCK // 4], float("-inf"), tl.float32)
    drawn = token
    for word in tl.static_range(4):
        score = scores_of(
            logits, adjusted, ids, row, chunk, token + word * 16, vocabulary, chunks, greatest, temperature
        )  # fmt: skip
        noisy = tl.where(score >= least, score + gumbel(words[word]), float("-inf"))
        drawn = tl.where(noisy > best, token + word * 16, drawn)
        best = tl.maximum(noisy, best)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, drawn, vocabulary), 0)
