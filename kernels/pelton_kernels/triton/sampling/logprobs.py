"""Log-probabilities of the raw logits: of the drawn token, and of the likeliest ones or of those that a row tells itself."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.parts import NUMBERS, RAW_GREATEST, RAW_SUM
from pelton_kernels.triton.sampling.record import SUPPRESS_COUNT, TOLD_COUNT, TOP_LOGPROBS, listed_likeliest


@triton.jit
def log_total(numbers, row, chunks, CHUNKS: tl.constexpr):
    """ln Σ exp(logit) of a row, from the chunks' sums: float64, as a difference of large float32s would be off by more than they are."""
    chunk = tl.arange(0, CHUNKS)
    at = numbers + (row * chunks + chunk) * NUMBERS
    greatest_each = tl.load(at + RAW_GREATEST, mask=chunk < chunks, other=float("-inf"))
    greatest = tl.max(greatest_each, 0)
    sum_each = tl.load(at + RAW_SUM, mask=chunk < chunks, other=0.0)
    return greatest.to(tl.float64) + tl.log(tl.sum(sum_each * tl.exp(greatest_each - greatest), 0)).to(tl.float64)


@triton.jit
def logprob(logit, total):
    """`total` is `log_total`'s."""
    return (logit.to(tl.float64) - total).to(tl.float32)


@triton.jit
def shown_tokens(
    top_values, top_ids, record, own_suppressed, suppressed_width, row, chunks, vocabulary,
    CHUNKS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr,
):  # fmt: skip
    """The tokens whose log-probabilities a row shows, and how many these are. Told ids stand behind the suppressed ones."""
    column = tl.arange(0, PADDED_TOP)
    told = tl.load(record + TOLD_COUNT)
    told_at = tl.load(record + SUPPRESS_COUNT) + column
    is_told = (column < told) & (told_at < suppressed_width)
    likeliest = _likeliest(top_values, top_ids, row, record, chunks, vocabulary, CHUNKS, TOP, PADDED_TOP)
    shown = tl.where(is_told, tl.load(own_suppressed + told_at, mask=is_told, other=0), likeliest)
    return shown, tl.minimum(tl.load(record + TOP_LOGPROBS), tl.where(told > 0, TOP, vocabulary))


@triton.jit
def _likeliest(
    top_values, top_ids, row, record, chunks, vocabulary, CHUNKS: tl.constexpr, TOP: tl.constexpr, PADDED_TOP: tl.constexpr
):  # fmt: skip
    """The best of the chunks' best, one after another; of equals the lowest id first."""
    wanted = listed_likeliest(record, TOP)
    candidate = tl.arange(0, CHUNKS * PADDED_TOP)
    place = candidate % PADDED_TOP
    inside = (candidate // PADDED_TOP < chunks) & (place < wanted)
    at = (row * chunks + candidate // PADDED_TOP) * TOP + place
    value = tl.load(top_values + at, mask=inside, other=float("-inf"))
    token = tl.load(top_ids + at, mask=inside, other=vocabulary)
    column = tl.arange(0, PADDED_TOP)
    likeliest = tl.zeros([PADDED_TOP], tl.int32)
    for found in range(wanted):
        best = tl.min(tl.where(value == tl.max(value, 0), token, vocabulary), 0)
        likeliest = tl.where(column == found, best, likeliest)
        value = tl.where(token == best, float("-inf"), value)
    return likeliest
