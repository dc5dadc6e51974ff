"""What a step does to each token outside of products and attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from pelton_kernels import ops
from timing import Bench
from torch import Tensor

CALLS: Final = 20


def again(op: Callable[..., None], out: Tensor, *arguments: Any, **named: Any) -> Callable[[], Tensor]:
    """Calls the op so often, that the clock does not count."""

    def call() -> Tensor:
        for _ in range(CALLS):
            op(out, *arguments, **named)
        return out

    return call


def elementwise(bench: Bench) -> None:
    """Norms, sums, gates and functions. Bytes are those of what is read and written, each once."""
    s, size = bench.sizes, bench.dtype.itemsize
    gain, bias = torch.ones(s.width), torch.zeros(s.width)
    for tokens in (1, 16, s.prefill):
        x, residual, gate_up = (torch.randn(tokens, width).to(bench.dtype) for width in (s.width, s.width, 2 * s.inner))
        out, gated = torch.empty_like(x), torch.empty(tokens, s.inner, dtype=bench.dtype)
        measure = partial(bench.measure, calls=CALLS)
        shape, row = f"[{tokens}, {s.width}]", tokens * s.width * size
        measure("rms_norm", shape, again(ops.rms_norm, out, x, gain, 1e-6), nbytes=2 * row)
        measure("add_rms_norm", shape, again(ops.add_rms_norm, out, residual, x, gain, 1e-6), nbytes=4 * row)
        measure("layer_norm", shape, again(ops.layer_norm, out, x, gain, bias, 1e-5), nbytes=2 * row)
        measure("add_layer_norm", shape, again(ops.add_layer_norm, out, residual, x, gain, bias, 1e-5), nbytes=4 * row)
        measure("add", shape, again(ops.add, torch.zeros_like(x), x), nbytes=3 * row)
        measure("scale", shape, again(ops.scale, x.clone(), -1.0), nbytes=2 * row)
        shape, row = f"[{tokens}, {s.inner}]", tokens * s.inner * size
        for gate in (ops.silu_mul, ops.gelu_mul, ops.gelu_erf_mul):
            measure(gate.__name__, shape, again(gate, gated, gate_up), nbytes=3 * row)
        first = torch.randn(tokens, s.inner).to(bench.dtype)
        for function in ops.FUNCTIONS:
            # In place again and again it becomes less than a normal number, which computes slowly.
            plain = first.clone()
            before = partial(plain.copy_, first)
            measure(function, shape, again(ops.activate, plain, function), nbytes=2 * row, before=before)
    logits = torch.randn(8, s.vocabulary)
    bench.measure(
        "soft_cap", f"[8, {s.vocabulary}]", again(ops.soft_cap, logits, 30.0), nbytes=2 * logits.nbytes, calls=CALLS
    )


def tokens(bench: Bench) -> None:
    """Embeddings, and rotation with the write of KV."""
    s, size = bench.sizes, bench.dtype.itemsize
    table = torch.randn(s.vocabulary // 4, s.width).to(bench.dtype)
    packed, segments = ops.pack(table), table[:2].contiguous()
    angles = torch.rand(s.context, s.dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    norm = ops.HeadNorm(torch.ones(s.dim), torch.ones(s.dim), 1e-6)
    for tokens in (1, 16, s.prefill):
        measure = partial(bench.measure, calls=CALLS)
        positions, row_offsets = torch.arange(tokens, dtype=torch.int32), torch.tensor([0, tokens], dtype=torch.int32)
        ids = torch.randint(0, len(table), (tokens,), dtype=torch.int32)
        out = torch.empty(tokens, s.width, dtype=bench.dtype)
        q, k, v = (
            torch.randn(tokens, s.heads + 2 * s.kv_heads, s.dim)
            .to(bench.dtype)
            .split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        )
        turned, at = torch.empty(tokens, s.heads, s.dim, dtype=bench.dtype), torch.arange(tokens)
        caches = [torch.zeros(-(-tokens // 32), s.kv_heads, 32, s.dim, dtype=bench.dtype) for _ in range(2)]
        shape, row = f"[{tokens}, {s.width}]", tokens * s.width * size
        measure("embed", shape, again(ops.embed, out, table, ids), nbytes=2 * row)
        measure(
            "embed_packed",
            shape,
            again(ops.embed_packed, out, packed, ids),
            nbytes=row + tokens * packed.nbytes // len(table),
        )
        measure("embed_segments", shape, again(ops.embed_segments, out, segments, ids, row_offsets, 0), nbytes=row)
        nbytes = 2 * tokens * (s.heads + 2 * s.kv_heads) * s.dim * size
        heads = f"[{tokens}, {s.heads} + 2 x {s.kv_heads}, {s.dim}]"
        rotate = again(ops.rope_kv_write, turned, q, k, v, cos_sin, positions, *caches, at, norm=norm)
        measure("rope_kv_write, normed", heads, rotate, nbytes=nbytes)


def pooling(bench: Bench) -> None:
    """Eight texts as a vector each."""
    s, texts = bench.sizes, 8
    x, pooled = torch.randn(texts * s.prefill, s.width).to(bench.dtype), torch.empty(texts, s.width)
    row_offsets = torch.arange(0, len(x) + 1, s.prefill, dtype=torch.int32)
    last = row_offsets[1:] - 1
    mean = again(ops.pool_rows, pooled, x, row_offsets, last, "mean")
    bench.measure("pool_rows, mean", f"{texts} x [{s.prefill}, {s.width}]", mean, nbytes=x.nbytes, calls=CALLS)
