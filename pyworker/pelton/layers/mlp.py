"""The gated feed-forward layer."""

from __future__ import annotations

from typing import Literal

from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.linear import Linear

Activation = Literal["silu", "gelu"]


class GatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)), with gate and up in one product. "gelu" is its tanh form."""

    def __init__(
        self, width: int, inner: int, has_bias: bool, activation: Activation = "silu", is_fused: bool = False
    ) -> None:
        super().__init__()
        self.gate_up = Linear(width, [inner, inner], has_bias, is_fused)
        self.down = Linear(inner, [width], has_bias)
        self.gate = {"silu": ops.silu_mul, "gelu": ops.gelu_mul}[activation]

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width]
        gate_up = self.gate_up(x)
        inner = x.new_empty(x.shape[0], gate_up.shape[1] // 2)
        self.gate(inner, gate_up)
        out: Tensor = self.down(inner)
        return out
