"""Attention of rows with a token or a few: steps that read every key of every row once, and as fast as memory gives them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.attention.piece import add_piece, begin_sums, load_queries
from pelton_kernels.triton.overlap import begin_kernel, overlapped

PIECE_BYTES: Final = 32768  # of keys, and as many of values, per turn of the loop
PER_PROCESSOR: Final = 2  # workers
WARPS: Final = 4
STAGES: Final = 3


@triton.jit
def _pieces(
    row_offsets, row_starts, rows, window,
    ROWS: tl.constexpr, TILE: tl.constexpr, PIECE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Of each row: how many pieces of keys its tokens see; none of a row with more than TILE tokens, or without."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    begin = tl.load(row_offsets + row, mask=inside, other=0)
    count = tl.load(row_offsets + row + 1, mask=inside, other=0) - begin
    start = tl.load(row_starts + row, mask=inside, other=0)
    least = 0
    if WINDOW:
        least = tl.maximum(start + 1 - window, 0) // PIECE
    return tl.where(inside & (count > 0) & (count <= TILE), tl.cdiv(start + count, PIECE) - least, 0)


@triton.jit(
    do_not_specialize=["rows", "table_width", "window"],
    do_not_specialize_on_alignment=["block_table", "row_offsets", "row_starts"],
)
def _walk(
    out, part_sums, part_totals, part_tops,
    q, k_cache, v_cache, block_table, row_offsets, row_starts, scale_log2,
    rows, table_width, heads, window, soft_cap, sinks,
    ROWS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, PIECE: tl.constexpr,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    IN_FLOAT32: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[t, h] = softmax(scale · q[t, h] · Kᵀ) V over the row's keys up to t's own position; of rows with TILE tokens and fewer.

    Grid: workers. All pieces of keys, of row after row, kv head after kv head, stand in one line, of which each worker walks an equal
    stretch: one row of 128k keys beside many short ones keeps no worker waiting. A head that lies within one stretch is written
    at once. Of others each worker keeps its part, at most two: of the head that it begins with, and of the one that it ends with.
    """
    pieces = _pieces(row_offsets, row_starts, rows, window, ROWS, TILE, PIECE, WINDOW)
    ends = tl.cumsum(pieces, 0)
    whole = tl.sum(pieces, 0) * KV_HEADS
    stretch = tl.cdiv(whole, tl.num_programs(0))
    worker = tl.program_id(0)
    here = worker * stretch
    end = tl.minimum(here + stretch, whole)
    column = tl.arange(0, DIM)
    begin_kernel(OVERLAPS)
    while here < end:
        row = tl.sum((ends * KV_HEADS <= here).to(tl.int32), 0)
        is_row = tl.arange(0, ROWS) == row
        of_head = tl.sum(tl.where(is_row, pieces, 0), 0)
        within = here - (tl.sum(tl.where(is_row, ends, 0), 0) - of_head) * KV_HEADS
        kv_head = within // of_head
        from_piece = within % of_head
        to_piece = tl.minimum(of_head, from_piece + end - here)

        begin = tl.load(row_offsets + row)
        count = tl.load(row_offsets + row + 1) - begin
        start = tl.load(row_starts + row)
        least = 0
        if WINDOW:
            least = tl.maximum(start + 1 - window, 0)
        reach = start + count
        query, token, head, inside, at = load_queries(
            q, begin, 0, count, kv_head, heads, GROUP, TILE, LANES, HEAD_DIM, DIM, IN_FLOAT32
        )
        sums, total, top = begin_sums(sinks, head, inside, LANES, DIM, SINKS)
        if SINKS:  # counts once: with the head's first piece
            total = tl.where(from_piece == 0, total, 0.0)
            top = tl.where(from_piece == 0, top, float("-inf"))
        row_table = block_table + row.to(tl.int64) * table_width
        first_piece = least // PIECE
        for piece in range((first_piece + from_piece) * PIECE, (first_piece + to_piece) * PIECE, PIECE):
            sums, total, top = add_piece(
                sums, total, top, query, start + token, k_cache, v_cache, row_table, kv_head, piece, least, reach, reach,
                scale_log2, window, soft_cap,
                KV_HEADS, BLOCK_SIZE, HEAD_DIM, DIM, PIECE, IN_FLOAT32, True, WINDOW, SOFT_CAP, False,
            )  # fmt: skip
        if (from_piece == 0) & (to_piece == of_head):
            wanted = inside[:, None] & (column < HEAD_DIM)[None, :]
            tl.store(out + at[:, None] + column[None, :], sums / total[:, None], mask=wanted)
        else:
            lanes = (2 * worker + (here > worker * stretch)) * LANES + tl.arange(0, LANES)
            tl.store(part_sums + lanes[:, None] * DIM + column[None, :], sums)
            tl.store(part_totals + lanes, total)
            tl.store(part_tops + lanes, top)
        here += to_piece - from_piece


