"""What every op asks of its tensors before a kernel sees them: the same words for every device."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = (torch.float32, torch.bfloat16)
SCALE_BYTES = 4
"""What stands behind the codes of a token's head in a cache of int8: their scale, a float32."""


def expect(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuses a tensor that is of another format or shape, lies elsewhere, or is strided."""
    _expect_place(name, tensor, dtype, shape, device)
    if not tensor.is_contiguous():
        raise ValueError(f"`{name}` has the strides {tensor.stride()}; allowed: a contiguous tensor")


def _expect_place(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"`{name}` is {_name(tensor.dtype)}; allowed: {_name(dtype)}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"`{name}` has the shape {tuple(tensor.shape)}; allowed: {shape}")
    if tensor.device != device:
        raise ValueError(f"`{name}` lies on {tensor.device}; allowed: {device}, like the first tensor")


def expect_heads(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, int, int], device: torch.device
) -> None:
    """As `expect`, of [tokens, heads, columns] that may be a part of a larger tensor: a head's columns lie together."""
    _expect_place(name, tensor, dtype, shape, device)
    if tensor.stride(2) != 1:
        raise ValueError(f"`{name}` has the strides {tensor.stride()}; allowed: heads whose columns lie together")


def expect_format(name: str, tensor: Tensor, dimensions: int, formats: tuple[torch.dtype, ...] = FORMATS) -> None:
    """Refuses an op's leading tensor unless it is in a storage format and has this many dimensions."""
    if tensor.dtype not in formats:
        raise ValueError(f"`{name}` is {_name(tensor.dtype)}; allowed: {', '.join(map(_name, formats))}")
    expect_dimensions(name, tensor, dimensions)


def expect_dimensions(name: str, tensor: Tensor, dimensions: int) -> None:
    """Refuses a tensor of another number of dimensions, so that its shape can be taken apart."""
    if tensor.dim() != dimensions:
        raise ValueError(f"`{name}` has the shape {tuple(tensor.shape)}; allowed: {dimensions} dimensions")


def refuse(name: str, got: object, allowed: str) -> ValueError:
    """The error for a value out of range."""
    return ValueError(f"`{name}` is {got}; allowed: {allowed}")


def cache_width(dim: int, cache: Tensor) -> int:
    """Columns of a cache for heads of `dim` numbers."""
    return dim + SCALE_BYTES if cache.dtype is torch.int8 else dim


def head_dim(cache: Tensor) -> int:
    """Numbers of a head in a cache of four dimensions."""
    return cache.shape[3] - SCALE_BYTES if cache.dtype is torch.int8 else cache.shape[3]


def cache_format(cache: Tensor, dtype: torch.dtype) -> torch.dtype:
    """What a cache for activations of `dtype` is expected to be: the same or, on a CPU, codes."""
    return torch.int8 if cache.dtype is torch.int8 and cache.device.type == "cpu" else dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
