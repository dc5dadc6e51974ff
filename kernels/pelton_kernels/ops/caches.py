"""Ops on the paged KV cache: rope and writing, attention, and blocks that move."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pelton_kernels.checks import (
    FORMATS,
    cache_format,
    cache_width,
    expect,
    expect_dimensions,
    expect_format,
    expect_heads,
    head_dim,
    refuse,
)
from pelton_kernels.heads import HeadNorm
from pelton_kernels.ops.dispatch import Caches, kernels


def rope_kv_write(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_slots: Tensor,
    is_interleaved: bool = False,
    norm: HeadNorm | None = None,
) -> None:
    """out = q, rotated; and k, rotated too, and v are written into the cache. With a norm each head of q and k is normed before, and
    rounded to its format.

    Of the R columns that are turned, column i is turned with i + R/2; or, if `is_interleaved`, column 2i with 2i + 1.

    out, q: [T, H, D]; k, v: [T, KH, D]; q, k and v may be parts of larger rows, as long as a head's columns lie together;
    cos_sin: float32 [P, R], cosines then sines, R even and at most D;
    positions: int32 [T]; caches: [blocks, KH, block_size, D]; kv_slots: int64 [T], block · block_size + place;
    on cards a slot below 0 is nowhere, and positions and slots may be read while the kernel before still runs, which must not write them.

    Caches of int8, on CPUs, are [blocks, KH, block_size, D + 4]: of each token's head codes, and their scale (`reference.codes_of`).
    """
    expect_format("out", out, 3)
    expect_dimensions("k_cache", k_cache, 4)
    expect_dimensions("cos_sin", cos_sin, 2)
    tokens, heads, dim = out.shape
    blocks, kv_heads, block_size, _ = k_cache.shape
    rotated = cos_sin.shape[1]
    if not 0 < rotated <= dim or rotated % 2:
        raise refuse("cos_sin", f"{rotated} wide", f"an even number up to {dim}")
    expect("out", out, out.dtype, (tokens, heads, dim), out.device)
    expect_heads("q", q, out.dtype, (tokens, heads, dim), out.device)
    expect_heads("k", k, out.dtype, (tokens, kv_heads, dim), out.device)
    expect_heads("v", v, out.dtype, (tokens, kv_heads, dim), out.device)
    if norm is not None:
        expect("norm.q_gain", norm.q_gain, torch.float32, (dim,), out.device)
        expect("norm.k_gain", norm.k_gain, torch.float32, (dim,), out.device)
    expect("cos_sin", cos_sin, torch.float32, (cos_sin.shape[0], rotated), out.device)
    expect("positions", positions, torch.int32, (tokens,), out.device)
    format, width = cache_format(k_cache, out.dtype), cache_width(dim, k_cache)
    expect("k_cache", k_cache, format, (blocks, kv_heads, block_size, width), out.device)
    expect("v_cache", v_cache, format, (blocks, kv_heads, block_size, width), out.device)
    expect("kv_slots", kv_slots, torch.int64, (tokens,), out.device)
    kernels(out.device).rope_kv_write(
        out, q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots, is_interleaved, norm
    )


def paged_attention(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    row_offsets: Tensor,
    row_starts: Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    is_whole: bool = False,
    slopes: Tensor | None = None,
) -> None:
    """Causal attention over the cache, which holds the keys and values of these tokens already.

    Row r has the tokens row_offsets[r] .. row_offsets[r + 1], at the positions row_starts[r] and on, its blocks in
    block_table[r].   out, q: [T, H, D]; caches: [blocks, KH, block_size, D], H a multiple of KH;
    block_table: int32 [R, max blocks]; row_offsets: int32 [R + 1], from 0 to T; row_starts: int32 [R].
    On cards: row_offsets may end before T, and where T = R no row has more than one token. The table and both lists may be read while
    the kernel before still runs, which must not write them.

    `window`: a token sees so many positions, its own included, and no block behind them is looked at. `soft_cap`: scores
    become cap · tanh(score / cap). `sinks`: float32 [H], of each head the score of a key without value.

    `is_whole`: not causal: a token sees the others behind it too, to the end of its row, which begins at position 0; a window
    then reaches as far to both sides.

    `slopes`: float32 [H], causal alone: a score gets slope · (key's position - query's), behind the soft cap (ALiBi).

    Caches may be of int8, as `rope_kv_write` writes them.
    """
    expect_format("out", out, 3)
    expect_dimensions("k_cache", k_cache, 4)
    expect_dimensions("block_table", block_table, 2)
    shape = (out.shape[0], out.shape[1], out.shape[2])
    rows, max_blocks = block_table.shape
    blocks, kv_heads, block_size, width = k_cache.shape
    dim, format = head_dim(k_cache), cache_format(k_cache, out.dtype)
    if kv_heads == 0 or shape[1] % kv_heads:
        raise refuse("out", f"{shape[1]} heads", f"a multiple of the cache's {kv_heads}")
    expect("out", out, out.dtype, (*shape[:2], dim), out.device)
    expect("q", q, out.dtype, shape, out.device)
    expect("k_cache", k_cache, format, (blocks, kv_heads, block_size, width), out.device)
    expect("v_cache", v_cache, format, (blocks, kv_heads, block_size, width), out.device)
    expect("block_table", block_table, torch.int32, (rows, max_blocks), out.device)
    expect("row_offsets", row_offsets, torch.int32, (rows + 1,), out.device)
    expect("row_starts", row_starts, torch.int32, (rows,), out.device)
    if window is not None and window < 1:
        raise refuse("window", window, "1 and more")
    if soft_cap is not None and not soft_cap > 0:
        raise refuse("soft_cap", soft_cap, "a number above 0")
    if sinks is not None:
        expect("sinks", sinks, torch.float32, shape[1:2], out.device)
    if slopes is not None:
        expect("slopes", slopes, torch.float32, shape[1:2], out.device)
        if is_whole:
            raise refuse("slopes", "given for whole rows", "None with `is_whole`")
    kernels(out.device).paged_attention(
        out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale, window, soft_cap, sinks, is_whole, slopes
    )


def copy_blocks(k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor) -> None:
    """The first tokens[i] tokens of block from_blocks[i] go to block to_blocks[i], in order.   The lists: int32 [C]."""
    _expect_cache("k_cache", k_cache)
    shape = tuple(k_cache.shape)
    expect("k_cache", k_cache, k_cache.dtype, shape, k_cache.device)
    expect("v_cache", v_cache, k_cache.dtype, shape, k_cache.device)
    expect_dimensions("from_blocks", from_blocks, 1)
    count = from_blocks.shape[0]
    expect("from_blocks", from_blocks, torch.int32, (count,), k_cache.device)
    expect("to_blocks", to_blocks, torch.int32, (count,), k_cache.device)
    expect("tokens", tokens, torch.int32, (count,), k_cache.device)
    kernels(k_cache.device).copy_blocks(k_cache, v_cache, from_blocks, to_blocks, tokens)


def _expect_cache(name: str, cache: Tensor) -> None:
    formats = (*FORMATS, torch.int8) if cache.device.type == "cpu" else FORMATS
    expect_format(name, cache, 4, formats)


def save_blocks(host: Tensor, caches: Sequence[Caches], blocks: Tensor, host_blocks: Tensor) -> None:
    """Block blocks[i] of every layer's caches goes to host block host_blocks[i], each of which is named once.

    host: uint8 [host blocks, bytes], in the host's memory wherever the caches lie, at least as wide as a block: keys of
    layer 0, its values, keys of layer 1 ...   The lists: int32 [C], in the host's memory.
    On a GPU the copies are in stream order, and done only when the stream is.
    """
    device = _expect_host(host, caches, blocks, host_blocks)
    kernels(device).save_blocks(host, caches, blocks, host_blocks)


def load_blocks(caches: Sequence[Caches], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
    """Host block host_blocks[i] goes to block blocks[i], each named once, of every layer: what `save_blocks` undoes."""
    device = _expect_host(host, caches, blocks, host_blocks)
    kernels(device).load_blocks(caches, host, host_blocks, blocks)


def _expect_host(host: Tensor, caches: Sequence[Caches], blocks: Tensor, host_blocks: Tensor) -> torch.device:
    if not caches:
        raise refuse("caches", "empty", "keys and values of one layer at least")
    first = caches[0][0]
    _expect_cache("caches", first)
    for pair in caches:
        for cache in pair:
            expect("caches", cache, first.dtype, tuple(first.shape), first.device)
    expect_dimensions("host", host, 2)
    expect("host", host, torch.uint8, tuple(host.shape), torch.device("cpu"))
    block_bytes = 2 * len(caches) * first[:1].nbytes
    if host.shape[1] < block_bytes:
        raise refuse("host", f"{host.shape[1]} bytes wide", f"{block_bytes} and more")
    expect_dimensions("blocks", blocks, 1)
    expect("blocks", blocks, torch.int32, (blocks.shape[0],), host.device)
    expect("host_blocks", host_blocks, torch.int32, (blocks.shape[0],), host.device)
    return first.device
