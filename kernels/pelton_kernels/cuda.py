"""The kernels for GPUs: Triton twins where there are some, torch for the rest.

Most linear layers are cuBLAS, so a row's bits may depend on its batch here: the promise of `ops` is the CPU's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pelton_kernels import reference
from pelton_kernels.checks import refuse
from pelton_kernels.packed import PackedWeight, Scheme
from pelton_kernels.triton.activation import activate, gelu_erf_mul, gelu_mul, silu_mul
from pelton_kernels.triton.attention import paged_attention
from pelton_kernels.triton.layer_norm import add_layer_norm, layer_norm
from pelton_kernels.triton.linear import is_faster, linear_few_rows
from pelton_kernels.triton.linear_one_row import linear_one_row
from pelton_kernels.triton.norm import add_rms_norm, rms_norm
from pelton_kernels.triton.rope import rope_kv_write
from pelton_kernels.triton.sampling import sample

__all__ = [
    "activate",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "copy_blocks",
    "embed",
    "embed_packed",
    "embed_segments",
    "gelu_erf_mul",
    "gelu_mul",
    "layer_norm",
    "linear",
    "load_blocks",
    "numerics_id",
    "pack",
    "pack_codes",
    "paged_attention",
    "pool_rows",
    "quantize",
    "rms_norm",
    "rope_kv_write",
    "sample",
    "save_blocks",
    "scale",
    "score",
    "silu_mul",
    "soft_cap",
]

_VERSION = 4
SCORED_TOGETHER = 16  # rows


def numerics_id(dtype: torch.dtype, scheme: Scheme | None) -> str:
    """See `ops.numerics_id`."""
    assert scheme is None, "`quantize` has refused it"
    major, minor = torch.cuda.get_device_capability()
    return f"cuda-sm{major}{minor}-{str(dtype).removeprefix('torch.')}-{_VERSION}"


def embed(out: Tensor, table: Tensor, ids: Tensor) -> None:
    """See `ops.embed`."""
    torch.index_select(table, 0, ids, out=out)


def embed_packed(out: Tensor, table: PackedWeight, ids: Tensor, scale: float) -> None:
    """See `ops.embed_packed`."""
    assert isinstance(table.data, Tensor), "packed on this device, which `ops` compared"
    embed(out, table.data, ids)
    if scale != 1.0:
        out *= torch.tensor(scale, dtype=out.dtype)  # rounded, and on the host: a number to the kernel


def embed_segments(out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None) -> None:
    """See `ops.embed_segments`."""
    out.copy_(reference.embed_segments(table, ids, row_offsets, separator))


def pool_rows(out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: str) -> None:
    """See `ops.pool_rows`."""
    out.copy_(reference.pool_rows(x, row_offsets, at, pooling))


def pack(parts: Sequence[Tensor], dtype: torch.dtype) -> PackedWeight:
    """See `ops.pack`: the tensor itself, if it is one and of that format."""
    weight = (parts[0] if len(parts) == 1 else torch.cat(list(parts))).to(dtype)
    columns, depth = weight.shape
    return PackedWeight(weight.device, dtype, columns, depth, weight)


def quantize(parts: Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight:
    """See `ops.quantize`."""
    raise refuse("device", parts[0].device, "cpu, for weights of 4 and 8 bits")


def pack_codes(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor | None, dtype: torch.dtype, scheme: Scheme
) -> PackedWeight:
    """See `ops.pack_codes`."""
    raise refuse("device", codes.device, "cpu, for weights of 4 and 8 bits")


def linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> None:
    """See `ops.linear` and `ops.linear_f32`."""
    assert isinstance(weight.data, Tensor), "packed on this device, which `ops` compared"
    if x.shape[0] == 1:
        linear_one_row(out, x, weight.data, bias)
        return
    if is_faster(x.shape[0], weight.columns, weight.depth):
        linear_few_rows(out, x, weight.data, bias)
        return
    if out.dtype is x.dtype:
        torch.mm(x, weight.data.T, out=out)
    else:
        torch.mm(x, weight.data.T, out_dtype=out.dtype, out=out)
    if bias is not None:
        out += bias


def add(residual: Tensor, x: Tensor) -> None:
    """See `ops.add`."""
    residual += x


def scale(x: Tensor, factor: float) -> None:
    """See `ops.scale`."""
    x *= factor


def soft_cap(x: Tensor, cap: float) -> None:
    """See `ops.soft_cap`."""
    x.div_(cap).tanh_().mul_(cap)


def copy_blocks(k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor) -> None:
    """See `ops.copy_blocks`."""
    reference.copy_blocks(k_cache, v_cache, from_blocks, to_blocks, tokens)


def save_blocks(host: Tensor, caches: Sequence[tuple[Tensor, Tensor]], blocks: Tensor, host_blocks: Tensor) -> None:
    """See `ops.save_blocks`: gathered on the card, then one copy per block, each at the bus's full speed."""
    index = blocks.to(caches[0][0].device)
    gathered = torch.stack([cache.index_select(0, index) for pair in caches for cache in pair], dim=1)
    rows = gathered.view(len(blocks), -1).view(torch.uint8)
    for row, block in enumerate(host_blocks.tolist()):
        host[block, : rows.shape[1]].copy_(rows[row], non_blocking=True)


def load_blocks(caches: Sequence[tuple[Tensor, Tensor]], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
    """See `ops.load_blocks`: one copy per block, then scattered on the card."""
    first = caches[0][0]
    index = blocks.to(first.device)
    gathered = torch.empty(len(blocks), 2 * len(caches), *first.shape[1:], dtype=first.dtype, device=first.device)
    rows = gathered.view(len(blocks), -1).view(torch.uint8)
    for row, block in enumerate(host_blocks.tolist()):
        rows[row].copy_(host[block, : rows.shape[1]], non_blocking=True)
    for at, cache in enumerate(cache for pair in caches for cache in pair):
        cache.index_copy_(0, index, gathered[:, at])


def score(
    out_ranks: Tensor,
    out_flags: Tensor,
    out_chosen: Tensor,
    out_top_ids: Tensor,
    out_top_logprobs: Tensor,
    logits: Tensor,
    given: Tensor,
    wanted: Tensor,
) -> None:
    """See `ops.score`. A few rows at once: float64 copies of them all would take several times the logits' room."""
    for first in range(0, len(given), SCORED_TOGETHER):
        rows = slice(first, first + SCORED_TOGETHER)
        scored = reference.score(logits[rows], given[rows], wanted[rows], out_top_ids.shape[1])
        for out, values in zip((out_ranks, out_flags, out_chosen, out_top_ids, out_top_logprobs), scored, strict=True):
            out[rows] = values
