"""How a checkpoint holds the weights of a matrix product, and how they are packed. `Plain` is the usual way; others are in
`pelton.quantization`.

Never here: which layer is stored how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from pelton_kernels import ops
from pelton_kernels.ops import PackedWeight, Scheme
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PANEL = 64  # columns that a packed weight is filled up to


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor of a weight: its name behind the layer's, its shape, and what it may be stored as.

    `absent`: the number that it is full of where the checkpoint leaves it out; None: it has to be there.
    """

    kind: str
    shape: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    absent: int | None = None


class Storage(Protocol):
    """One way of holding a weight of `height` rows and `width` columns."""

    @property
    def scheme(self) -> Scheme | None:
        """How it is multiplied, if it is quantised."""

    def keeps(self, height: int, width: int) -> list[Kept]:
        """The tensors of one weight."""

    def pack(self, parts: list[dict[str, Tensor]], dtype: torch.dtype, device: torch.device) -> PackedWeight:
        """Weights one above the other, each by the kinds of its tensors, which are only lent."""

    def bytes(self, height: int, width: int, dtype: torch.dtype) -> int:
        """What it takes when it is packed, at most."""


class Plain:
    """Floats, kept as floats."""

    scheme: Scheme | None = None

    def keeps(self, height: int, width: int) -> list[Kept]:
        return [Kept("weight", (height, width))]

    def pack(self, parts: list[dict[str, Tensor]], dtype: torch.dtype, device: torch.device) -> PackedWeight:
        return ops.pack(lent(parts, device), dtype)

    def bytes(self, height: int, width: int, dtype: torch.dtype) -> int:
        return math.ceil(height / PANEL) * PANEL * width * dtype.itemsize


class Rounded:
    """Floats, rounded to codes while they are packed."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    def keeps(self, height: int, width: int) -> list[Kept]:
        return Plain().keeps(height, width)

    def pack(self, parts: list[dict[str, Tensor]], dtype: torch.dtype, device: torch.device) -> PackedWeight:
        return ops.quantize(lent(parts, device), dtype, self.scheme)

    def bytes(self, height: int, width: int, dtype: torch.dtype) -> int:
        return coded_bytes(self.scheme, height, width, has_zeros=False)


def lent(parts: list[dict[str, Tensor]], device: torch.device) -> list[Tensor]:
    """The weights as kernels take them: on a CPU where they lie, in whatever format."""
    weights = [part["weight"] for part in parts]
    return [(weight.float() if weight.dtype is torch.float64 else weight).to(device) for weight in weights]


def coded_bytes(scheme: Scheme, height: int, width: int, has_zeros: bool) -> int:
    """Codes, and a scale (and a zero point) for each group, with columns and groups filled up."""
    group = scheme.group or math.ceil(width / 8) * 8
    groups = math.ceil(width / group) if scheme.group else math.ceil(width / 2048)
    codes = math.ceil(width / group) * group * scheme.bits // 8
    return math.ceil(height / PANEL) * PANEL * (codes + groups * (8 if has_zeros else 4))
