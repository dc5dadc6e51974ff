"""The one dispatch table: each op checks its tensors, then goes to the kernels of the device they lie on.

Outputs come first and are written in place. All tensors are contiguous and on one device; formats are float32 and
bfloat16. A ValueError names the argument, what it is, and what is allowed. What each op computes is written down, in
plain torch, in `reference`; indices out of range are refused on the CPU and are the caller's duty on a GPU.

On a CPU a row's result is bit for bit the same alone, in any batch or chunk, on any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from pelton_kernels import admit, cpu
from pelton_kernels.checks import (
    FORMATS,
    cache_format,
    cache_width,
    expect,
    expect_dimensions,
    expect_format,
    head_dim,
    refuse,
)
from pelton_kernels.packed import PackedWeight, Scheme

__all__ = [
    "Function",
    "PackedWeight",
    "Scheme",
    "activate",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "available_isas",
    "copy_blocks",
    "embed",
    "embed_segments",
    "force_isa",
    "gelu_erf_mul",
    "gelu_mul",
    "layer_norm",
    "linear",
    "linear_f32",
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
    "set_threads",
    "silu_mul",
    "soft_cap",
    "watched",
]


Caches = tuple[Tensor, Tensor]  # keys and values of a layer
Function = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "tanh"]
FUNCTIONS = get_args(Function)
Pooling = Literal["first", "last", "mean"]
POOLINGS = get_args(Pooling)
STORED = (torch.float32, torch.bfloat16, torch.float16)  # what weights may lie in before they are packed


class Kernels(Protocol):
    """What a device brings."""

    def numerics_id(self, dtype: torch.dtype, scheme: Scheme | None) -> str: ...
    def embed(self, out: Tensor, table: Tensor, ids: Tensor) -> None: ...
    def embed_segments(
        self, out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None
    ) -> None: ...
    def pool_rows(self, out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: Pooling) -> None: ...
    def rms_norm(self, out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None: ...
    def add_rms_norm(self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None: ...
    def layer_norm(self, out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int) -> None: ...
    def add_layer_norm(
        self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float
    ) -> None: ...
    def pack(self, parts: Sequence[Tensor], dtype: torch.dtype) -> PackedWeight: ...
    def quantize(self, parts: Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight: ...
    def pack_codes(
        self,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        order: Tensor | None,
        dtype: torch.dtype,
        scheme: Scheme,
    ) -> PackedWeight: ...
    def linear(self, out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> None: ...
    def silu_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def gelu_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def gelu_erf_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def activate(self, x: Tensor, function: Function) -> None: ...
    def add(self, residual: Tensor, x: Tensor) -> None: ...
    def scale(self, x: Tensor, factor: float) -> None: ...
    def soft_cap(self, x: Tensor, cap: float) -> None: ...

    def rope_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        kv_slots: Tensor,
        is_interleaved: bool,
    ) -> None: ...

    def paged_attention(
        self,
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
    ) -> None: ...

    def copy_blocks(
        self, k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor
    ) -> None: ...

    def save_blocks(self, host: Tensor, caches: Sequence[Caches], blocks: Tensor, host_blocks: Tensor) -> None: ...
    def load_blocks(self, caches: Sequence[Caches], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None: ...

    def sample(
        self,
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
    ) -> None: ...
    def score(
        self,
        out_ranks: Tensor,
        out_flags: Tensor,
        out_chosen: Tensor,
        out_top_ids: Tensor,
        out_top_logprobs: Tensor,
        logits: Tensor,
        given: Tensor,
        wanted: Tensor,
    ) -> None: ...


_WATCHER: ContextVar[Kernels | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Kernels) -> Iterator[None]:
    """Within this block, and this thread, ops on a CPU go to `watcher` instead of the kernels."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def _kernels(device: torch.device) -> Kernels:
    if device.type == "cpu":
        return _WATCHER.get() or cpu
    if device.type == "cuda":
        from pelton_kernels import cuda  # Triton is imported where there is a GPU only

        return cuda
    raise refuse("device", device, "cpu, cuda")


def set_threads(threads: int) -> None:
    """How many threads the CPU kernels use, the caller's among them."""
    cpu.set_threads(threads)


