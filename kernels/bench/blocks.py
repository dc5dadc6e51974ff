"""Blocks of KV that move: within a cache, and between it and the host's memory."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from timing import Bench
from torch import Tensor

LAYERS = 8
BLOCK = 32
NAMES = "copy_blocks", "save_blocks", "load_blocks"


def blocks(bench: Bench) -> None:
    """Half of all blocks go to the other half, or to the host and back; none of it fits into a second-level cache. Bytes: read and written."""
    if not any(bench.only in name for name in NAMES):
        return  # it takes memory
    s = bench.sizes
    block_bytes = s.kv_heads * BLOCK * s.dim * bench.dtype.itemsize
    count = max(2, s.weight_bytes // (2 * LAYERS * block_bytes))
    caches = [
        tuple(torch.randn(2 * count, s.kv_heads, BLOCK, s.dim).to(bench.dtype) for _ in range(2)) for _ in range(LAYERS)
    ]
    first, second = torch.arange(count, dtype=torch.int32), torch.arange(count, 2 * count, dtype=torch.int32)
    tokens = torch.full((count,), BLOCK, dtype=torch.int32)
    host = torch.zeros(count, 2 * LAYERS * block_bytes, dtype=torch.uint8)

    def copy() -> Tensor:
        for keys, values in caches:
            ops.copy_blocks(keys, values, first, second, tokens)
        return caches[0][0]

    def save() -> Tensor:
        ops.save_blocks(host, caches, first, first)
        return host

    def load() -> Tensor:
        ops.load_blocks(caches, host, first, second)
        return caches[0][0]

    shape = f"{count} x {2 * LAYERS} x [{s.kv_heads}, {BLOCK}, {s.dim}]"
    for name, call in zip(NAMES, (copy, save, load), strict=True):
        bench.measure(name, shape, call, nbytes=2 * host.nbytes)
