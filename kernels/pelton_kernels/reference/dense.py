"""Ops on a token by itself: embedding, norms, linear layers, the gate of the MLP."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """The format that `x` is computed in."""
    return x.float() if x.dtype is torch.bfloat16 else x


def embed(table: Tensor, ids: Tensor) -> Tensor:
    """table[ids].   table: [V, W]; ids: [T]; result: [T, W]."""
    return table[ids.long()]


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · gain.   x: [T, W]; gain: [W]."""
    row = wide(x)
    scale = torch.rsqrt(row.square().mean(dim=1, keepdim=True) + eps)
    return (row * scale * wide(gain)).to(x.dtype)


def add_rms_norm(residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(residual + x), residual + x), the sum being rounded first."""
    total = (wide(residual) + wide(x)).to(residual.dtype)
    return rms_norm(total, gain, eps), total


def linear_f32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, not rounded to the format of `x`.   x: [T, K]; weight: [N, K]; bias: [N]."""
    product = wide(x) @ wide(weight).T
    return product if bias is None else product + wide(bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias."""
    return linear_f32(x, weight, bias).to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate / (1 + e^-gate) · up.   gate_up: [T, 2F], gate first; result: [T, F]."""
    gate, up = wide(gate_up).chunk(2, dim=1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)
