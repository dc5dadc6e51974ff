"""LayerNorm, alone (also group by group) and with the residual added first."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.norm import warps
from pelton_kernels.triton.overlap import begin_kernel, overlapped


@triton.jit
def _normed(row, inside, width, eps):
    """In two passes over a row in registers: the variance as mean(x²) - mean(x)² would lose its bits where the mean is large."""
    off = tl.where(inside, row - tl.sum(row) / width, 0.0)
    return off * tl.rsqrt(tl.sum(off * off) / width + eps)


@triton.jit
def _layer_norm(
    out, x, gain, bias, groups, width, eps, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, OVERLAPS: tl.constexpr
):
    """out[t, g] = (x[t, g] - mean) / sqrt(variance + eps) · gain[g] + bias[g].   One program per token and group; out, x: [T, groups, width].

    Sums are fp32 and within one program: a row's result is the same alone and in any batch.
    """
    begin_kernel(OVERLAPS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    own = tl.program_id(0) % groups * width + column
    row = _normed(tl.load(x + at, mask=inside, other=0.0).to(tl.float32), inside, width, eps)
    row = row * tl.load(gain + own, mask=inside, other=0.0)
    if HAS_BIAS:
        row = row + tl.load(bias + own, mask=inside, other=0.0)
    tl.store(out + at, row, mask=inside)


@triton.jit
def _add_layer_norm(
    out, residual, x, gain, bias, width, eps, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, OVERLAPS: tl.constexpr
):
    """residual += x; out = layer_norm(residual).   One program per token; one read and one write of the residual stream."""
    begin_kernel(OVERLAPS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32) + added
    rounded = row.to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=inside)
    row = _normed(rounded.to(tl.float32), inside, width, eps)
    row = row * tl.load(gain + column, mask=inside, other=0.0)
    if HAS_BIAS:
        row = row + tl.load(bias + column, mask=inside, other=0.0)
    tl.store(out + at, row, mask=inside)


def layer_norm(out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int) -> None:
    """See `ops.layer_norm`."""
    tokens, width = x.shape
    block, groups = triton.next_power_of_2(group), width // group
    if tokens:
        _layer_norm[(tokens * groups,)](
            out, x, gain, gain if bias is None else bias, groups, group, eps,
            BLOCK=block, HAS_BIAS=bias is not None, num_warps=warps(block), **overlapped(x.device),
        )  # fmt: skip


def add_layer_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> None:
    """See `ops.add_layer_norm`."""
    tokens, width = x.shape
    block = triton.next_power_of_2(width)
    if tokens:
        _add_layer_norm[(tokens,)](
            out, residual, x, gain, gain if bias is None else bias, width, eps,
            BLOCK=block, HAS_BIAS=bias is not None, num_warps=warps(block), **overlapped(x.device),
        )  # fmt: skip
