"""Philox4x32-10 in int64 arithmetic, whose products wrap as they should."""

from __future__ import annotations

from torch import Tensor

_MASK = 0xFFFF_FFFF


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words per counter and key; all tensors int64 holding 32-bit values, of shapes that broadcast."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        # An int64 product wraps modulo 2^64, and a shift drags the sign along, which the mask takes off again.
        first, second = a * 0xD251_1F53, c * 0xCD9E_8D57
        a, b, c, d = (second >> 32 & _MASK) ^ b ^ k0, second & _MASK, (first >> 32 & _MASK) ^ d ^ k1, first & _MASK
        k0, k1 = k0 + 0x9E37_79B9 & _MASK, k1 + 0xBB67_AE85 & _MASK
    return a, b, c, d
