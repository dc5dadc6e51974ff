"""The KV arena: blocks of keys and values, one pair of tensors per layer.

Never here: who holds a block. The router decides that; here blocks are memory.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's KV takes, and how tokens are grouped."""

    layers: int
    heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block in all layers."""
        return 2 * self.layers * self.heads * self.head_dim * self.block_size * self.dtype.itemsize


class KvArena:
    """Keys and values by layer, each [blocks, heads, block size, head dim]."""

    def __init__(self, shape: KvShape, blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.blocks = blocks
        memory = _allocate(shape, blocks, device)
        sizes = (shape.layers, 2, blocks, shape.heads, shape.block_size, shape.head_dim)
        self.layers = [(keys, values) for keys, values in memory.view(sizes)]

    def save(self, host: Tensor, blocks: Tensor, host_blocks: Tensor) -> None:
        """Block `blocks[i]` to host block `host_blocks[i]`. Both int32 [saves], in the host's memory."""
        ops.save_blocks(host, self.layers, blocks, host_blocks)

    def load(self, host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
        """Host block `host_blocks[i]` to block `blocks[i]`. Both int32 [loads], in the host's memory."""
        ops.load_blocks(self.layers, host, host_blocks, blocks)

    def copy(self, source: Tensor, target: Tensor, tokens: Tensor) -> None:
        """The first `tokens[i]` tokens of block `source[i]` to block `target[i]`, in order. All int32 [copies]."""
        for keys, values in self.layers:
            ops.copy_blocks(keys, values, source, target, tokens)


def _allocate(shape: KvShape, blocks: int, device: torch.device) -> Tensor:
    """All of it in one piece. Nothing is read that no step wrote, so a card's memory is left as it is.

    A CPU's is touched now, in huge pages where there are some: else a server would grow for hours, block by block, and
    meet the machine's limit when it is busiest.
    """
    size = blocks * shape.block_bytes
    if device.type != "cpu":
        return torch.empty(size // shape.dtype.itemsize, dtype=shape.dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=shape.dtype).zero_()
