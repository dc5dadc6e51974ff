"""Keys and values as codes of 8 bits: int8 [..., D + 4], the codes of a head and behind them their scale, a float32."""

from __future__ import annotations

import torch
from torch import Tensor

from pelton_kernels.checks import SCALE_BYTES
from pelton_kernels.reference.dense import wide

CODE_MAX = 127


def codes_of(x: Tensor) -> Tensor:
    """x: [..., D]. scale = max |x| / 127, codes = x / scale, to nearest even. Where x is not finite, the scale is NaN."""
    x = x.float()
    scale = x.abs().amax(dim=-1, keepdim=True) / CODE_MAX
    scale = torch.where(x.isfinite().all(dim=-1, keepdim=True), scale, torch.nan)
    codes = (x / scale).round().clamp(-CODE_MAX, CODE_MAX).nan_to_num(0.0)
    codes = torch.where(scale == 0, 0.0, codes).to(torch.int8)
    return torch.cat([codes, scale.contiguous().view(torch.int8)], dim=-1)


def numbers_of(cache: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache means, [..., D]: its codes times their scales; of another format it is what it says."""
    if cache.dtype is not torch.int8:
        return wide(cache)
    scale = cache[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    return cache[..., :-SCALE_BYTES].to(dtype) * scale.to(dtype)
