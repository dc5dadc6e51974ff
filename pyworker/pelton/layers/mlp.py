"""The feed-forward layer, with a gate or without."""

from __future__ import annotations

from pelton_kernels import ops
from pelton_kernels.ops import Function
from torch import Tensor, nn

from pelton.layers.linear import Linear

GATES = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "gelu_erf": ops.gelu_erf_mul}


class GatedMlp(nn.Module):
    """down(act(gate(x)) · up(x)), with gate and up in one product."""

    def __init__(
        self, width: int, inner: int, has_bias: bool, activation: Function = "silu", is_fused: bool = False
    ) -> None:
        super().__init__()
        self.gate_up = Linear(width, [inner, inner], has_bias, is_fused)
        self.down = Linear(inner, [width], has_bias)
        self.gate = GATES[activation]

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width]
        gate_up = self.gate_up(x)
        inner = x.new_empty(x.shape[0], gate_up.shape[1] // 2)
        self.gate(inner, gate_up)
        out: Tensor = self.down(inner)
        return out


class PlainMlp(nn.Module):
    """down(act(up(x)))"""

    def __init__(
        self, width: int, inner: int, has_bias: bool, activation: Function, is_transposed: bool = False
    ) -> None:
        super().__init__()
        self.up = Linear(width, [inner], has_bias, is_transposed=is_transposed)
        self.down = Linear(inner, [width], has_bias, is_transposed=is_transposed)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width]
        inner = self.up(x)
        ops.activate(inner, self.activation)
        out: Tensor = self.down(inner)
        return out
