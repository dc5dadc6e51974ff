"""A weight matrix as one device's linear kernel reads it, and how it may be quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pelton_kernels import _native


@dataclass(frozen=True)
class Scheme:
    """Weights of 4 or 8 bits, rounded to nearest or as a checkpoint has them."""

    bits: Literal[4, 8]
    group: int
    """How many neighbours along K share a scale: a multiple of 8; 0: a whole column."""
    activations: Literal["int8", "float"]
    """What the codes are multiplied with: activations rounded to 8 bits, a scale for each row and group, or as they are."""

    @property
    def zero(self) -> int:
        """The code that stands for 0 where a weight brings no zero points."""
        return 1 << (self.bits - 1)

    def words(self) -> tuple[int, int, str]:
        """As Rust takes it."""
        return self.bits, self.group, self.activations


@dataclass(frozen=True)
class PackedWeight:
    """`[columns, depth]`, opaque: only `ops.linear` and `ops.embed_packed` look inside. `dtype` is that of the activations it multiplies."""

    device: torch.device
    dtype: torch.dtype
    columns: int
    depth: int
    data: Tensor | _native.PackedWeight

    @property
    def nbytes(self) -> int:
        """How much memory it takes on its device."""
        return self.data.nbytes
