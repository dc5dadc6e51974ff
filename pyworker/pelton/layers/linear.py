"""Matrix products. Several of the checkpoint's weights may stand above each other: one product instead of three."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pelton_kernels import ops
from pelton_kernels.ops import PackedWeight
from torch import Tensor

from pelton.layers.leaf import Leaf, Wanted, stacked


class Linear(Leaf):
    """y = x · Wᵀ + b, with W of sum(heights) rows and `width` columns."""

    weight: PackedWeight
    bias: Tensor | None

    def __init__(self, width: int, heights: Sequence[int], has_bias: bool) -> None:
        super().__init__()
        self.width = width
        self.heights = list(heights)
        self.has_bias = has_bias

    def wants(self) -> list[Wanted]:
        weights = [Wanted(part, "weight", (height, self.width)) for part, height in enumerate(self.heights)]
        biases = [Wanted(part, "bias", (height,)) for part, height in enumerate(self.heights)]
        return weights + biases if self.has_bias else weights

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        parts = len(self.heights)
        self.weight = ops.pack(stacked(tensors[:parts], dtype, device))  # the copy goes when this returns
        self.bias = stacked(tensors[parts:], dtype, device) if self.has_bias else None

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width] -> [tokens, sum(heights)]
        out = x.new_empty(x.shape[0], sum(self.heights))
        ops.linear(out, x, self.weight, self.bias)
        return out


class Head(Linear):
    """The last product: logits, in float32 whatever the weights are."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__(width, [vocab], has_bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [rows, width] -> [rows, vocab] float32
        out = torch.empty(x.shape[0], self.heights[0], dtype=torch.float32, device=x.device)
        ops.linear_f32(out, x, self.weight)
        return out
