"""What a step does to each token outside of products and attention."""

from __future__ import annotations

from functools import partial

import torch
from pelton_kernels import ops
from timing import Bench
from torch import Tensor


def elementwise(bench: Bench) -> None:
    s = bench.sizes
    for tokens in (1, 16, s.prefill):
        x, residual, gate_up = (torch.randn(tokens, width).to(bench.dtype) for width in (s.width, s.width, 2 * s.inner))
        gain, size = torch.ones(s.width), bench.dtype.itemsize
        out, gated = torch.empty_like(x), torch.empty(tokens, s.inner, dtype=bench.dtype)

        def norm(out: Tensor = out, residual: Tensor = residual, x: Tensor = x, gain: Tensor = gain) -> Tensor:
            for _ in range(20):
                ops.add_rms_norm(out, residual, x, gain, 1e-6)
            return out

        def gate(gated: Tensor = gated, gate_up: Tensor = gate_up) -> Tensor:
            for _ in range(20):
                ops.silu_mul(gated, gate_up)
            return gated

        bias, first = torch.zeros(s.width), torch.randn(tokens, s.inner).to(bench.dtype)
        plain = first.clone()

        def layer(
            out: Tensor = out, residual: Tensor = residual, x: Tensor = x, gain: Tensor = gain, bias: Tensor = bias
        ) -> Tensor:
            for _ in range(20):
                ops.add_layer_norm(out, residual, x, gain, bias, 1e-5)
            return out

        def activate(plain: Tensor = plain) -> Tensor:
            for _ in range(20):
                ops.activate(plain, "gelu_erf")
            return plain

        nbytes = 4 * tokens * s.width * size
        bench.measure("add_rms_norm", f"[{tokens}, {s.width}]", norm, nbytes=nbytes, calls=20)
        bench.measure("add_layer_norm", f"[{tokens}, {s.width}]", layer, nbytes=nbytes, calls=20)
        bench.measure("gelu_erf", f"[{tokens}, {s.inner}]", activate, nbytes=2 * tokens * s.inner * size, calls=20,
            before=partial(plain.copy_, first),  # in place again and again it becomes less than a normal number, which computes slowly
        )  # fmt: skip
        bench.measure("silu_mul", f"[{tokens}, {s.inner}]", gate, nbytes=3 * tokens * s.inner * size, calls=20)


def tokens(bench: Bench) -> None:
    """Embedding, plain norms, and rotation with the write of KV."""
    s, size = bench.sizes, bench.dtype.itemsize
    table, gain = torch.randn(s.vocabulary // 4, s.width).to(bench.dtype), torch.ones(s.width)
    angles = torch.rand(s.context, s.dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    norm = ops.HeadNorm(torch.ones(s.dim), torch.ones(s.dim), 1e-6)
    for tokens in (1, 16, s.prefill):
        positions = torch.arange(tokens, dtype=torch.int32)
        ids = torch.randint(0, len(table), (tokens,), dtype=torch.int32)
        x, out = torch.randn(tokens, s.width).to(bench.dtype), torch.empty(tokens, s.width, dtype=bench.dtype)
        q, k, v = (
            torch.randn(tokens, s.heads + 2 * s.kv_heads, s.dim)
            .to(bench.dtype)
            .split([s.heads, s.kv_heads, s.kv_heads], dim=1)
        )
        turned, at = torch.empty(tokens, s.heads, s.dim, dtype=bench.dtype), torch.arange(tokens)
        caches = [torch.zeros(-(-tokens // 32), s.kv_heads, 32, s.dim, dtype=bench.dtype) for _ in range(2)]

        def embed(out: Tensor = out, ids: Tensor = ids) -> Tensor:
            for _ in range(20):
                ops.embed(out, table, ids)
            return out

        def rms_norm(out: Tensor = out, x: Tensor = x) -> Tensor:
            for _ in range(20):
                ops.rms_norm(out, x, gain, 1e-6)
            return out

        def turn(
            turned: Tensor = turned, q: Tensor = q, k: Tensor = k, v: Tensor = v, at: Tensor = at, caches: list[Tensor] = caches,
            positions: Tensor = positions,
        ) -> Tensor:  # fmt: skip
            for _ in range(20):
                ops.rope_kv_write(turned, q, k, v, cos_sin, positions, *caches, at, norm=norm)
            return turned

        row = tokens * s.width * size
        bench.measure("embed", f"[{tokens}, {s.width}]", embed, nbytes=2 * row, calls=20)
        bench.measure("rms_norm", f"[{tokens}, {s.width}]", rms_norm, nbytes=2 * row, calls=20)
        nbytes = 2 * tokens * (s.heads + 2 * s.kv_heads) * s.dim * size
        heads = f"[{tokens}, {s.heads} + 2 x {s.kv_heads}, {s.dim}]"
        bench.measure("rope_kv_write, normed", heads, turn, nbytes=nbytes, calls=20)
