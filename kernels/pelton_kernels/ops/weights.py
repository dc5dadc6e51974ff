"""Weights as `linear` reads them, and `linear`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pelton_kernels.checks import expect, expect_dimensions, expect_format, refuse
from pelton_kernels.ops.dispatch import kernels
from pelton_kernels.packed import PackedWeight, Scheme

STORED = (torch.float32, torch.bfloat16, torch.float16)  # what weights may lie in before they are packed


def pack(weight: Tensor | Sequence[Tensor], dtype: torch.dtype | None = None) -> PackedWeight:
    """Weights [N, K], one above the other, as `linear` reads them: on a CPU a copy in a layout of its own, made with all
    threads straight from where they lie; on a GPU one tensor. `dtype` is what they are rounded to: None is the first's own."""
    parts = _parts(weight)
    return kernels(parts[0].device).pack(parts, dtype or parts[0].dtype)


def quantize(weight: Tensor | Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight:
    """As `pack`, rounded to codes on the way; `dtype` is that of the activations. On CPUs."""
    parts = _parts(weight)
    return kernels(parts[0].device).quantize(parts, dtype, scheme)


def pack_codes(
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    dtype: torch.dtype,
    scheme: Scheme,
) -> PackedWeight:
    """A weight that was quantised before: (codes - zeros) · scales. On CPUs.

    codes: uint8 [N, K]; scales: float32 [N, groups]; zeros: uint8 [N, groups], or None: the middle code;
    order: int32 [K], the activation that each code along K meets, or None: they stand in order.
    """
    expect_dimensions("codes", codes, 2)
    columns, depth = codes.shape
    groups = -(-depth // (scheme.group or depth)) if depth else 0
    if 0 in codes.shape:
        raise refuse("codes", (columns, depth), "a matrix that is not empty")
    expect("codes", codes, torch.uint8, (columns, depth), codes.device)
    expect("scales", scales, torch.float32, (columns, groups), codes.device)
    if zeros is not None:
        expect("zeros", zeros, torch.uint8, (columns, groups), codes.device)
    if order is not None:
        expect("order", order, torch.int32, (depth,), codes.device)
    return kernels(codes.device).pack_codes(codes, scales, zeros, order, dtype, scheme)


def _parts(weight: Tensor | Sequence[Tensor]) -> list[Tensor]:
    parts = [weight] if isinstance(weight, Tensor) else list(weight)
    for part in parts:
        expect_dimensions("weight", part, 2)
        if part.dtype not in STORED:
            raise refuse("weight", part.dtype, ", ".join(map(str, STORED)))
        if 0 in part.shape:
            raise refuse("weight", tuple(part.shape), "a matrix that is not empty")
        expect("weight", part, part.dtype, (part.shape[0], parts[0].shape[1]), parts[0].device)
    return parts


def linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    """out = x · weightᵀ (+ bias), summed in float32, rounded once.   out: [T, N]; x: [T, K]; bias: [N].

    On cards weights may be read while the kernel before still runs: it must not be the one that writes them.
    """
    _linear(out, x, weight, bias, weight.dtype)


def linear_f32(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    """`linear` with a float32 result, whatever the weight's format: for logits."""
    _linear(out, x, weight, bias, torch.float32)


def _linear(out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None, out_dtype: torch.dtype) -> None:
    expect_format("x", x, 2)
    tokens = x.shape[0]
    expect("x", x, weight.dtype, (tokens, weight.depth), weight.device)
    expect("out", out, out_dtype, (tokens, weight.columns), weight.device)
    if bias is not None:
        expect("bias", bias, weight.dtype, (weight.columns,), weight.device)
    kernels(weight.device).linear(out, x, weight, bias)
