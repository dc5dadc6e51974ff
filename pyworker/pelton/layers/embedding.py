"""Token ids to vectors."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor

from pelton.layers.leaf import Leaf, Wanted, stacked


class Embedding(Leaf):
    """Row `id` of a table, times a number.

    The product is taken once, when the table is read: the same bits as after each look-up, with the number in the
    table's format, as models that have one are trained.
    """

    table: Tensor

    def __init__(self, vocab: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.shape = (vocab, width)
        self.scale = scale

    def wants(self) -> list[Wanted]:
        return [Wanted(0, "weight", self.shape)]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.table = stacked(tensors, dtype, device)
        if self.scale != 1.0:
            self.table *= torch.tensor(self.scale, dtype=dtype, device=device)

    def forward(self, ids: Tensor) -> Tensor:  # [tokens] int32 -> [tokens, width]
        out = self.table.new_empty(ids.shape[0], self.shape[1])
        ops.embed(out, self.table, ids)
        return out
