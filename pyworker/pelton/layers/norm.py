"""Norms, by the root of the mean square or by mean and spread: over the residual stream, what is added to it, and heads."""

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


class LayerNorm(Leaf):
    """norm(x) = (x - mean(x)) / √(variance(x) + eps) · gain + bias, in float32 whatever x is. `heads`: each so wide, normed by itself, with a row of gains for each."""

    gain: Tensor
    bias: Tensor | None

    def __init__(self, width: int, eps: float, has_bias: bool, heads: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        self.has_bias = has_bias
        self.heads = heads

    def wants(self) -> list[Wanted]:
        shape = (self.width,) if self.heads is None else (self.heads, self.width)
        return [Wanted(0, kind, shape) for kind in (("weight", "bias") if self.has_bias else ("weight",))]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.gain = stacked(tensors[:1], torch.float32, device).flatten()
        self.bias = stacked(tensors[1:], torch.float32, device).flatten() if self.has_bias else None

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width], or [tokens, heads, width]
        out = torch.empty_like(x)
        ops.layer_norm(out.flatten(1), x.flatten(1), self.gain, self.bias, self.eps, self.width)
        return out


class ResidualLayerNorm(LayerNorm):
    """residual += x; x = norm(residual)"""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # [tokens, width] both
        out = torch.empty_like(x)
        ops.add_layer_norm(out, residual, x, self.gain, self.bias, self.eps)
        return out, residual


class ResidualSum(nn.Module):
    """residual += x; x = residual: where a model norms what it adds, not what it reads."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        ops.add(residual, x)
        return residual, residual
