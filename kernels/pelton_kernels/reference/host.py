"""Whole blocks between the caches of all layers and host memory, uint8 [host blocks, bytes].

A block in host memory is its pieces one after the other: keys of layer 0, values of layer 0, keys of layer 1 ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Caches = tuple[Tensor, Tensor]


def _pieces(host: Tensor, caches: Sequence[Caches], host_block: int, block: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each piece twice: where it lies in host memory, and in its cache."""
    offset = 0
    for cache in (cache for pair in caches for cache in pair):
        piece = cache[block].flatten().view(torch.uint8)
        yield host[host_block, offset : offset + len(piece)], piece
        offset += len(piece)


def save_blocks(host: Tensor, caches: Sequence[Caches], blocks: Tensor, host_blocks: Tensor) -> None:
    """Copies block after block to host memory."""
    for block, host_block in zip(blocks.tolist(), host_blocks.tolist(), strict=True):
        for saved, piece in _pieces(host, caches, host_block, block):
            saved.copy_(piece)


def load_blocks(caches: Sequence[Caches], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None:
    """Copies block after block back."""
    for block, host_block in zip(blocks.tolist(), host_blocks.tolist(), strict=True):
        for saved, piece in _pieces(host, caches, host_block, block):
            piece.copy_(saved)
