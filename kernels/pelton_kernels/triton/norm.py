"""RMSNorm, alone and with the residual added first."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.overlap import begin_kernel, overlapped


@triton.jit
def _rms_norm(out, x, gain, width, eps, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """out[t] = x[t] / sqrt(mean(x[t]²) + eps) · gain.   One program per token; x, out: [tokens, width].

    Sums are fp32 and within one program: a row's result is the same alone and in any batch.
    """
    begin_kernel(OVERLAPS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row) / width + eps)
    weight = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, row * scale * weight, mask=inside)


@triton.jit
def _add_rms_norm(out, residual, x, gain, width, eps, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """residual += x; out = rms_norm(residual).   One program per token; one read and one write of the residual stream."""
    begin_kernel(OVERLAPS)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = tl.program_id(0).to(tl.int64) * width + column
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32) + added
    rounded = row.to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=inside)
    row = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row) / width + eps)
    weight = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, row * scale * weight, mask=inside)


def warps(block: int) -> int:
    """How many of them share a row of so many columns."""
    return min(max(block // 1024, 1), 8)


def rms_norm(out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """See `ops.rms_norm`."""
    tokens, width = x.shape
    block = triton.next_power_of_2(width)
    if tokens:
        _rms_norm[(tokens,)](out, x, gain, width, eps, BLOCK=block, num_warps=warps(block), **overlapped(x.device))


def add_rms_norm(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """See `ops.add_rms_norm`."""
    tokens, width = x.shape
    block = triton.next_power_of_2(width)
    if tokens:
        _add_rms_norm[(tokens,)](
            out, residual, x, gain, width, eps, BLOCK=block, num_warps=warps(block), **overlapped(x.device)
        )
