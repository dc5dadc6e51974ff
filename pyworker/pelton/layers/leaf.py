"""What a layer with weights tells the loader, and how it takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pelton.layers.storage import FLOATS


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tensor that a leaf needs: the `kind` of the `part`th of its names in the checkpoint."""

    part: int
    kind: str
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS  # that it may be stored as
    absent: int | None = None  # what it is full of where it is left out; None: it has to be there


class Leaf(nn.Module):
    """A layer that holds weights."""

    def wants(self) -> list[Wanted]:
        """The tensors it needs, in the order in which `take` expects them."""
        raise NotImplementedError

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """Keeps copies of `tensors`, which are only lent, in `dtype` on `device`."""
        raise NotImplementedError

    def held_bytes(self, dtype: torch.dtype) -> int:
        """What it keeps takes."""
        return sum(math.prod(want.shape) for want in self.wants()) * dtype.itemsize


def stacked(tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of the tensors one above the other."""
    rows = sum(tensor.shape[0] for tensor in tensors)
    out = torch.empty((rows, *tensors[0].shape[1:]), dtype=dtype, device=device)
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.shape[0]
        out[begin:end].copy_(tensor)
    return out
