"""The kernels for CPUs: addresses of checked tensors, handed to Rust. The GIL is released while an op runs.

Never called but by `ops`, which has checked formats, shapes and contiguity: Rust takes addresses at their word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pelton_kernels import _native
from pelton_kernels.checks import head_dim
from pelton_kernels.heads import HeadNorm, steps_of
from pelton_kernels.packed import PackedWeight, Scheme

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


def dtype_name(tensor: Tensor) -> str:
    """A tensor's format, as Rust names it."""
    return _DTYPES[tensor.dtype]


def _span(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _heads(heads: Tensor) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """What they reach over, and where they lie in it."""
    by_token, by_head = steps_of(heads)
    tokens, count, dim = heads.shape
    reach = 0 if heads.numel() == 0 else (tokens - 1) * by_token + (count - 1) * by_head + dim
    return (heads.data_ptr(), reach), (0, by_token, by_head)


def cache_sizes(cache: Tensor) -> tuple[int, int, int, int]:
    """A cache's sizes, as Rust takes them."""
    blocks, heads, block_size, _ = cache.shape
    return blocks, heads, block_size, head_dim(cache)


def set_threads(threads: int) -> None:
    """See `ops.set_threads`."""
    _native.set_threads(threads)


def available_isas() -> list[str]:
    """See `ops.available_isas`."""
    return _native.available_isas()


def force_isa(name: str | None) -> None:
    """See `ops.force_isa`."""
    _native.force_isa(name)


def numerics_id(dtype: torch.dtype, scheme: Scheme | None) -> str:
    """See `ops.numerics_id`."""
    return _native.numerics_id(_DTYPES[dtype], None if scheme is None else scheme.words())


def embed(out: Tensor, table: Tensor, ids: Tensor) -> None:
    """See `ops.embed`."""
    _native.embed(_DTYPES[out.dtype], _span(out), _span(table), _span(ids), out.shape[1])


def embed_packed(out: Tensor, table: PackedWeight, ids: Tensor, scale: float) -> None:
    """See `ops.embed_packed`."""
    assert isinstance(table.data, _native.PackedWeight), "packed on this device, which `ops` compared"
    _native.embed_packed(_span(out), table.data, _span(ids), scale)


def embed_segments(out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None) -> None:
    """See `ops.embed_segments`."""
    spans = _span(out), _span(table), _span(ids), _span(row_offsets)
    _native.embed_segments(_DTYPES[out.dtype], *spans, separator, out.shape[1])


def pool_rows(out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: str) -> None:
    """See `ops.pool_rows`."""
    spans = _span(out), _span(x), _span(row_offsets), _span(at)
    _native.pool_rows(_DTYPES[out.dtype], _DTYPES[x.dtype], *spans, x.shape[1], pooling)


def rms_norm(out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """See `ops.rms_norm`."""
    _native.rms_norm(_DTYPES[out.dtype], _span(out), _span(x), _span(gain), eps)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """See `ops.add_rms_norm`."""
    _native.add_rms_norm(_DTYPES[out.dtype], _span(out), _span(residual), _span(x), _span(gain), eps)


def layer_norm(out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int) -> None:
    """See `ops.layer_norm`."""
    lent = None if bias is None else _span(bias)
    _native.layer_norm(_DTYPES[out.dtype], _span(out), _span(x), _span(gain), lent, eps, group)


def add_layer_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> None:
    """See `ops.add_layer_norm`."""
    lent = None if bias is None else _span(bias)
    _native.add_layer_norm(_DTYPES[out.dtype], _span(out), _span(residual), _span(x), _span(gain), lent, eps)


def pack(parts: Sequence[Tensor], dtype: torch.dtype) -> PackedWeight:
    """See `ops.pack`."""
    columns, depth = sum(part.shape[0] for part in parts), parts[0].shape[1]
    data = _native.pack(_DTYPES[dtype], _stored(parts), depth)
    return PackedWeight(parts[0].device, dtype, columns, depth, data)


def quantize(parts: Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight:
    """See `ops.quantize`."""
    columns, depth = sum(part.shape[0] for part in parts), parts[0].shape[1]
    data = _native.quantize(_DTYPES[dtype], _stored(parts), depth, scheme.words())
    return PackedWeight(parts[0].device, dtype, columns, depth, data)


def pack_codes(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor | None, dtype: torch.dtype, scheme: Scheme
) -> PackedWeight:
    """See `ops.pack_codes`."""
    columns, depth = codes.shape
    spans = [None if tensor is None else _span(tensor) for tensor in (zeros, order)]
    data = _native.pack_codes(_DTYPES[dtype], _span(codes), depth, scheme.words(), _span(scales), *spans)
    return PackedWeight(codes.device, dtype, columns, depth, data)


def _stored(parts: Sequence[Tensor]) -> list[tuple[str, tuple[int, int]]]:
    return [(str(part.dtype).removeprefix("torch."), _span(part)) for part in parts]


def linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> None:
    """See `ops.linear` and `ops.linear_f32`: the result's format is that of `out`."""
    assert isinstance(weight.data, _native.PackedWeight), "packed on this device, which `ops` compared"
    _native.linear(_DTYPES[out.dtype], _span(out), _span(x), weight.data, None if bias is None else _span(bias))


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.silu_mul`."""
    _native.silu_mul(_DTYPES[out.dtype], _span(out), _span(gate_up), out.shape[1])


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.gelu_mul`."""
    _native.gelu_mul(_DTYPES[out.dtype], _span(out), _span(gate_up), out.shape[1])


def gelu_erf_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.gelu_erf_mul`."""
    _native.gelu_erf_mul(_DTYPES[out.dtype], _span(out), _span(gate_up), out.shape[1])


def activate(x: Tensor, function: str) -> None:
    """See `ops.activate`."""
    _native.activate(_DTYPES[x.dtype], _span(x), function)


def add(residual: Tensor, x: Tensor) -> None:
    """See `ops.add`."""
    _native.add(_DTYPES[residual.dtype], _span(residual), _span(x))


def scale(x: Tensor, factor: float) -> None:
    """See `ops.scale`."""
    _native.scale(_DTYPES[x.dtype], _span(x), factor)


def soft_cap(x: Tensor, cap: float) -> None:
    """See `ops.soft_cap`."""
    _native.soft_cap(_span(x), cap)


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
    is_interleaved: bool,
    norm: HeadNorm | None,
) -> None:
    """See `ops.rope_kv_write`."""
    q_gain, k_gain, eps = (None, None, 0.0) if norm is None else (_span(norm.q_gain), _span(norm.k_gain), norm.eps)
    _native.rope_kv_write(
        _DTYPES[out.dtype], _span(out), *_heads(q), *_heads(k), *_heads(v), q_gain, k_gain, eps, _span(cos_sin),
        cos_sin.shape[1], is_interleaved, _span(positions), _DTYPES[k_cache.dtype], _span(k_cache), _span(v_cache),
        cache_sizes(k_cache), _span(kv_slots), out.shape[1],
    )  # fmt: skip


def paged_attention(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    row_offsets: Tensor,
    row_starts: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    is_whole: bool,
    slopes: Tensor | None,
) -> None:
    """See `ops.paged_attention`."""
    _native.paged_attention(
        _DTYPES[out.dtype], _span(out), _span(q), _DTYPES[k_cache.dtype], _span(k_cache), _span(v_cache),
        cache_sizes(k_cache), _span(block_table), _span(row_offsets), _span(row_starts), q.shape[1], scale, is_whole,
        window, soft_cap, None if sinks is None else _span(sinks), None if slopes is None else _span(slopes),
    )  # fmt: skip


def copy_blocks(k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor) -> None:
    """See `ops.copy_blocks`."""
    _native.copy_blocks(
        _DTYPES[k_cache.dtype], _span(k_cache), _span(v_cache), cache_sizes(k_cache),
        _span(from_blocks), _span(to_blocks), _span(tokens),
    )  # fmt: skip


def save_blocks(host: Tensor, caches: Sequence[tuple[Tensor, Tensor]], blocks: Tensor, host_blocks: Tensor) -> None:
    """See `ops.save_blocks`."""
    spans, count = _cache_bytes(caches)
    _native.save_blocks((host.data_ptr(), *host.shape), spans, count, _span(blocks), _span(host_blocks))


def load_blocks(caches: Sequence[tuple[Tensor, Tensor]], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
    """See `ops.load_blocks`."""
    spans, count = _cache_bytes(caches)
    _native.load_blocks(spans, count, (host.data_ptr(), *host.shape), _span(host_blocks), _span(blocks))


def _cache_bytes(caches: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[tuple[int, int]], int]:
    """Address and bytes of each cache, in the order of a block's pieces; and how many blocks each has."""
    return [(cache.data_ptr(), cache.nbytes) for pair in caches for cache in pair], caches[0][0].shape[0]


def sample(
    out_tokens: Tensor,
    out_flags: Tensor,
    out_chosen: Tensor,
    out_top_ids: Tensor,
    out_top_logprobs: Tensor,
    logits: Tensor,
    params: Tensor,
    slots: Tensor,
    positions: Tensor,
    counts: Tensor | None,
    bias_ids: Tensor,
    bias_values: Tensor,
    suppressed: Tensor,
    masks: Tensor,
    mask_of: Tensor,
) -> None:
    """See `ops.sample`."""
    _native.sample(
        _span(out_tokens), _span(out_flags), _span(out_chosen), _span(out_top_ids), _span(out_top_logprobs),
        _span(logits), logits.shape[1], _span(params), _span(slots), _span(positions),
        None if counts is None else _span(counts), _span(bias_ids), _span(bias_values), _span(suppressed),
        _span(masks), _span(mask_of),
    )  # fmt: skip


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
    """See `ops.score`."""
    _native.score(
        _span(out_ranks), _span(out_flags), _span(out_chosen), _span(out_top_ids), _span(out_top_logprobs),
        _span(logits), logits.shape[1], _span(given), _span(wanted),
    )  # fmt: skip
