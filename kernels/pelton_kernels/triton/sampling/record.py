"""What a row asks for, as kernels read it: the words of its slot's record (`admit`), and what follows from them."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels import admit

WORDS = tl.constexpr(admit.WORDS)
FLAGS = tl.constexpr(admit.FLAGS)
TEMPERATURE = tl.constexpr(admit.TEMPERATURE)
TOP_K = tl.constexpr(admit.TOP_K)
TOP_P = tl.constexpr(admit.TOP_P)
MIN_P = tl.constexpr(admit.MIN_P)
REPETITION = tl.constexpr(admit.REPETITION)
PRESENCE = tl.constexpr(admit.PRESENCE)
FREQUENCY = tl.constexpr(admit.FREQUENCY)
SEED_LO = tl.constexpr(admit.SEED_LO)
SEED_HI = tl.constexpr(admit.SEED_HI)
TOP_LOGPROBS = tl.constexpr(admit.TOP_LOGPROBS)
SUPPRESS_UNTIL = tl.constexpr(admit.SUPPRESS_UNTIL)
BIAS_COUNT = tl.constexpr(admit.BIAS_COUNT)
SUPPRESS_COUNT = tl.constexpr(admit.SUPPRESS_COUNT)
TOLD_COUNT = tl.constexpr(admit.TOLD_COUNT)

PENALTIES = tl.constexpr(admit.PENALTIES)
LOGPROBS = tl.constexpr(admit.LOGPROBS)


@triton.jit
def record_of(rules, slots, row):
    """Where the record of the row's slot begins."""
    return rules + tl.load(slots + row).to(tl.int64) * WORDS


@triton.jit
def number(record, WORD: tl.constexpr):
    """A word that holds the bits of a float32."""
    return tl.load(record + WORD).to(tl.float32, bitcast=True)


@triton.jit
def top_k_of(record):
    """int64, since the word has no sign; 0: all."""
    return tl.load(record + TOP_K).to(tl.uint32, bitcast=True).to(tl.int64)


@triton.jit
def is_searched(record, vocabulary):
    """Whether a threshold must be found: top-k or top-p leave some tokens out. min-p alone says its own."""
    top_k = top_k_of(record)
    return ((top_k > 0) & (top_k < vocabulary)) | (number(record, TOP_P) < 1.0)


@triton.jit
def least_score(record):
    """Below it min-p leaves none: p ≥ min_p · (greatest p) is s ≥ ln(min_p), the greatest score being 0."""
    min_p = number(record, MIN_P)
    least = float("-inf")
    if min_p > 0.0:
        least = tl.minimum(tl.log(min_p.to(tl.float64)), 0.0).to(tl.float32)
    return least


@triton.jit
def listed_likeliest(record, TOP: tl.constexpr):
    """How many of the likeliest tokens the row must find: none if it tells them all itself."""
    wanted = tl.minimum(tl.load(record + TOP_LOGPROBS), TOP)
    is_asked = (tl.load(record + FLAGS) & LOGPROBS) != 0
    return tl.where(is_asked & (tl.load(record + TOLD_COUNT) < wanted), wanted, 0)
