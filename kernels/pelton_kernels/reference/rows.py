"""Ops on a row of tokens as a whole: which text of a pair a token is in, and one vector for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from pelton_kernels.reference.dense import wide


def embed_segments(table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None) -> Tensor:
    """table[0], or table[1] behind the first `separator` of a row.   table: [S, W]; ids: [T]; result: [T, W]."""
    segments = torch.zeros_like(ids, dtype=torch.int64)
    if separator is not None:
        before = _before(ids == separator)
        row = _row_of(torch.arange(len(ids), device=ids.device), row_offsets)
        segments = (before > before[row_offsets.long().clamp(max=max(len(ids) - 1, 0))][row]).long()
    return table[segments]


def pool_rows(x: Tensor, row_offsets: Tensor, at: Tensor, pooling: str) -> Tensor:
    """The row around each `at`, as its first or last token or the mean of all.   x: [T, W]; at: [D]; result: [D, W], wide."""
    offsets, row = row_offsets.long(), _row_of(at, row_offsets)
    first, end = offsets[row], offsets[row + 1]
    if pooling == "mean":
        sums = torch.stack([wide(x[begin:stop]).sum(dim=0) for begin, stop in zip(first, end, strict=True)])
        return sums / (end - first)[:, None]
    return wide(x[first if pooling == "first" else end - 1])


def _row_of(at: Tensor, row_offsets: Tensor) -> Tensor:
    """Which row a token stands in."""
    return torch.searchsorted(row_offsets.long(), at.long(), right=True) - 1


def _before(marks: Tensor) -> Tensor:
    """How many there are before each place."""
    return marks.cumsum(0) - marks.long()
