"""Root-mean-square norms: over the residual stream, over what is added to it, and over the heads of q and k."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.leaf import Leaf, Wanted, stacked


class RmsNorm(Leaf):
    """norm(x) = x / √(mean(x²) + eps) · gain, the gain being `offset` + weight, in float32 whatever x is."""

    gain: Tensor

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        self.offset = offset

    def wants(self) -> list[Wanted]:
        return [Wanted(0, "weight", (self.width,))]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.gain = stacked(tensors, torch.float32, device).add_(self.offset)

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width]; or heads of that width, each by itself
        out = torch.empty_like(x)
        ops.rms_norm(out.view(-1, self.width), x.view(-1, self.width), self.gain, self.eps)
        return out


class ResidualNorm(RmsNorm):
    """residual += x; x = norm(residual)"""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # [tokens, width] both
        out = torch.empty_like(x)
        ops.add_rms_norm(out, residual, x, self.gain, self.eps)
        return out, residual


class ResidualSum(nn.Module):
    """residual += x; x = residual: where a model norms what it adds, not what it reads."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        ops.add(residual, x)
        return residual, residual
