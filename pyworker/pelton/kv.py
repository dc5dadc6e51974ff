"""The KV arena: blocks of keys and values, one pair of tensors per layer.

Never here: who holds a block. The router decides that; here blocks are memory.
"""

from __future__ import annotations

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
        size = (blocks, shape.heads, shape.block_size, shape.head_dim)

        # Not cleared: nothing is read that no step wrote, and on a CPU an unused block's pages take no memory.
        def fresh() -> Tensor:
            return torch.empty(size, dtype=shape.dtype, device=device)

        self.layers = [(fresh(), fresh()) for _ in range(shape.layers)]

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
