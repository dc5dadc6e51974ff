"""Functions that kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """An odd polynomial near 0, where 1 - 2 / (e^2x + 1) would lose bits (after Cephes)."""
    size = tl.abs(x)
    square = x * x
    near = ((((-5.7049887e-3 * square + 2.0639089e-2) * square - 5.3739716e-2) * square + 1.3331442e-1) * square
            - 3.3333282e-1) * square * x + x  # fmt: skip
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))
