"""Root-mean-square norms: over the residual stream, and over the heads of q and k."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor

from pelton.layers.leaf import Leaf, Wanted, stacked


class RmsNorm(Leaf):
    """norm(x) = x / √(mean(x²) + eps) · gain"""

    gain: Tensor

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.width = width
        self.eps = eps

    def wants(self) -> list[Wanted]:
        return [Wanted(0, "weight", (self.width,))]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.gain = stacked(tensors, dtype, device)


class ResidualNorm(RmsNorm):
    """residual += x; x = norm(residual)"""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        out = torch.empty_like(x)
        ops.add_rms_norm(out, residual, x, self.gain, self.eps)
        return out, residual


class HeadNorm(RmsNorm):
    """Each head by itself, all with one gain."""

    def forward(self, x: Tensor) -> Tensor:  # [tokens, heads, width]
        out = torch.empty_like(x)
        ops.rms_norm(out.view(-1, self.width), x.view(-1, self.width), self.gain, self.eps)
        return out
