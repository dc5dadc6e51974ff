"""Products of two rows and more, up to a tile of the tensor cores: what they take is the reading of the weights, which cuBLAS does slowly where
there are few columns, or very many."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.overlap import begin_kernel, overlapped

MOST_ROWS: Final = 16  # of one tile of the tensor cores
MANY_COLUMNS: Final = 1 << 16
COUNTERS: Final = 1 << 14  # blocks of columns whose depth may be divided


class Shape(NamedTuple):
    """Columns and depth of a program's turn, among how many programs the depth is divided, and what Triton makes of it."""

    columns: int
    depth: int
    parts: int
    warps: int
    stages: int


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    out, x, weight, bias, partial, arrived, rows, columns, depth,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, IN_FLOAT32: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[t, n] = Σ x[t, k] · weight[n, k] + bias[n] for up to ROWS rows.   Grid: blocks of columns × parts of the depth.

    Few columns are too few programs for all of a card's processors, so the depth is divided too. Each part leaves its sums; the
    program that comes last adds them up, in their order: the result does not depend on who that is.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    is_row = (row < rows)[:, None]
    is_column = column < columns
    turns = tl.cdiv(depth, DEPTH * PARTS)
    begin_kernel(OVERLAPS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for turn in range(turns):
        k = (part * turns + turn) * DEPTH + tl.arange(0, DEPTH)
        a = tl.load(x + row[:, None] * depth + k[None, :], mask=is_row & (k < depth)[None, :], other=0.0)
        b = tl.load(
            weight + column.to(tl.int64)[:, None] * depth + k[None, :],
            mask=is_column[:, None] & (k < depth)[None, :], other=0.0,
        )  # fmt: skip
        if IN_FLOAT32:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    at = row[:, None] * columns + column[None, :]
    there = is_row & is_column[None, :]
    if PARTS > 1:
        tl.store(partial + part * rows * columns + at, sums, mask=there)
        tl.debug_barrier()  # all of the program's stores come before its arrival
        before = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel")
        if before != PARTS - 1:
            return
        tl.store(arrived + tl.program_id(0), 0)  # for the next call
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for other in range(PARTS):
            sums += tl.load(partial + other * rows * columns + at, mask=there, other=0.0, cache_modifier=".cg")
    if HAS_BIAS:
        sums += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, sums, mask=there)


def linear_few_rows(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape | None = None) -> None:
    """out = x · weightᵀ + bias, for up to `MOST_ROWS` rows. Calls of one device are in one stream, whose parts count their arrivals."""
    rows, depth = x.shape
    columns = weight.shape[0]
    shape = shape or shape_of(columns, depth)
    blocks = -(-columns // shape.columns)
    parts = shape.parts if blocks <= COUNTERS else 1
    partial = torch.empty(parts * rows * columns if parts > 1 else 0, dtype=torch.float32, device=x.device)
    _few_rows[(blocks, parts)](
        out, x, weight, weight if bias is None else bias, partial, _counters(x.device), rows, columns, depth,
        ROWS=MOST_ROWS, COLUMNS=shape.columns, DEPTH=shape.depth, PARTS=parts,
        HAS_BIAS=bias is not None, IN_FLOAT32=x.dtype is torch.float32 or not x.is_cuda,
        num_warps=shape.warps, num_stages=shape.stages, **overlapped(x.device),
    )  # fmt: skip


def is_faster(rows: int, columns: int, depth: int) -> bool:
    """Than cuBLAS. On an H200, microseconds, measured with 1 row: 1,024 columns of 2,048: 4.9 for 12.8; 4,096 of 4,096: 11.6 for 12.8; 128,256 of 4,096:
    236 for 246; but 6,144 of 1,024: 6.8 for 5.9, and 28,672 of 4,096: 58 for 56."""
    return rows <= MOST_ROWS and (depth >= columns or columns >= MANY_COLUMNS)


def shape_of(columns: int, depth: int) -> Shape:
    """So many programs that each processor has two of them or more, and each of them some turns."""
    wide = 64 if columns >= MANY_COLUMNS else 32
    parts = 1
    while parts < 8 and -(-columns // wide) * parts < 264 and depth // (parts * 2) >= 512:
        parts *= 2
    return Shape(wide, 128, parts, 4, 4)


@cache
def _counters(device: torch.device) -> Tensor:
    """All zero between calls."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
