"""Gumbel noise, a function of (seed, position, token) alone: see `reference.gumbel`."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.record import SEED_HI, SEED_LO

# No noise is above -ln(-ln(1 - 2^-32)) = 22.19, and none below -ln(-ln 2^-24) = -2.82. So a token that scores 25.01 less than the
# greatest can never be drawn, as the greatest always stays.
HOPELESS = tl.constexpr(-25.25)


@triton.jit
def noise_words(record, position, counter):
    """The four words of each counter. Token t has word t // 16 % 4 of counter t // 64 · 16 + t % 16."""
    low = tl.load(record + SEED_LO).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(record + SEED_HI).to(tl.uint32, bitcast=True).to(tl.uint64)
    zero = tl.zeros_like(counter)
    return tl.philox(low | (high << 32), counter, zero + position, zero, zero)


@triton.jit
def gumbel(word):
    """-ln(-ln(1 - v)), v being the upper 31 bits of a word.

    In float32 1 - v is rounded, to 1 if v is small. What is lost is (1 - u) - v exactly, and ln has slope 1 at 1; where the slope
    is another, v is above 1/2 and nothing is lost, or the logarithm so large that the rest is beyond its last bit.
    """
    v = ((word >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    v = tl.minimum(v, 0.9999999403953552)
    u = 1.0 - v
    return -tl.log(-(tl.log(u) + ((1.0 - u) - v)))


@triton.jit
def noise_of(record, position, token):
    """The noise of any tokens: one counter each."""
    a, b, c, d = noise_words(record, position, token // 64 * 16 + token % 16)
    which = token // 16 % 4
    return gumbel(tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d)))
