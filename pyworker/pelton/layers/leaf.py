"""What a layer with weights tells the loader, and how it takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tensor that a leaf needs: the `kind` of the `part`th of its names in the checkpoint."""

    part: int
    kind: Literal["weight", "bias"]
    shape: tuple[int, ...]


class Leaf(nn.Module):
    """A layer that holds weights."""

    def wants(self) -> list[Wanted]:
        """The tensors it needs, in the order in which `take` expects them."""
        raise NotImplementedError

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """Keeps copies of `tensors`, which are only lent, in `dtype` on `device`."""
        raise NotImplementedError


def stacked(tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of the tensors one above the other."""
    rows = sum(tensor.shape[0] for tensor in tensors)
    out = torch.empty((rows, *tensors[0].shape[1:]), dtype=dtype, device=device)
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.shape[0]
        out[begin:end].copy_(tensor)
    return out
