"""The KV arena: blocks of keys and values, one pair of tensors per layer of a kind; and which layers are of a kind.

Never here: who holds a block. The router decides that; here blocks are memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from pelton_kernels._native import ArenaBytes, RunningStep
from torch import Tensor

from pelton.kv_shape import Kind, KvShape

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}  # what the kernels compute in
CACHE_DTYPES = DTYPES | {"int8": torch.int8}  # and what keys and values may be kept as
KINDS_MAX = 16  # as many as the router's core knows
PADDING_MAX = 0.2  # of the layers with one window: what equal kinds may leave unused


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's KV lies: in the blocks of a kind, at one of the places that each block has for layers."""

    kind: int
    at: int


@dataclass(frozen=True, slots=True)
class Division:
    """A model's layers as kinds of equally many, so that blocks of all kinds take the same bytes."""

    kinds: tuple[Kind, ...]
    per_kind: int
    places: tuple[Place, ...]  # by layer

    @property
    def numerics(self) -> str:
        """A suffix that names what lies where in a block, empty for the plain case: blocks divided otherwise are others."""
        if self.kinds == (Kind(None),):
            return ""
        counted = Counter("full" if kind.window is None else f"w{kind.window}" for kind in self.kinds)
        return f"-{self.per_kind}x" + "+".join(f"{count}{sees}" for sees, count in counted.items())


def divide(windows: Sequence[int | None]) -> Division:
    """`windows`: of each layer.

    Layers that see the same are one sort. A kind has `per_kind` layers of one sort; the last kind of a sort may have
    fewer, and what it leaves is lost. The fewest kinds are taken with which full attention loses nothing and no window
    more than a fifth (Gemma 3 of 34 layers, 5 of them full: 1 kind of 5 and 6 kinds for 29 windows); if that would be
    too many, the least is lost.
    """
    sorts = {window: [layer for layer, own in enumerate(windows) if own == window] for window in windows}
    counts = [len(layers) for layers in sorts.values()]
    may_lose = [0 if window is None else PADDING_MAX * len(layers) for window, layers in sorts.items()]

    def kinds(per_kind: int) -> int:
        return sum(-(-count // per_kind) for count in counts)

    def lost(per_kind: int) -> int:
        return kinds(per_kind) * per_kind - len(windows)

    possible = [size for size in range(max(counts), 0, -1) if kinds(size) <= KINDS_MAX]
    frugal = [size for size in possible if all(-n % size <= most for n, most in zip(counts, may_lose, strict=True))]
    per_kind = frugal[0] if frugal else min(possible, key=lost)
    order = sorted(sorts, key=lambda window: (window is not None, window or 0))  # full attention first
    places: dict[int, Place] = {}
    all_kinds: list[Kind] = []
    for window in order:
        for number, layer in enumerate(sorts[window]):
            places[layer] = Place(len(all_kinds) + number // per_kind, number % per_kind)
        all_kinds += [Kind(window)] * -(-len(sorts[window]) // per_kind)
    return Division(tuple(all_kinds), per_kind, tuple(places[layer] for layer in range(len(windows))))


class KvArena:
    """Keys and values by layer of a kind, each [blocks, heads, block size, head dim], or as codes with their scales behind each head.

    Kinds have their layers in the same tensors, and blocks of their own there: a block is one kind's as long as it is held.
    """

    def __init__(self, shape: KvShape, blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.blocks = blocks
        self.memory, whole = _allocate(shape, blocks, device)
        sizes = (shape.layers, 2, blocks, shape.heads, shape.block_size, shape.cache_width)
        self.layers = [(keys, values) for keys, values in whole.view(sizes)]

    def step(self, appended: Iterable[int]) -> RunningStep | None:
        """A step begins that gives these blocks to requests; it ends when the result goes, which is to be held as long."""
        return None if self.memory is None else self.memory.step(max(appended, default=-1) + 1, self.blocks)

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


def _allocate(shape: KvShape, blocks: int, device: torch.device) -> tuple[ArenaBytes | None, Tensor]:
    """All of it in one piece. Nothing is read that no step wrote, so a card's memory is left as it is.

    A CPU's is taken from the machine in huge pages where there are some: at once what first requests need, and more ahead of what
    steps reach.
    """
    size, dtype = blocks * shape.block_bytes, CACHE_DTYPES[shape.cache_dtype]
    if device.type != "cpu":
        return None, torch.empty(size // dtype.itemsize, dtype=dtype, device=device)
    memory = ArenaBytes(size, shape.parts)
    return memory, torch.frombuffer(memory, dtype=dtype)
