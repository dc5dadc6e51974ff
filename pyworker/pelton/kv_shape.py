"""Blocks of KV in numbers: which kinds of layers there are, and what a block takes. Without torch.

Never here: which layer is of which kind, memory.
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Kind:
    """Some layers that share block tables. `window`: how many tokens they see, the latest included; None: all."""

    window: int | None


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's KV takes, and how tokens are grouped. `layers`: those of one kind."""

    layers: int
    heads: int
    head_dim: int
    block_size: int
    dtype: str
    kinds: tuple[Kind, ...] = (Kind(None),)

    @property
    def element_bytes(self) -> int:
        """Of one number."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def layer_bytes(self) -> int:
        """Keys of one block in one layer; values take as much."""
        return self.heads * self.head_dim * self.block_size * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Keys and values of one block in all layers of a kind."""
        return 2 * self.layers * self.layer_bytes

    @property
    def parts(self) -> int:
        """Equal parts of all blocks' memory, each with the first block at its beginning: keys, or values, of a layer."""
        return 2 * self.layers

    def blocks_for(self, tokens: int) -> int:
        """The most blocks that a request of so many tokens holds: of a window as many as it may touch. As the core counts them."""
        places = -(-tokens // self.block_size)
        return sum(
            places if kind.window is None else min(places, 1 - (-(kind.window - 1) // self.block_size))
            for kind in self.kinds
        )
