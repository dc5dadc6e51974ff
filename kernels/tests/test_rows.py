"""Rows as a whole on the CPU: pooled to one vector, and divided into the texts of a pair."""

from __future__ import annotations

import pytest
import torch
from pelton_kernels import ops, reference
from pelton_kernels.testing import error, fresh, guards_untouched, poisoned, ulp

pytestmark = pytest.mark.usefixtures("isa")

# Tokens of each row, and the width.
SHAPES = [([1], 1), ([3, 1, 70], 63), ([5, 900, 2, 2], 384), ([1] * 40, 20)]


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("pooling", ops.POOLINGS)
@pytest.mark.parametrize(("counts", "width"), SHAPES)
def test_pool_rows(counts: list[int], width: int, pooling: ops.Pooling, dtype: torch.dtype) -> None:
    x, offsets = fresh(sum(counts), width, dtype=dtype), offsets_of(counts)
    at = (offsets[1:] - 1).flip(0)[: max(1, len(counts) - 1)].contiguous()  # in another order, and not all of them
    for out_dtype in {torch.float32, dtype}:
        out = poisoned(len(at), width, dtype=out_dtype)
        ops.pool_rows(out, x, offsets, at, pooling)
        exact = reference.pool_rows(x.double(), offsets, at, pooling)
        plain = reference.pool_rows(x, offsets, at, pooling).to(out_dtype)
        assert error(out, exact) <= 2 * error(plain, exact) + ulp(out_dtype)
        if pooling != "mean":
            assert torch.equal(out, plain)
        assert guards_untouched(out)
        for row, place in enumerate(at.tolist()):  # alone: the same bits
            begin = int(offsets[torch.searchsorted(offsets, place, right=True) - 1])
            alone = poisoned(1, width, dtype=out_dtype)
            own = torch.tensor([0, place + 1 - begin], dtype=torch.int32)
            ops.pool_rows(alone, x[begin : place + 1], own, own[1:] - 1, pooling)
            assert torch.equal(alone[0], out[row])
        for threads in (1, 3):
            ops.set_threads(threads)
            again = poisoned(len(at), width, dtype=out_dtype)
            ops.pool_rows(again, x, offsets, at, pooling)
            assert torch.equal(again, out)


@pytest.mark.parametrize("width", [1, 63, 384])
def test_embed_segments(width: int, dtype: torch.dtype) -> None:
    table = fresh(2, width, dtype=dtype)
    # A pair, a text alone, one without a separator, one that begins with it, a pair of three; 9 separates.
    rows = [([1, 9, 2, 9], "0011"), ([3, 4, 9], "000"), ([5], "0"), ([9, 6], "01"), ([7, 9, 8, 9, 7, 9], "001111")]
    ids = torch.tensor([token for tokens, _ in rows for token in tokens], dtype=torch.int32)
    offsets = offsets_of([len(tokens) for tokens, _ in rows])
    segments = torch.tensor([int(digit) for _, digits in rows for digit in digits])
    out = poisoned(len(ids), width, dtype=dtype)
    for separator, expected in ((9, table[segments]), (None, table[:1].expand(len(ids), width))):
        ops.embed_segments(out, table, ids, offsets, separator)
        assert torch.equal(out, expected)
        assert torch.equal(reference.embed_segments(table, ids, offsets, separator), expected)
    assert guards_untouched(out)
