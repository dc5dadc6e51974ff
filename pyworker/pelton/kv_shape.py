"""Blocks of KV in numbers: which kinds of layers there are, and what a block takes. Without torch.

Never here: which layer is of which kind, memory.
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
SCALE_BYTES = 4  # behind the codes of a token's head


@dataclass(frozen=True, slots=True)
class Kind:
    """Some layers that share block tables. `window`: how many tokens they see, the latest included; None: all."""

    window: int | None


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token's KV takes, and how tokens are grouped. `layers`: those of one kind; `dtype`: of activations, and of keys and
    values unless `has_codes`: then these are int8 with a scale for each token and head."""

    layers: int
    heads: int
    head_dim: int
    block_size: int
    dtype: str
    kinds: tuple[Kind, ...] = (Kind(None),)
    has_codes: bool = False

    @property
    def element_bytes(self) -> int:
        """Of one activation."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def cache_dtype(self) -> str:
        """Of an arena's tensors."""
        return "int8" if self.has_codes else self.dtype

    @property
    def cache_width(self) -> int:
        """Elements of a token's head there."""
        return self.head_dim + SCALE_BYTES if self.has_codes else self.head_dim

    @property
    def cache_bytes(self) -> int:
        """Of one such element."""
        return 1 if self.has_codes else self.element_bytes

    @property
    def numerics(self) -> str:
        """A suffix that names what keys and values are rounded to, empty where they are as computed."""
        return "-kv-int8" if self.has_codes else ""

    @property
    def layer_bytes(self) -> int:
        """Keys of one block in one layer; values take as much."""
        return self.heads * self.cache_width * self.block_size * self.cache_bytes

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
