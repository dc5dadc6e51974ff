"""A weight matrix as one device's linear kernel reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pelton_kernels import _native


@dataclass(frozen=True)
class PackedWeight:
    """`[columns, depth]`, opaque: only `ops.linear` looks inside."""

    device: torch.device
    dtype: torch.dtype
    columns: int
    depth: int
    data: Tensor | _native.PackedWeight

    @property
    def nbytes(self) -> int:
        """How much memory it takes on its device."""
        return self.data.nbytes
