"""What every op asks of its tensors before a kernel sees them: the same words for every device."""

from __future__ import annotations

import torch
from torch import Tensor

FORMATS = (torch.float32, torch.bfloat16)


def expect(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuses a tensor that is of another format or shape, lies elsewhere, or is strided."""
    if tensor.dtype != dtype:
        raise ValueError(f"`{name}` is {_name(tensor.dtype)}; allowed: {_name(dtype)}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"`{name}` has the shape {tuple(tensor.shape)}; allowed: {shape}")
    if tensor.device != device:
        raise ValueError(f"`{name}` lies on {tensor.device}; allowed: {device}, like the first tensor")
    if not tensor.is_contiguous():
        raise ValueError(f"`{name}` has the strides {tensor.stride()}; allowed: a contiguous tensor")


def expect_format(name: str, tensor: Tensor, dimensions: int) -> None:
    """Refuses an op's leading tensor unless it is in a storage format and has this many dimensions."""
    if tensor.dtype not in FORMATS:
        raise ValueError(f"`{name}` is {_name(tensor.dtype)}; allowed: {', '.join(map(_name, FORMATS))}")
    expect_dimensions(name, tensor, dimensions)


def expect_dimensions(name: str, tensor: Tensor, dimensions: int) -> None:
    """Refuses a tensor of another number of dimensions, so that its shape can be taken apart."""
    if tensor.dim() != dimensions:
        raise ValueError(f"`{name}` has the shape {tuple(tensor.shape)}; allowed: {dimensions} dimensions")


def refuse(name: str, got: object, allowed: str) -> ValueError:
    """The error for a value out of range."""
    return ValueError(f"`{name}` is {got}; allowed: {allowed}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
