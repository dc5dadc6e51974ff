"""The gated feed-forward layer."""

from __future__ import annotations

from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.linear import Linear


class GatedMlp(nn.Module):
    """down(silu(gate(x)) · up(x)), with gate and up in one product."""

    def __init__(self, width: int, inner: int, has_bias: bool) -> None:
        super().__init__()
        self.gate_up = Linear(width, [inner, inner], has_bias)
        self.down = Linear(inner, [width], has_bias)

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width]
        gate_up = self.gate_up(x)
        inner = x.new_empty(x.shape[0], gate_up.shape[1] // 2)
        ops.silu_mul(inner, gate_up)
        out: Tensor = self.down(inner)
        return out
