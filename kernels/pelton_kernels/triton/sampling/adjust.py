"""Penalties, biases, masks and suppressed ids; and of each chunk what later kernels need to know."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.parts import (
    GREATEST,
    IDS,
    IS_ADJUSTED,
    IS_GOOD,
    LIKELIEST,
    NUMBERS,
    RAW_GREATEST,
    RAW_SUM,
)
from pelton_kernels.triton.sampling.record import (
    BIAS_COUNT,
    FLAGS,
    FREQUENCY,
    LOGPROBS,
    PENALTIES,
    PRESENCE,
    REPETITION,
    SUPPRESS_COUNT,
    SUPPRESS_UNTIL,
    WORDS,
    listed_likeliest,
    number,
)


@triton.jit(
    do_not_specialize=["has_counts", "bias_width", "suppressed_width"],
    do_not_specialize_on_alignment=["slots", "positions", "masks", "mask_of"],
)
def adjust(
    numbers, ids, adjusted, top_values, top_ids, lengths,
    logits, rules, slots, positions, counts, has_counts, bias_ids, bias_values, bias_width,
    suppressed, suppressed_width, masks, mask_of, vocabulary, chunks,
    TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """adjusted = logits with what the request changes about them, as `reference.sample` has it.   Grid: chunks × rows.

    A row that changes nothing is read once and not written. What a row of log-probabilities adds is a sum and a few maxima over
    numbers that are in registers already: the likeliest tokens of each chunk, among which are those of the row.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    mask = tl.load(mask_of + row)
    position = tl.load(positions + row)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    own_adjusted = adjusted + row.to(tl.int64) * vocabulary
    raw = tl.load(logits + row.to(tl.int64) * vocabulary + token, mask=inside, other=float("-inf"))
    # All that is read for every row is asked for before anything waits for it.
    record = rules + slot * WORDS
    flags = tl.load(record + FLAGS)
    likeliest = listed_likeliest(record, TOP)
    biases = tl.minimum(tl.load(record + BIAS_COUNT), bias_width)
    listed = tl.minimum(tl.load(record + SUPPRESS_COUNT), suppressed_width)
    listed = tl.where(position < tl.load(record + SUPPRESS_UNTIL), listed, 0)

    # No maximum and no sum meets a NaN, of which machines think differently.
    is_bad = inside & ((tl.abs(raw) < float("inf")) == 0)
    raw = tl.where(is_bad, float("-inf"), raw)
    part = row * chunks + chunk
    if chunk == 0:
        tl.store(lengths + row, 0)
    if (flags & LOGPROBS) != 0:
        raw_greatest = tl.max(raw, 0)
        tl.store(numbers + part * NUMBERS + RAW_GREATEST, raw_greatest)
        tl.store(numbers + part * NUMBERS + RAW_SUM, tl.sum(tl.exp(raw - raw_greatest), 0))
    left = raw
    for place in range(likeliest):
        value, within = tl.max(left, 0, return_indices=True)
        tl.store(top_values + part * TOP + place, value)
        tl.store(top_ids + part * TOP + place, chunk * BLOCK + within)
        left = tl.where(token == chunk * BLOCK + within, float("-inf"), left)

    logit = raw
    is_adjusted = (biases > 0) | (listed > 0) | (mask >= 0)
    if ((flags & PENALTIES) != 0) & (has_counts != 0):
        is_adjusted = True
        count = tl.load(counts + slot * vocabulary + token, mask=inside, other=0)
        logit = _penalized(record, logit, count)
    for bias in range(biases):  # one by one, so that an id that stands twice counts twice, in order
        biased = tl.load(bias_ids + slot * bias_width + bias)
        if biased // BLOCK == chunk:
            logit = tl.where(token == biased, logit + tl.load(bias_values + slot * bias_width + bias), logit)
    own_suppressed = suppressed + slot * suppressed_width
    if mask >= 0:
        own_mask = masks + mask.to(tl.int64) * tl.cdiv(vocabulary, 32)
        allowed = (tl.load(own_mask + token // 32, mask=inside, other=0) >> (token % 32)) & 1
        logit = tl.where(allowed != 0, logit, float("-inf"))
        if listed > 0:
            listed = tl.where(_leaves_none(own_mask, own_suppressed, listed, vocabulary, 1024), 0, listed)
    for place in range(listed):
        logit = tl.where(token == tl.load(own_suppressed + place), float("-inf"), logit)
    if is_adjusted:
        tl.store(own_adjusted + token, logit, mask=inside)

    is_bad = is_bad | (logit != logit)
    greatest, within = tl.max(tl.where(is_bad, float("-inf"), logit), 0, return_indices=True)
    tl.store(numbers + part * NUMBERS + GREATEST, greatest)
    tl.store(ids + part * IDS + IS_GOOD, 1 - tl.max(is_bad.to(tl.int32), 0))
    tl.store(ids + part * IDS + IS_ADJUSTED, is_adjusted.to(tl.int32))
    tl.store(ids + part * IDS + LIKELIEST, chunk * BLOCK + within)


@triton.jit
def _penalized(record, logit, count):
    """Repetition counts the prompt (the top bit), the other two only the output."""
    repetition = number(record, REPETITION)
    written = count & 0x7FFFFFFF
    repeated = tl.where(logit > 0.0, tl.div_rn(logit, repetition), logit * repetition)
    logit = tl.where(count != 0, repeated, logit)
    less = logit - number(record, FREQUENCY) * written.to(tl.float32) - number(record, PRESENCE)
    return tl.where(written > 0, less, logit)


@triton.jit
def _leaves_none(mask, suppressed, listed, vocabulary, BLOCK: tl.constexpr):
    """Whether the mask allows no token but suppressed ones. Each chunk looks through the whole mask: few rows have both."""
    words = tl.cdiv(vocabulary, 32)
    others = 0
    for first in range(0, words, BLOCK):
        word = first + tl.arange(0, BLOCK)
        bits = tl.load(mask + word, mask=word < words, other=0)
        bits = tl.where(word == vocabulary // 32, bits & ((1 << (vocabulary % 32)) - 1), bits)
        for place in range(listed):
            token = tl.load(suppressed + place)
            bits = tl.where(word == token // 32, bits & ~(1 << (token % 32)), bits)
        others += tl.max((bits != 0).to(tl.int32), 0)
    return others == 0