def available_isas() -> list[str]:
    """The instruction-set classes that this processor has, the best first."""
    return cpu.available_isas()


def force_isa(name: str | None) -> None:
    """Uses this class, not the best (None: the best). Weights packed for one of another width are refused then."""
    cpu.force_isa(name)


def numerics_id(device: torch.device | str, dtype: torch.dtype, scheme: Scheme | None = None) -> str:
    """What bits depend on besides the inputs: within one id a row's result is always the same."""
    return _kernels(torch.device(device)).numerics_id(dtype, scheme)


def embed(out: Tensor, table: Tensor, ids: Tensor) -> None:
    """out[t] = table[ids[t]].   out: [T, W]; table: [V, W]; ids: int32 [T]."""
    expect_format("out", out, 2)
    expect_dimensions("table", table, 2)
    tokens, width = out.shape
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("table", table, out.dtype, (table.shape[0], width), out.device)
    expect("ids", ids, torch.int32, (tokens,), out.device)
    _kernels(out.device).embed(out, table, ids)


def embed_segments(out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None) -> None:
    """out[t] = table[1] where t stands behind the first `separator` of its row, else table[0]: the two texts of a pair.

    out: [T, W]; table: [S, W]; ids: int32 [T]; row_offsets: int32 [R + 1], from 0 to T. Without a separator one segment will do.
    """
    expect_format("out", out, 2)
    expect_dimensions("table", table, 2)
    expect_dimensions("row_offsets", row_offsets, 1)
    tokens, width = out.shape
    if table.shape[0] < (1 if separator is None else 2):
        raise refuse("table", f"of {table.shape[0]} rows", "1 and more, and 2 and more with a separator")
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("table", table, out.dtype, (table.shape[0], width), out.device)
    expect("ids", ids, torch.int32, (tokens,), out.device)
    expect("row_offsets", row_offsets, torch.int32, (row_offsets.shape[0],), out.device)
    _kernels(out.device).embed_segments(out, table, ids, row_offsets, separator)


def pool_rows(out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: Pooling) -> None:
    """out[d] = the row of x that the token at[d] stands in, as one vector: its "first" or "last" token, or the "mean" of all.

    out: [D, W], of x's format or float32; x: [T, W]; row_offsets: int32 [R + 1], from 0 to T; at: int32 [D].
    A mean is summed in float32, token by token in their order.
    """
    expect_format("x", x, 2)
    expect_dimensions("row_offsets", row_offsets, 1)
    expect_dimensions("at", at, 1)
    out_dtype = torch.float32 if out.dtype is torch.float32 else x.dtype
    expect("out", out, out_dtype, (at.shape[0], x.shape[1]), x.device)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    expect("row_offsets", row_offsets, torch.int32, (row_offsets.shape[0],), x.device)
    expect("at", at, torch.int32, (at.shape[0],), x.device)
    if pooling not in POOLINGS:
        raise refuse("pooling", pooling, ", ".join(POOLINGS))
    _kernels(x.device).pool_rows(out, x, row_offsets, at, pooling)


