"""The gate of the MLP: SiLU of one half times the other."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _silu_mul(out, gate_up, width, BLOCK: tl.constexpr):
    """out[t] = silu(gate[t]) · up[t], gate_up[t] = gate then up.   Grid: tokens × pieces of BLOCK columns; pure streaming."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    token = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up + token * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """See `ops.silu_mul`."""
    tokens, width = out.shape
    block = min(triton.next_power_of_2(width), 1024)
    if tokens:
        _silu_mul[(tokens, triton.cdiv(width, block))](out, gate_up, width, BLOCK=block, num_warps=4)
