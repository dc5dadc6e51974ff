"""Matrix products. Several of the checkpoint's weights may stand above each other: one product instead of three."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pelton_kernels import ops
from pelton_kernels.ops import PackedWeight
from torch import Tensor

from pelton.layers.leaf import Leaf, Wanted, stacked
from pelton.layers.storage import FLOATS, Kept, Plain, Storage


class Linear(Leaf):
    """y = x · Wᵀ + b, with W of sum(heights) rows and `width` columns. `is_fused`: it stands as one in the checkpoint.

    `is_transposed`: floats stand there as Wᵀ. Codes do not: whoever quantised the checkpoint has turned them.
    """

    weight: PackedWeight
    bias: Tensor | None

    def __init__(
        self, width: int, heights: Sequence[int], has_bias: bool, is_fused: bool = False, is_transposed: bool = False
    ) -> None:
        super().__init__()
        self.width = width
        self.heights = list(heights)
        self.has_bias = has_bias
        self.stored = [sum(heights)] if is_fused else self.heights
        self.is_transposed = is_transposed
        self.storage: Storage = Plain()

    def wants(self) -> list[Wanted]:
        weights = [
            Wanted(part, kept.kind, kept.shape[::-1] if self._is_turned(kept) else kept.shape, kept.dtypes, kept.absent)
            for part, height in enumerate(self.stored)
            for kept in self.storage.keeps(height, self.width)
        ]
        biases = [Wanted(part, "bias", (height,)) for part, height in enumerate(self.stored)]
        return weights + biases if self.has_bias else weights

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        parts: list[dict[str, Tensor]] = [{} for _ in self.stored]
        for want, tensor in zip(self.wants(), tensors, strict=True):
            parts[want.part][want.kind] = tensor.T.contiguous() if self._is_turned(want) else tensor
        self.weight = self.storage.pack(parts, dtype, device)
        self.bias = stacked([part["bias"] for part in parts], dtype, device) if self.has_bias else None

    def _is_turned(self, tensor: Kept | Wanted) -> bool:
        return self.is_transposed and tensor.kind == "weight" and tensor.dtypes == FLOATS

    def held_bytes(self, dtype: torch.dtype) -> int:
        weights = sum(self.storage.bytes(height, self.width, dtype) for height in self.stored)
        return weights + (sum(self.heights) * dtype.itemsize if self.has_bias else 0)

    def forward(self, x: Tensor) -> Tensor:  # [tokens, width] -> [tokens, sum(heights)]
        out = x.new_empty(x.shape[0], sum(self.heights))
        ops.linear(out, x, self.weight, self.bias)
        return out


class Head(Linear):
    """The last product: logits, in float32 whatever the weights are; some models scale them, or cap them softly."""

    def __init__(self, width: int, vocab: int, scale: float = 1.0, soft_cap: float | None = None) -> None:
        super().__init__(width, [vocab], has_bias=False)
        self.scale = scale
        self.soft_cap = soft_cap

    def forward(self, x: Tensor) -> Tensor:  # [rows, width] -> [rows, vocab] float32
        out = torch.empty(x.shape[0], self.heights[0], dtype=torch.float32, device=x.device)
        ops.linear_f32(out, x, self.weight)
        if self.scale != 1.0:
            ops.scale(out, self.scale)
        if self.soft_cap is not None:
            ops.soft_cap(out, self.soft_cap)
        return out
