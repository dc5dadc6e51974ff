"""Attention over paged KV, and what a sight may be."""

from __future__ import annotations

import itertools
from typing import Any, Final

import torch
from pelton_kernels import ops, reference
from timing import Bench
from torch import Tensor

LAYERS: Final = 28  # of Qwen3-0.6B


def attention(bench: Bench) -> None:
    s = bench.sizes
    shapes = [
        (s.heads, s.kv_heads, s.dim),
        (s.heads, s.kv_heads, s.dim // 2),
        (s.heads, s.kv_heads // 2, s.dim // 4),  # 4 queries for each key
    ]
    for heads, kv_heads, dim in shapes:
        for name, rows, count, before in (
            ("attention decode", 1, 1, s.context),
            ("attention decode", 8, 1, s.context),
            ("attention decode, int8", 1, 1, s.context),
            ("attention decode, int8", 8, 1, s.context),
            ("attention warm", 1, 32, s.context),
            ("attention prefill", 1, s.prefill, 0),
            ("attention prefill, int8", 1, s.prefill, 0),
            ("attention prefill", 1, s.context, 0),
        ):
            attend(bench, name, (heads, kv_heads, dim), rows, count, before)
    sights: dict[str, dict[str, Any]] = {
        "window": {"window": s.prefill // 4},
        "soft cap": {"soft_cap": 50.0},
        "sinks": {"sinks": torch.randn(s.heads)},
        "slopes": {"slopes": torch.rand(s.heads)},
        "both sides": {"is_whole": True},
    }
    for word, sight in sights.items():
        if not sight.get("is_whole"):
            attend(bench, f"attention decode, {word}", shapes[0], 8, 1, s.context, sight)
        attend(bench, f"attention prefill, {word}", shapes[0], 1, s.prefill, 0, sight)


def attend(
    bench: Bench,
    name: str,
    shape: tuple[int, int, int],
    rows: int,
    count: int,
    before: int,
    sight: dict[str, Any] | None = None,
) -> None:
    if bench.only not in name:
        return
    sight = sight or {}
    heads, kv_heads, dim = shape
    known = before + count
    used = -(-known // 32)
    k_cache, v_cache = (torch.randn(rows * used, kv_heads, 32, dim).to(bench.dtype) for _ in range(2))
    if "int8" in name:
        k_cache, v_cache = reference.codes_of(k_cache), reference.codes_of(v_cache)
    table = torch.randperm(rows * used).int().view(rows, used)
    offsets = torch.arange(0, rows * count + 1, count, dtype=torch.int32)
    starts = torch.full((rows,), before, dtype=torch.int32)
    q = torch.randn(rows * count, heads, dim).to(bench.dtype)
    out = torch.empty_like(q)

    # A step of decode meets each layer's keys once, from memory: by the next turn others have taken their place in the caches.
    count_of_layers = LAYERS if count == 1 else 1
    layers = itertools.cycle([(k_cache.clone(), v_cache.clone()) for _ in range(count_of_layers)])

    def call() -> Tensor:
        k, v = next(layers)
        ops.paged_attention(out, q, k, v, table, offsets, starts, dim**-0.5, **sight)
        return out

    text = f"{rows} x {count} after {before}, {heads}/{kv_heads} x {dim}"
    window = sight.get("window", known)
    if count == 1:
        seen = min(known, window)
        bench.measure(name, text, call, nbytes=2 * rows * seen * kv_heads * k_cache.shape[3] * k_cache.itemsize)
    else:
        pairs = rows * sum(min(at, window) for at in range(before + 1, known + 1))
        if sight.get("is_whole"):
            pairs = rows * known**2
        bench.measure(name, text, call, flops=4 * heads * dim * pairs)
