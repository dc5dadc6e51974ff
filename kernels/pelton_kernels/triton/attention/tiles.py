"""Attention of rows with many tokens: prompts and their chunks."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.attention.piece import add_piece, begin_sums, load_queries
from pelton_kernels.triton.overlap import begin_kernel, overlapped


class Shape(NamedTuple):
    """Lanes (query tokens times heads of a group), keys per turn, and what Triton makes of it."""

    lanes: int
    piece: int
    warps: int
    stages: int


WIDE: Final = Shape(128, 64, 4, 3)
EXACT: Final = Shape(32, 32, 4, 1)  # float32 has no tensor cores
SUMS: Final = 1 << 15  # lanes times columns: as many stand in registers
STAGED: Final = 1 << 17  # bytes of keys and values on their way


@triton.jit(
    do_not_specialize=["rows", "table_width", "fewest", "window"],
    do_not_specialize_on_alignment=["block_table", "row_offsets", "row_starts"],
)
def _tiles(
    out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale_log2,
    rows, table_width, heads, fewest, window, soft_cap, sinks,
    GROUP: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, PIECE: tl.constexpr,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    IN_FLOAT32: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, WHOLE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[t, h] = softmax(scale · q[t, h] · Kᵀ) V over the row's keys up to t's own position; of rows with `fewest` tokens and more.

    Grid: tiles × kv heads. A tile is TILE query tokens of one row.
      1. Row r's tiles begin at row_offsets[r] // TILE + r: a bound that needs no table; a binary search finds the row, and
         tiles past a row's end return at once. The last tiles, which see most, begin first.
      2. Pieces of keys that all lanes see go first and without a mask.
    """
    begin_kernel(OVERLAPS)
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    low = 0
    high = rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(row_offsets + middle) // TILE + middle <= tile:
            low = middle + 1
        else:
            high = middle
    row = low - 1
    begin = tl.load(row_offsets + row)
    count = tl.load(row_offsets + row + 1) - begin
    first = (tile - (begin // TILE + row)) * TILE
    if (first >= count) | (count < fewest):
        return
    start = tl.load(row_starts + row)

    query, token, head, inside, at = load_queries(
        q, begin, first, count, kv_head, heads, GROUP, TILE, LANES, HEAD_DIM, DIM, IN_FLOAT32
    )
    sums, total, top = begin_sums(sinks, head, inside, LANES, DIM, SINKS)
    position = start + token
    row_table = block_table + row.to(tl.int64) * table_width
    reach = start + count
    last = start + tl.minimum(first + TILE, count)
    if WHOLE:
        last = tl.minimum(last - 1 + window, reach) if WINDOW else reach
    least = 0
    if WINDOW:
        least = tl.maximum(start + first + 1 - window, 0)
    masked_from = least // PIECE * PIECE
    if not WINDOW:
        seen_by_all = reach if WHOLE else start + first + 1
        masked_from = seen_by_all // PIECE * PIECE
        for piece in range(0, masked_from, PIECE):
            sums, total, top = add_piece(
                sums, total, top, query, position, k_cache, v_cache, row_table, kv_head, piece, least, last, reach,
                scale_log2, window, soft_cap,
                KV_HEADS, BLOCK_SIZE, HEAD_DIM, DIM, PIECE, IN_FLOAT32, False, WINDOW, SOFT_CAP, WHOLE,
            )  # fmt: skip
    for piece in range(masked_from, last, PIECE):
        sums, total, top = add_piece(
            sums, total, top, query, position, k_cache, v_cache, row_table, kv_head, piece, least, last, reach,
            scale_log2, window, soft_cap,
            KV_HEADS, BLOCK_SIZE, HEAD_DIM, DIM, PIECE, IN_FLOAT32, True, WINDOW, SOFT_CAP, WHOLE,
        )  # fmt: skip
    column = tl.arange(0, DIM)
    wanted = inside[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(out + at[:, None] + column[None, :], sums / total[:, None], mask=wanted)


def attend_tiles(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, row_offsets: Tensor, row_starts: Tensor, scale: float,
    window: int | None, soft_cap: float | None, sinks: Tensor | None, is_whole: bool, fewest: int,
) -> None:  # fmt: skip
    """Rows with `fewest` tokens and more; the others' places in `out` are left as they are."""
    tokens, heads, head_dim = q.shape
    rows = row_starts.shape[0]
    kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    group, dim = heads // kv_heads, max(16, triton.next_power_of_2(head_dim))
    # The interpreter computes bf16 products wrongly, and float32 tensors need them anyway.
    in_float32 = q.dtype is torch.float32 or not q.is_cuda
    shape = EXACT if in_float32 else WIDE
    lanes = max(min(shape.lanes, SUMS // dim), triton.next_power_of_2(group), 16)
    stages = max(min(shape.stages, STAGED // (2 * shape.piece * dim * q.itemsize)), 1)
    tile = lanes // group
    _tiles[(tokens // tile + rows, kv_heads)](
        out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale * 1.4426950408889634,
        rows, block_table.shape[1], heads, fewest, window or 0, soft_cap or 0.0, sinks,
        GROUP=group, TILE=tile, LANES=lanes, PIECE=shape.piece,
        KV_HEADS=kv_heads, BLOCK_SIZE=block_size, HEAD_DIM=head_dim, DIM=dim,
        IN_FLOAT32=in_float32, WINDOW=window is not None, SOFT_CAP=soft_cap is not None, SINKS=sinks is not None,
        WHOLE=is_whole,
        num_warps=shape.warps, num_stages=stages, **overlapped(q.device),
    )  # fmt: skip
