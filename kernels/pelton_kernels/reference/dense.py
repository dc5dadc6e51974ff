"""Ops on a token by itself: embedding, norms, linear layers, the gate of the MLP."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    scale = torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps)
    return (row * scale * wide(gain)).to(x.dtype)


def add_rms_norm(residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(residual + x), residual + x), the sum being rounded first."""
    total = (wide(residual) + wide(x)).to(residual.dtype)
    return rms_norm(total, gain, eps), total


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int | None = None) -> Tensor:
    """(x - mean(x)) / sqrt(variance(x) + eps) · gain + bias, over groups of so many columns.   x: [T, W]; gain, bias: [W]."""
    size = group or x.shape[1]
    row = wide(x).view(x.shape[0], x.shape[1] // size, size)
    off = row - row.mean(dim=2, keepdim=True)
    scale = torch.rsqrt(off.square().mean(dim=2, keepdim=True) + eps)
    normed = (off * scale).flatten(1) * wide(gain)
    return (normed if bias is None else normed + wide(bias)).to(x.dtype)


def add_layer_norm(residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """(layer_norm(residual + x), residual + x), the sum being rounded first."""
    total = (wide(residual) + wide(x)).to(residual.dtype)
    return layer_norm(total, gain, bias, eps), total


def linear_f32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, not rounded to the format of `x`.   x: [T, K]; weight: [N, K]; bias: [N]."""
    product = wide(x) @ wide(weight).T
    return product if bias is None else product + wide(bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias."""
    return linear_f32(x, weight, bias).to(x.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up.   gate_up: [T, 2F], gate first; result: [T, F]."""
    gate, up = wide(gate_up).chunk(2, dim=1)
    return (_silu(gate) * up).to(gate_up.dtype)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) · up, with the tanh form of gelu.   gate_up: [T, 2F], gate first; result: [T, F]."""
    gate, up = wide(gate_up).chunk(2, dim=1)
    return (_gelu_tanh(gate) * up).to(gate_up.dtype)


def gelu_erf_mul(gate_up: Tensor) -> Tensor:
    """gate · Φ(gate) · up.   gate_up: [T, 2F], gate first; result: [T, F]."""
    gate, up = wide(gate_up).chunk(2, dim=1)
    return (_gelu_erf(gate) * up).to(gate_up.dtype)


def activate(x: Tensor, function: str) -> Tensor:
    """function(x), element by element."""
    return FUNCTIONS[function](wide(x)).to(x.dtype)


def _silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x)"""
    return x / (1 + torch.exp(-x))


def _gelu_tanh(x: Tensor) -> Tensor:
    """x / 2 · (1 + tanh(u)) with u = √(2/π) · (x + 0.044715 x³).

    As x · sigmoid(2u), which is the same: 1 + tanh(u) would lose all bits where u is below -18, even in float64.
    """
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + torch.exp(-2 * u))


def _gelu_erf(x: Tensor) -> Tensor:
    """x · Φ(x), Φ being that of the normal distribution: erfc(-x / √2) / 2, which keeps the bits of the left tail."""
    phi: Tensor = torch.special.erfc(-x / math.sqrt(2)) / 2
    return x * phi


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


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
