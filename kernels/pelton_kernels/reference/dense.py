"""Ops on a token by itself: embedding, norms, linear layers, the gate of the MLP."""

from __future__ import annotations

import math

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


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gate / 2 · (1 + tanh(u)) · up with u = √(2/π) · (gate + 0.044715 gate³).   gate_up: [T, 2F], gate first; result: [T, F].

    As gate · sigmoid(2u) · up, which is the same: 1 + tanh(u) would lose all bits where u is below -18, even in float64.
    """
    gate, up = wide(gate_up).chunk(2, dim=1)
    u = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (gate / (1 + torch.exp(-2 * u)) * up).to(gate_up.dtype)


def add(residual: Tensor, x: Tensor) -> Tensor:
    """residual + x."""
    return (wide(residual) + wide(x)).to(residual.dtype)


def scale(x: Tensor, factor: float) -> Tensor:
    """x · factor."""
    return (wide(x) * factor).to(x.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap)."""
    return cap * torch.tanh(x / cap)


def rounded(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """(codes, scales) of a weight [N, K], to nearest: uint8 [N, K], float32 [N, groups]; `group` 0 is a whole column.

    8 bits: the largest magnitude of a group becomes ±127. 4 bits: the value of the largest magnitude becomes -8.
    """
    codes, scales = [], []
    for part in _groups(weight.float(), group):
        extreme = part.gather(1, part.abs().argmax(dim=1, keepdim=True))
        scale = extreme.abs() / 127.0 if bits == 8 else extreme / -8.0
        inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
        least, most = (-127, 127) if bits == 8 else (-8, 7)
        codes.append((part * inverse).round().clamp(least, most) + (1 << (bits - 1)))
        scales.append(scale)
    return torch.cat(codes, dim=1).to(torch.uint8), torch.cat(scales, dim=1)


def linear_codes_f32(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor,
    group: int,
    rounds_activations: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """x · ((codes - zeros) · scales)ᵀ + bias, with x rounded to 8 bits by row and group first, or as it is.

    x: [T, K]; codes: [N, K]; scales, zeros: [N, groups]; bias: [N]. In float64 if x is.
    """
    row = wide(x)
    out = row.new_zeros(x.shape[0], codes.shape[0])
    for at, (part, coded) in enumerate(zip(_groups(row, group), _groups(codes, group), strict=True)):
        unit = torch.ones_like(part[:, :1])
        if rounds_activations:
            single = part.float()  # the activations as the kernel sees them, also where sums are in float64
            scale = single.abs().amax(dim=1, keepdim=True) / 127.0
            part = (single * torch.where(scale == 0, 0.0, 1.0 / scale)).round().to(row.dtype)
            unit = scale.to(row.dtype)
        product = part @ (coded.to(row.dtype) - zeros[:, at : at + 1].to(row.dtype)).T
        out += product * unit * scales[:, at].to(row.dtype)
    return out if bias is None else out + wide(bias)


def _groups(rows: Tensor, group: int) -> list[Tensor]:
    """Pieces along K of so many columns; 0: all in one."""
    size = group or rows.shape[1]
    return [rows[:, at : at + size] for at in range(0, rows.shape[1], size)]
