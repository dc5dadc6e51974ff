"""The end of it: each row's token, and its log-probabilities if they are wanted."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels import admit
from pelton_kernels.triton.sampling.logprobs import log_total, logprob, shown_tokens
from pelton_kernels.triton.sampling.parts import (
    DRAWN,
    DRAWN_SCORE,
    GREATEST,
    IDS,
    IS_GOOD,
    LIKELIEST,
    NUMBERS,
    enough,
    greatest_of,
    line_of,
    pivot,
)
from pelton_kernels.triton.sampling.record import (
    FLAGS,
    LOGPROBS,
    TEMPERATURE,
    TOP_P,
    WORDS,
    is_searched,
    least_score,
    number,
    top_k_of,
)
from pelton_kernels.triton.sampling.search import LAST, best_within, boundary, key_of, weight_within

NOT_FINITE = tl.constexpr(admit.NOT_FINITE)


@triton.jit(do_not_specialize=["suppressed_width"], do_not_specialize_on_alignment=["slots", "positions"])
def choose(
    out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs,
    numbers, ids, sums, keys, lengths, top_values, top_ids,
    logits, rules, slots, positions, suppressed, suppressed_width, vocabulary, chunks,
    CHUNKS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. Of the vocabulary it reads only what the chunks have found."""
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    record = rules + slot * WORDS
    chunk = tl.arange(0, CHUNKS)
    is_bad = tl.load(ids + (row * chunks + chunk) * IDS + IS_GOOD, mask=chunk < chunks, other=1) == 0
    greatest = greatest_of(numbers, row, chunks, CHUNKS)
    is_good = (tl.max(is_bad.to(tl.int32), 0) == 0) & (tl.abs(greatest) < float("inf"))

    token = 0
    if is_good:
        if number(record, TEMPERATURE) > 0.0:
            if is_searched(record, vocabulary):
                token = _searched(
                    keys + row.to(tl.int64) * vocabulary, tl.load(lengths + row), sums, record,
                    tl.load(positions + row), row, vocabulary, chunks, CHUNKS, BLOCK,
                )  # fmt: skip
            else:
                token = _best_of_chunks(numbers, DRAWN_SCORE, ids, DRAWN, row, vocabulary, chunks, CHUNKS)
        else:
            token = _best_of_chunks(numbers, GREATEST, ids, LIKELIEST, row, vocabulary, chunks, CHUNKS)
    tl.store(out_tokens + row, token)
    tl.store(out_flags + row, tl.where(is_good, 0, NOT_FINITE))

    column = tl.arange(0, PADDED_TOP)
    chosen = 0.0
    shown = tl.zeros([PADDED_TOP], tl.int32)
    logprobs = tl.zeros([PADDED_TOP], tl.float32)
    if is_good & ((tl.load(record + FLAGS) & LOGPROBS) != 0):
        total = log_total(numbers, row, chunks, CHUNKS)
        own_logits = logits + row.to(tl.int64) * vocabulary
        chosen = logprob(tl.load(own_logits + token), total)
        if TOP > 0:
            shown, count = shown_tokens(
                top_values, top_ids, record, suppressed + slot * suppressed_width, suppressed_width, row, chunks,
                vocabulary, CHUNKS, TOP, PADDED_TOP,
            )  # fmt: skip
            logit = tl.load(own_logits + shown, mask=column < count, other=0.0)
            logprobs = tl.where(column < count, logprob(logit, total), 0.0)
            shown = tl.where(column < count, shown, 0)
    tl.store(out_chosen + row, chosen)
    if TOP > 0:
        tl.store(out_top_ids + row * TOP + column, shown, mask=column < TOP)
        tl.store(out_top_logprobs + row * TOP + column, logprobs, mask=column < TOP)


@triton.jit
def _best_of_chunks(
    numbers, SCORE: tl.constexpr, ids, TOKEN: tl.constexpr, row, vocabulary, chunks, CHUNKS: tl.constexpr
):  # fmt: skip
    """Of equals the lowest id."""
    chunk = tl.arange(0, CHUNKS)
    part = row * chunks + chunk
    score = tl.load(numbers + part * NUMBERS + SCORE, mask=chunk < chunks, other=float("-inf"))
    token = tl.load(ids + part * IDS + TOKEN, mask=chunk < chunks, other=vocabulary)
    return tl.min(tl.where(score == tl.max(score, 0), token, vocabulary), 0)


@triton.jit
def _searched(
    keys, length, sums, record, position, row, vocabulary, chunks, CHUNKS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """top-k, then top-p among what is left, then min-p; then the best of these with its noise."""
    top_k = top_k_of(record)
    top_p = number(record, TOP_P)
    has_top_k = (top_k > 0) & (top_k < vocabulary)
    line, total = line_of(sums, record, row, vocabulary, chunks, CHUNKS)
    few = tl.full([], -1, tl.int64)
    if line > 0:
        few = key_of(pivot(line - 1), LAST)
    most = key_of(pivot(line), LAST)
    count = length.to(tl.int64)
    if has_top_k:
        if top_k < count:
            most = boundary(keys, length, few, most, count, top_k, False, BLOCK)
            count = top_k
        few = tl.full([], -1, tl.int64)
        total = weight_within(keys, length, most, BLOCK)
    if top_p < 1.0:
        most = boundary(keys, length, few, most, count, enough(top_p, total), True, BLOCK)
    return best_within(keys, length, most, least_score(record), record, position, vocabulary, BLOCK)