def rms_norm(out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """out[t] = x[t] / sqrt(mean(x[t]²) + eps) · gain.   out, x: [T, W], the same tensor or apart; gain: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    expect("gain", gain, torch.float32, shape[1:], out.device)
    _kernels(out.device).rms_norm(out, x, gain, eps)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """residual += x, rounded; out = rms_norm(residual).   out, residual, x: [T, W]; gain: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("residual", residual, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    expect("gain", gain, torch.float32, shape[1:], out.device)
    _kernels(out.device).add_rms_norm(out, residual, x, gain, eps)


def layer_norm(out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int | None = None) -> None:
    """out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) · gain + bias.   out, x: [T, W], apart; gain, bias: float32 [W].

    `group`: so many neighbouring columns, a divisor of W, are normed by themselves, instead of all together.
    """
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    _expect_affine(gain, bias, out)
    group = shape[1] if group is None else group
    if group < 1 or shape[1] % group:
        raise refuse("group", group, f"a divisor of the width {shape[1]}")
    _kernels(out.device).layer_norm(out, x, gain, bias, eps, group)


def add_layer_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> None:
    """residual += x, rounded; out = layer_norm(residual).   out, residual, x: [T, W]; gain, bias: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("residual", residual, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    _expect_affine(gain, bias, out)
    _kernels(out.device).add_layer_norm(out, residual, x, gain, bias, eps)


def _expect_affine(gain: Tensor, bias: Tensor | None, out: Tensor) -> None:
    expect("gain", gain, torch.float32, (out.shape[1],), out.device)
    if bias is not None:
        expect("bias", bias, torch.float32, (out.shape[1],), out.device)


def pack(weight: Tensor | Sequence[Tensor], dtype: torch.dtype | None = None) -> PackedWeight:
    """Weights [N, K], one above the other, as `linear` reads them: on a CPU a copy in a layout of its own, made with all
    threads straight from where they lie; on a GPU one tensor. `dtype` is what they are rounded to: None is the first's own."""
    parts = _parts(weight)
    return _kernels(parts[0].device).pack(parts, dtype or parts[0].dtype)


def quantize(weight: Tensor | Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight:
    """As `pack`, rounded to codes on the way; `dtype` is that of the activations. On CPUs."""
    parts = _parts(weight)
    return _kernels(parts[0].device).quantize(parts, dtype, scheme)


def pack_codes(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    dtype: torch.dtype,
    scheme: Scheme,
) -> PackedWeight:
    """A weight that was quantised before: (codes - zeros) · scales. On CPUs.

    codes: uint8 [N, K]; scales: float32 [N, groups]; zeros: uint8 [N, groups], or None: the middle code;
    order: int32 [K], the activation that each code along K meets, or None: they stand in order.
    """
    expect_dimensions("codes", codes, 2)
    columns, depth = codes.shape
    groups = -(-depth // (scheme.group or depth)) if depth else 0
    if 0 in codes.shape:
        raise refuse("codes", (columns, depth), "a matrix that is not empty")
    expect("codes", codes, torch.uint8, (columns, depth), codes.device)
    expect("scales", scales, torch.float32, (columns, groups), codes.device)
    if zeros is not None:
        expect("zeros", zeros, torch.uint8, (columns, groups), codes.device)
    if order is not None:
        expect("order", order, torch.int32, (depth,), codes.device)
    return _kernels(codes.device).pack_codes(codes, scales, zeros, order, dtype, scheme)


def _parts(weight: Tensor | Sequence[Tensor]) -> list[Tensor]:
    parts = [weight] if isinstance(weight, Tensor) else list(weight)
    for part in parts:
        expect_dimensions("weight", part, 2)
        if part.dtype not in STORED:
            raise refuse("weight", part.dtype, ", ".join(map(str, STORED)))
        if 0 in part.shape:
            raise refuse("weight", tuple(part.shape), "a matrix that is not empty")
        expect("weight", part, part.dtype, (part.shape[0], parts[0].shape[1]), parts[0].device)
    return parts


def linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    """out = x · weightᵀ (+ bias), summed in float32, rounded once.   out: [T, N]; x: [T, K]; bias: [N]."""
    _linear(out, x, weight, bias, weight.dtype)


def linear_f32(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    """`linear` with a float32 result, whatever the weight's format: for logits."""
    _linear(out, x, weight, bias, torch.float32)


def _linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None, out_dtype: torch.dtype) -> None:
    expect_format("x", x, 2)
    tokens = x.shape[0]
    expect("x", x, weight.dtype, (tokens, weight.depth), weight.device)
    expect("out", out, out_dtype, (tokens, weight.columns), weight.device)
    if bias is not None:
        expect("bias", bias, weight.dtype, (weight.columns,), weight.device)
    _kernels(weight.device).linear(out, x, weight, bias)


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = silu(gate) · up.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    _kernels(out.device).silu_mul(out, gate_up)


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = gelu(gate) · up, with the tanh form of gelu.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    _kernels(out.device).gelu_mul(out, gate_up)


def gelu_erf_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = gate · Φ(gate) · up.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    _kernels(out.device).gelu_erf_mul(out, gate_up)


def _expect_gated(out: Tensor, gate_up: Tensor) -> None:
    expect_format("out", out, 2)
    tokens, width = out.shape
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("gate_up", gate_up, out.dtype, (tokens, 2 * width), out.device)


def activate(x: Tensor, function: Function) -> None:
    """x = function(x), in place, rounded: "silu", "gelu_tanh" (its tanh form), "gelu_erf" (x · Φ(x)), "relu" or "tanh".   x: [T, F]."""
    expect_format("x", x, 2)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    if function not in FUNCTIONS:
        raise refuse("function", function, ", ".join(FUNCTIONS))
    _kernels(x.device).activate(x, function)


def add(residual: Tensor, x: Tensor) -> None:
    """residual += x, rounded.   Both [T, W], apart."""
    expect_format("residual", residual, 2)
    shape = (residual.shape[0], residual.shape[1])
    expect("residual", residual, residual.dtype, shape, residual.device)
    expect("x", x, residual.dtype, shape, residual.device)
    _kernels(residual.device).add(residual, x)


def scale(x: Tensor, factor: float) -> None:
    """x *= factor, rounded.   x: [T, W]."""
    expect_format("x", x, 2)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    _kernels(x.device).scale(x, factor)


def soft_cap(x: Tensor, cap: float) -> None:
    """x = cap · tanh(x / cap), in place: for logits.   x: float32 [T, V]; cap > 0."""
    expect_dimensions("x", x, 2)
    expect("x", x, torch.float32, (x.shape[0], x.shape[1]), x.device)
    if not cap > 0:
        raise refuse("cap", cap, "a number above 0")
    _kernels(x.device).soft_cap(x, cap)


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_slots: Tensor,
    is_interleaved: bool = False,
) -> None:
    """Rotates q and k in place and writes k and v into the cache.

    Of the R columns that are turned, column i is turned with i + R/2; or, if `is_interleaved`, column 2i with 2i + 1.

    q: [T, H, D]; k, v: [T, KH, D]; cos_sin: float32 [P, R], cosines then sines, R even and at most D;
    positions: int32 [T]; caches: [blocks, KH, block_size, D]; kv_slots: int64 [T], block · block_size + place.

    Caches of int8, on CPUs, are [blocks, KH, block_size, D + 4]: of each token's head codes, and their scale (`reference.codes_of`).
    """
    expect_format("q", q, 3)
    expect_dimensions("k_cache", k_cache, 4)
    expect_dimensions("cos_sin", cos_sin, 2)
    tokens, heads, dim = q.shape
    blocks, kv_heads, block_size, _ = k_cache.shape
    rotated = cos_sin.shape[1]
    if not 0 < rotated <= dim or rotated % 2:
        raise refuse("cos_sin", f"{rotated} wide", f"an even number up to {dim}")
    expect("q", q, q.dtype, (tokens, heads, dim), q.device)
    expect("k", k, q.dtype, (tokens, kv_heads, dim), q.device)
    expect("v", v, q.dtype, (tokens, kv_heads, dim), q.device)
    expect("cos_sin", cos_sin, torch.float32, (cos_sin.shape[0], rotated), q.device)
    expect("positions", positions, torch.int32, (tokens,), q.device)
    format, width = cache_format(k_cache, q.dtype), cache_width(dim, k_cache)
    expect("k_cache", k_cache, format, (blocks, kv_heads, block_size, width), q.device)
    expect("v_cache", v_cache, format, (blocks, kv_heads, block_size, width), q.device)
    expect("kv_slots", kv_slots, torch.int64, (tokens,), q.device)
    _kernels(q.device).rope_kv_write(q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots, is_interleaved)


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
    _kernels(out.device).paged_attention(
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
    _kernels(k_cache.device).copy_blocks(k_cache, v_cache, from_blocks, to_blocks, tokens)


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
    _kernels(device).save_blocks(host, caches, blocks, host_blocks)


def load_blocks(caches: Sequence[Caches], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
    """Host block host_blocks[i] goes to block blocks[i], each named once, of every layer: what `save_blocks` undoes."""
    device = _expect_host(host, caches, blocks, host_blocks)
    _kernels(device).load_blocks(caches, host, host_blocks, blocks)


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
    masks: Tensor | None = None,
    mask_of: Tensor | None = None,
) -> None:
    """Draws one token per row, each row as if it were alone; see `reference.sample` for the exact order of things.

    out_tokens, out_flags: int32 [R]; out_chosen: float32 [R]; out_top_ids, out_top_logprobs: [R, K];
    logits: float32 [R, V]; params: int32 [S, 24] (`admit`); slots, positions (of the tokens drawn): int32 [R];
    counts: int32 [S, V] or None; bias_ids, bias_values: [S, B]; suppressed: int32 [S, U]. K, B and U may be 0.
    masks: int32 [M, ceil(V / 32)], a bit per token, lowest first; mask_of: int32 [R], which mask a row is drawn within, or below
    0. None: no row has one.
    """
    expect_dimensions("logits", logits, 2)
    expect_dimensions("out_top_ids", out_top_ids, 2)
    expect_dimensions("params", params, 2)
    expect_dimensions("bias_ids", bias_ids, 2)
    expect_dimensions("suppressed", suppressed, 2)
    rows, vocabulary = logits.shape
    count, device = params.shape[0], logits.device
    if vocabulary == 0:
        raise refuse("logits", "empty", "a vocabulary of at least one token")
    expect("out_tokens", out_tokens, torch.int32, (rows,), device)
    expect("out_flags", out_flags, torch.int32, (rows,), device)
    expect("out_chosen", out_chosen, torch.float32, (rows,), device)
    expect("out_top_ids", out_top_ids, torch.int32, (rows, out_top_ids.shape[1]), device)
    expect("out_top_logprobs", out_top_logprobs, torch.float32, (rows, out_top_ids.shape[1]), device)
    expect("logits", logits, torch.float32, (rows, vocabulary), device)
    expect("params", params, torch.int32, (count, admit.WORDS), device)
    expect("slots", slots, torch.int32, (rows,), device)
    expect("positions", positions, torch.int32, (rows,), device)
    if counts is not None:
        expect("counts", counts, torch.int32, (count, vocabulary), device)
    expect("bias_ids", bias_ids, torch.int32, (count, bias_ids.shape[1]), device)
    expect("bias_values", bias_values, torch.float32, (count, bias_ids.shape[1]), device)
    expect("suppressed", suppressed, torch.int32, (count, suppressed.shape[1]), device)
    width = -(-vocabulary // 32)
    if masks is None:
        masks = torch.zeros(0, width, dtype=torch.int32, device=device)
    if mask_of is None:
        mask_of = torch.full((rows,), -1, dtype=torch.int32, device=device)
    expect_dimensions("masks", masks, 2)
    expect("masks", masks, torch.int32, (masks.shape[0], width), device)
    expect("mask_of", mask_of, torch.int32, (rows,), device)
    _kernels(device).sample(
        out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, params, slots, positions,
        counts, bias_ids, bias_values, suppressed, masks, mask_of,
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
    """How likely each row's given token was by the raw logits, and which ones were likeliest.

    out_ranks, out_flags: int32 [R]; out_chosen: float32 [R]; out_top_ids, out_top_logprobs: [R, K]; logits: float32 [R, V];
    given: int32 [R]; wanted: int32 [R], how many of the likeliest are asked for, at most K. A rank is counted from 1, of equals
    the lower id comes first; what was not asked for is zero, and so is all of a row that is not finite, but for its flag.
    """
    expect_dimensions("logits", logits, 2)
    expect_dimensions("out_top_ids", out_top_ids, 2)
    (rows, vocabulary), device, top = logits.shape, logits.device, out_top_ids.shape[1]
    if vocabulary == 0:
        raise refuse("logits", "empty", "a vocabulary of at least one token")
    expect("out_ranks", out_ranks, torch.int32, (rows,), device)
    expect("out_flags", out_flags, torch.int32, (rows,), device)
    expect("out_chosen", out_chosen, torch.float32, (rows,), device)
    expect("out_top_ids", out_top_ids, torch.int32, (rows, top), device)
    expect("out_top_logprobs", out_top_logprobs, torch.float32, (rows, top), device)
    expect("logits", logits, torch.float32, (rows, vocabulary), device)
    expect("given", given, torch.int32, (rows,), device)
    expect("wanted", wanted, torch.int32, (rows,), device)
    _kernels(device).score(
        out_ranks, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, given, wanted
    )  # fmt: skip
