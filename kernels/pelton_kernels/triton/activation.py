"""What stands between the products of an MLP: SiLU or GELU (in both its forms) of one half times the other; or a function alone."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pelton_kernels.triton.math import tanh
from pelton_kernels.triton.overlap import begin_kernel, overlapped


@triton.jit
def _gate_mul(out, gate_up, width, BLOCK: tl.constexpr, FUNCTION: tl.constexpr, OVERLAPS: tl.constexpr):
    """out[t] = act(gate[t]) · up[t], gate_up[t] = gate then up.   Grid: tokens × pieces of BLOCK columns; pure streaming.

    0 and 1 are x / (1 + e^-s): s is x for SiLU, 2 √(2/π) (x + 0.044715 x³) for GELU's tanh form; 2: GELU with erf.
    """
    begin_kernel(OVERLAPS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    token = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + token * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    if FUNCTION == 2:
        value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        power = gate
        if FUNCTION == 1:
            power = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
        value = gate / (1.0 + tl.exp(-power))
    tl.store(out + token * width + column, value * up, mask=inside)


@triton.jit
def _activate(x, count, BLOCK: tl.constexpr, FUNCTION: tl.constexpr, OVERLAPS: tl.constexpr):
    """x = function(x).   Grid: pieces of BLOCK elements; pure streaming. 0: SiLU, 1 and 2: GELU with tanh and erf, 3: ReLU, 4: tanh."""
    begin_kernel(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if FUNCTION == 0:
        value = value / (1.0 + tl.exp(-value))
    elif FUNCTION == 1:
        value = value / (1.0 + tl.exp(-1.5957691216057308 * value * (1.0 + 0.044715 * value * value)))
    elif FUNCTION == 2:
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    elif FUNCTION == 3:
        value = tl.maximum(value, 0.0)
    else:
        value = tanh(value)
    tl.store(x + at, value, mask=inside)


def activate(x: Tensor, function: str) -> None:
    """See `ops.activate`."""
    count = x.numel()
    if count:
        number = ("silu", "gelu_tanh", "gelu_erf", "relu", "tanh").index(function)
        _activate[(triton.cdiv(count, 1024),)](
            x, count, BLOCK=1024, FUNCTION=number, num_warps=4, **overlapped(x.device)
        )


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.silu_mul`."""
    _launch(out, gate_up, 0)


def gelu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.gelu_mul`."""
    _launch(out, gate_up, 1)


def gelu_erf_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.gelu_erf_mul`."""
    _launch(out, gate_up, 2)


def _launch(out: Tensor, gate_up: Tensor, function: int) -> None:
    tokens, width = out.shape
    block = min(triton.next_power_of_2(width), 1024)
    if tokens:
        _gate_mul[(tokens, triton.cdiv(width, block))](
            out, gate_up, width, BLOCK=block, FUNCTION=function, num_warps=4, **overlapped(out.device)
        )
