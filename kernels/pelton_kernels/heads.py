"""Heads where a product has left them, and the norm that some models have for each of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadNorm:
    """An RMS norm of each query's and each key's head. The gains: float32 [D]."""

    q_gain: Tensor
    k_gain: Tensor
    eps: float


def steps_of(heads: Tensor) -> tuple[int, int]:
    """Elements from a token's heads to the next token's, and from a head to the next, of [tokens, heads, columns]."""
    return heads.stride(0), heads.stride(1)