@triton.jit(
    do_not_specialize=["rows", "workers", "window"], do_not_specialize_on_alignment=["row_offsets", "row_starts"]
)
def _merge(
    out, part_sums, part_totals, part_tops, row_offsets, row_starts, rows, heads, workers, window,
    ROWS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, LANES: tl.constexpr, PIECE: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The parts of a head that several workers walked, PARTS at a time, in the order of its keys.   Grid: rows × kv heads × pieces of columns."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    pieces = _pieces(row_offsets, row_starts, rows, window, ROWS, TILE, PIECE, WINDOW)
    stretch = tl.cdiv(tl.sum(pieces, 0) * KV_HEADS, workers)
    of_head = tl.sum(tl.where(tl.arange(0, ROWS) == row, pieces, 0), 0)
    before = tl.sum(tl.where(tl.arange(0, ROWS) < row, pieces, 0), 0)
    begin = tl.load(row_offsets + row)
    count = tl.load(row_offsets + row + 1) - begin
    begin_kernel(OVERLAPS)  # also where there is nothing to do: who waits for this kernel waits for all before it
    if of_head == 0:
        return
    first = before * KV_HEADS + kv_head * of_head
    low = first // stretch
    high = (first + of_head - 1) // stretch
    if low == high:
        return
    lane = tl.arange(0, LANES)
    token = lane // GROUP
    inside = (lane < TILE * GROUP) & (token < count)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    top = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    sums = tl.zeros([LANES, COLUMNS], tl.float32)
    for from_worker in range(low, high + 1, PARTS):
        worker = from_worker + tl.arange(0, PARTS)
        part = 2 * worker + (first > worker * stretch).to(tl.int32)
        lanes = part[:, None] * LANES + lane[None, :]
        there = (worker <= high)[:, None] & inside[None, :]
        tops = tl.load(part_tops + lanes, mask=there, other=float("-inf"))
        totals = tl.load(part_totals + lanes, mask=there, other=0.0)
        parts = tl.load(part_sums + lanes[:, :, None] * DIM + column[None, None, :], mask=there[:, :, None], other=0.0)
        new_top = tl.maximum(top, tl.max(tops, 0))
        level = tl.where(new_top == float("-inf"), 0.0, new_top)  # lanes of no token have seen nothing
        keep = tl.exp2(top - level)
        gains = tl.exp2(tops - level[None, :])
        total = total * keep + tl.sum(totals * gains, 0)
        sums = sums * keep[:, None] + tl.sum(parts * gains[:, :, None], 0)
        top = new_top
    at = ((begin + token).to(tl.int64) * heads + kv_head * GROUP + lane % GROUP) * HEAD_DIM
    wanted = inside[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(out + at[:, None] + column[None, :], sums / total[:, None], mask=wanted)


def most_tokens(heads: int, kv_heads: int) -> int:
    """Of a row that this is for."""
    return _lanes(heads // kv_heads) // (heads // kv_heads)


def attend_few(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, row_offsets: Tensor, row_starts: Tensor, scale: float,
    window: int | None, soft_cap: float | None, sinks: Tensor | None, workers: int | None = None,
) -> None:  # fmt: skip
    """Rows with up to `most_tokens`; the others' places in `out` are left as they are."""
    _, heads, head_dim = q.shape
    rows = row_starts.shape[0]
    kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    group, dim = heads // kv_heads, max(16, triton.next_power_of_2(head_dim))
    lanes, workers = _lanes(group), workers or _workers(q.device)
    # The interpreter computes bf16 products wrongly, and float32 tensors need them anyway.
    in_float32 = q.dtype is torch.float32 or not q.is_cuda
    part_sums = torch.empty(2 * workers * lanes, dim, dtype=torch.float32, device=q.device)
    part_totals, part_tops = torch.empty(2, 2 * workers * lanes, dtype=torch.float32, device=q.device)
    shape: dict[str, Any] = {
        "ROWS": _room(rows), "GROUP": group, "TILE": lanes // group, "LANES": lanes,
        "PIECE": min(max(PIECE_BYTES // (dim * q.itemsize), 16), 128),
        "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "DIM": dim, "WINDOW": window is not None,
    }  # fmt: skip
    _walk[(workers,)](
        out, part_sums, part_totals, part_tops,
        q, k_cache, v_cache, block_table, row_offsets, row_starts, scale * 1.4426950408889634,
        rows, block_table.shape[1], heads, window or 0, soft_cap or 0.0, sinks,
        **shape, BLOCK_SIZE=block_size,
        IN_FLOAT32=in_float32, SOFT_CAP=soft_cap is not None, SINKS=sinks is not None,
        num_warps=WARPS, num_stages=STAGES, **overlapped(q.device),
    )  # fmt: skip
    # Few heads are too few programs for all processors, so their columns are divided, too.
    columns, parts = (min(dim, 32), 8) if rows <= 16 else (dim, 2)
    _merge[(rows, kv_heads, dim // columns)](
        out, part_sums, part_totals, part_tops, row_offsets, row_starts, rows, heads, workers, window or 0,
        **shape, COLUMNS=columns, PARTS=parts, num_warps=WARPS, **overlapped(q.device),
    )  # fmt: skip


def _lanes(group: int) -> int:
    """Tensor cores multiply 16 rows and more."""
    return max(16, int(triton.next_power_of_2(group)))


def _room(rows: int) -> int:
    """Powers of 4: each is a kernel of its own to compile."""
    return 1 << max(4, -(-(rows - 1).bit_length() // 2) * 2)


@cache
def _workers(device: torch.device) -> int:
    if device.type != "cuda":
        return 7  # of the interpreter, which walks them one after the other
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return PER_PROCESSOR * processors
