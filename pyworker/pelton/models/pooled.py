"""A model that gives one vector for each request: an encoder or a decoder without its head, then pooling, then a few layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.linear import Linear
from pelton.layers.norm import LayerNorm
from pelton.loading.pooling import Pooling
from pelton.models.decoder import Trunk
from pelton.models.encoder import Encoder
from pelton.step import Step


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """One layer behind the pooling, in numbers."""

    name: str  # its path is `head.` and this
    height: int
    has_bias: bool
    activation: ops.Function | None = None
    norm_eps: float | None = None  # None: it is not normed
    norm_bias: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What the trunk's rows become."""

    pooling: ops.Pooling
    layers: tuple[HeadLayer, ...]
    report: Pooling


class Layer(nn.Module):
    """norm(act(linear(x))), as far as there are such. The last one of a head gives float32."""

    def __init__(self, width: int, layer: HeadLayer, is_last: bool) -> None:
        super().__init__()
        self.linear = Linear(width, [layer.height], layer.has_bias)
        self.activation = layer.activation
        self.norm = None if layer.norm_eps is None else LayerNorm(layer.height, layer.norm_eps, layer.norm_bias)
        self.is_last = is_last

    def forward(self, x: Tensor) -> Tensor:  # [draws, width] -> [draws, height]
        if self.is_last:
            out = torch.empty(x.shape[0], self.linear.heights[0], dtype=torch.float32, device=x.device)
            ops.linear_f32(out, x, self.linear.weight, self.linear.bias)
        else:
            out = self.linear(x)
        if self.activation is not None:
            ops.activate(out, self.activation)
        return out if self.norm is None else self.norm(out)


class PooledModel(nn.Module):
    """Token ids to vectors."""

    def __init__(self, trunk: Encoder | Trunk, plan: Plan) -> None:
        super().__init__()
        self.trunk = trunk
        self.config = trunk.config
        self.pooling = plan.report
        self._how = plan.pooling
        self.head = nn.ModuleDict()
        width = trunk.config.width
        for layer in plan.layers:
            self.head[layer.name] = Layer(width, layer, is_last=layer is plan.layers[-1])
            width = layer.height

    def vectors(self, step: Step, drawn_at: Tensor) -> Tensor:
        """Computes the step; the vectors of the rows whose last tokens stand at `drawn_at` ([draws] int32): [draws, width] float32."""
        hidden = self.trunk(step)
        draws = drawn_at.shape[0]
        if draws == 0:  # of parts of prompts alone: for kernels there is no such step
            return torch.empty(0, self.pooling.width, device=hidden.device)
        dtype = hidden.dtype if self.head else torch.float32
        out = torch.empty(draws, hidden.shape[1], dtype=dtype, device=hidden.device)
        ops.pool_rows(out, hidden, step.row_offsets, drawn_at, self._how)
        for layer in self.head.values():
            out = layer(out)
        return out


def width_of(width: int, layers: Sequence[HeadLayer]) -> int:
    """Of the vectors that such layers give."""
    return layers[-1].height if layers else width
