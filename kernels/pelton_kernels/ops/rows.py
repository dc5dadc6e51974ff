"""Ops that take each token's numbers by themselves: embeddings, norms, gates, sums."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from pelton_kernels.checks import expect, expect_dimensions, expect_format, refuse
from pelton_kernels.ops.dispatch import Function, Pooling, kernels
from pelton_kernels.packed import PackedWeight

FUNCTIONS = get_args(Function)
POOLINGS = get_args(Pooling)


def embed(out: Tensor, table: Tensor, ids: Tensor) -> None:
    """out[t] = table[ids[t]].   out: [T, W]; table: [V, W]; ids: int32 [T]."""
    expect_format("out", out, 2)
    expect_dimensions("table", table, 2)
    tokens, width = out.shape
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("table", table, out.dtype, (table.shape[0], width), out.device)
    expect("ids", ids, torch.int32, (tokens,), out.device)
    kernels(out.device).embed(out, table, ids)


def embed_packed(out: Tensor, table: PackedWeight, ids: Tensor, scale: float = 1.0) -> None:
    """out[t] = table[ids[t]] · scale, where the table was packed as a head's weight, and is not quantised.

    out: [T, W]; table: [V, W]; ids: int32 [T]. The product is rounded to `out`'s format, and so is the scale before it.
    """
    expect_format("out", out, 2)
    expect("out", out, table.dtype, (out.shape[0], table.depth), table.device)
    expect("ids", ids, torch.int32, (out.shape[0],), out.device)
    kernels(out.device).embed_packed(out, table, ids, scale)


def embed_segments(out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None) -> None:
    """out[t] = table[1] where t stands behind the first `separator` of its row, else table[0]: the two texts of a pair.

    out: [T, W]; table: [S, W]; ids: int32 [T]; row_offsets: int32 [R + 1], from 0 to T. Without a separator one segment will do.
    """
    expect_format("out", out, 2)
    expect_dimensions("table", table, 2)
    expect_dimensions("row_offsets", row_offsets, 1)
    tokens, width = out.shape
    if table.shape[0] < (1 if separator is None else 2):
        raise refuse("table", f"of {table.shape[0]} rows", "1 and more, and 2 and more with a separator")
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("table", table, out.dtype, (table.shape[0], width), out.device)
    expect("ids", ids, torch.int32, (tokens,), out.device)
    expect("row_offsets", row_offsets, torch.int32, (row_offsets.shape[0],), out.device)
    kernels(out.device).embed_segments(out, table, ids, row_offsets, separator)


def pool_rows(out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: Pooling) -> None:
    """out[d] = the row of x that the token at[d] stands in, as one vector: its "first" or "last" token, or the "mean" of all.

    out: [D, W], of x's format or float32; x: [T, W]; row_offsets: int32 [R + 1], from 0 to T; at: int32 [D].
    A mean is summed in float32, token by token in their order.
    """
    expect_format("x", x, 2)
    expect_dimensions("row_offsets", row_offsets, 1)
    expect_dimensions("at", at, 1)
    out_dtype = torch.float32 if out.dtype is torch.float32 else x.dtype
    expect("out", out, out_dtype, (at.shape[0], x.shape[1]), x.device)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    expect("row_offsets", row_offsets, torch.int32, (row_offsets.shape[0],), x.device)
    expect("at", at, torch.int32, (at.shape[0],), x.device)
    if pooling not in POOLINGS:
        raise refuse("pooling", pooling, ", ".join(POOLINGS))
    kernels(x.device).pool_rows(out, x, row_offsets, at, pooling)


def rms_norm(out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """out[t] = x[t] / sqrt(mean(x[t]²) + eps) · gain.   out, x: [T, W], the same tensor or apart; gain: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    expect("gain", gain, torch.float32, shape[1:], out.device)
    kernels(out.device).rms_norm(out, x, gain, eps)


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """residual += x, rounded; out = rms_norm(residual).   out, residual, x: [T, W]; gain: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("residual", residual, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    expect("gain", gain, torch.float32, shape[1:], out.device)
    kernels(out.device).add_rms_norm(out, residual, x, gain, eps)


def layer_norm(out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int | None = None) -> None:
    """out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) · gain + bias.   out, x: [T, W], apart; gain, bias: float32 [W].

    `group`: so many neighbouring columns, a divisor of W, are normed by themselves, instead of all together.
    """
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    _expect_affine(gain, bias, out)
    group = shape[1] if group is None else group
    if group < 1 or shape[1] % group:
        raise refuse("group", group, f"a divisor of the width {shape[1]}")
    kernels(out.device).layer_norm(out, x, gain, bias, eps, group)


def add_layer_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> None:
    """residual += x, rounded; out = layer_norm(residual).   out, residual, x: [T, W]; gain, bias: float32 [W]."""
    expect_format("out", out, 2)
    shape = (out.shape[0], out.shape[1])
    expect("out", out, out.dtype, shape, out.device)
    expect("residual", residual, out.dtype, shape, out.device)
    expect("x", x, out.dtype, shape, out.device)
    _expect_affine(gain, bias, out)
    kernels(out.device).add_layer_norm(out, residual, x, gain, bias, eps)


def _expect_affine(gain: Tensor, bias: Tensor | None, out: Tensor) -> None:
    expect("gain", gain, torch.float32, (out.shape[1],), out.device)
    if bias is not None:
        expect("bias", bias, torch.float32, (out.shape[1],), out.device)


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = silu(gate) · up.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    kernels(out.device).silu_mul(out, gate_up)


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = gelu(gate) · up, with the tanh form of gelu.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    kernels(out.device).gelu_mul(out, gate_up)


def gelu_erf_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = gate · Φ(gate) · up.   out: [T, F]; gate_up: [T, 2F], gate first."""
    _expect_gated(out, gate_up)
    kernels(out.device).gelu_erf_mul(out, gate_up)


def _expect_gated(out: Tensor, gate_up: Tensor) -> None:
    expect_format("out", out, 2)
    tokens, width = out.shape
    expect("out", out, out.dtype, (tokens, width), out.device)
    expect("gate_up", gate_up, out.dtype, (tokens, 2 * width), out.device)


def activate(x: Tensor, function: Function) -> None:
    """x = function(x), in place, rounded: "silu", "gelu_tanh" (its tanh form), "gelu_erf" (x · Φ(x)), "relu" or "tanh".   x: [T, F]."""
    expect_format("x", x, 2)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    if function not in FUNCTIONS:
        raise refuse("function", function, ", ".join(FUNCTIONS))
    kernels(x.device).activate(x, function)


def add(residual: Tensor, x: Tensor) -> None:
    """residual += x, rounded.   Both [T, W], apart."""
    expect_format("residual", residual, 2)
    shape = (residual.shape[0], residual.shape[1])
    expect("residual", residual, residual.dtype, shape, residual.device)
    expect("x", x, residual.dtype, shape, residual.device)
    kernels(residual.device).add(residual, x)


def scale(x: Tensor, factor: float) -> None:
    """x *= factor, rounded.   x: [T, W]."""
    expect_format("x", x, 2)
    expect("x", x, x.dtype, (x.shape[0], x.shape[1]), x.device)
    kernels(x.device).scale(x, factor)


def soft_cap(x: Tensor, cap: float) -> None:
    """x = cap · tanh(x / cap), in place: for logits.   x: float32 [T, V]; cap > 0."""
    expect_dimensions("x", x, 2)
    expect("x", x, torch.float32, (x.shape[0], x.shape[1]), x.device)
    if not cap > 0:
        raise refuse("cap", cap, "a number above 0")
    kernels(x.device).soft_cap(x, cap)
