"""Thousands of rows of one product, against the same rows by themselves and in other company."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from pelton_kernels.testing import fresh, guards_untouched, poisoned

TOKENS, COLUMNS, DEPTH = 8192, 18, 34


def check_eight_thousand(packed: ops.PackedWeight, dtype: torch.dtype) -> None:
    """`packed`: of `COLUMNS` and `DEPTH`."""
    x, out = fresh(TOKENS, DEPTH, dtype=dtype), poisoned(TOKENS, COLUMNS, dtype=torch.float32)
    ops.linear_f32(out, x, packed)
    assert guards_untouched(out)
    for first in (0, 1, 511, 512, 4095, 7680, 8191):
        alone = poisoned(1, COLUMNS, dtype=torch.float32)
        ops.linear_f32(alone, x[first : first + 1], packed)
        assert torch.equal(alone, out[first : first + 1])
    parts = poisoned(TOKENS, COLUMNS, dtype=torch.float32)
    for first in range(0, TOKENS, 1000):
        ops.linear_f32(parts[first : first + 1000], x[first : first + 1000], packed)
    assert torch.equal(parts, out)
