"""Token ids to vectors."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.leaf import Leaf, Wanted, stacked
from pelton.layers.linear import Linear
from pelton.step import Embeds


class Embedding(Leaf):
    """Row `id` of a table, times a number.

    The product is taken once, when the table is read: the same bits as after each look-up, with the number in the
    table's format, as models that have one are trained. `skipped`: rows at the table's begin that are left out.
    `given_scale`: what is given in the place of rows is multiplied by it; it is no part of the table.
    """

    table: Tensor

    def __init__(self, vocab: int, width: int, scale: float = 1.0, skipped: int = 0, given_scale: float = 1.0) -> None:
        super().__init__()
        self.shape = (vocab, width)
        self.scale = scale
        self.given_scale = given_scale
        self.skipped = skipped

    def wants(self) -> list[Wanted]:
        return [Wanted(0, "weight", self.shape)]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.table = stacked([tensors[0][self.skipped :]], dtype, device)
        if self.scale != 1.0:
            self.table *= torch.tensor(self.scale, dtype=dtype, device=device)

    def forward(self, ids: Tensor, embeds: Embeds | None = None) -> Tensor:  # [tokens] int32 -> [tokens, width]
        out = self.table.new_empty(ids.shape[0], self.shape[1])
        ops.embed(out, self.table, ids)
        return _with_given(out, embeds, self.given_scale)


class SharedEmbedding(nn.Module):
    """As `Embedding`, of the rows that a head was packed from: the table is there once."""

    def __init__(self, head: Linear, scale: float = 1.0, given_scale: float = 1.0) -> None:
        super().__init__()
        self._head = (head,)  # the model's part, not this one's: in a tuple torch does not count it twice
        self.scale = scale
        self.given_scale = given_scale

    def forward(self, ids: Tensor, embeds: Embeds | None = None) -> Tensor:  # [tokens] int32 -> [tokens, width]
        (head,) = self._head
        out = torch.empty(ids.shape[0], head.width, dtype=head.weight.dtype, device=ids.device)
        ops.embed_packed(out, head.weight, ids, self.scale)
        return _with_given(out, embeds, self.given_scale)


def _with_given(out: Tensor, embeds: Embeds | None, scale: float) -> Tensor:
    if embeds is not None:
        values = embeds.values.to(out.dtype)
        if scale != 1.0:
            values = values * torch.tensor(scale, dtype=out.dtype, device=out.device)
        out.index_copy_(0, embeds.at, values)
    return out


class Segments(Leaf):
    """A vector for each token by the text that it is in: the first, or the second of a pair, behind the first `separator`."""

    table: Tensor

    def __init__(self, segments: int, width: int, separator: int | None) -> None:
        super().__init__()
        self.shape = (segments, width)
        self.separator = separator

    def wants(self) -> list[Wanted]:
        return [Wanted(0, "weight", self.shape)]

    def take(self, tensors: list[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.table = stacked(tensors, dtype, device)

    def forward(self, ids: Tensor, row_offsets: Tensor) -> Tensor:  # [tokens], [rows + 1] int32 -> [tokens, width]
        out = self.table.new_empty(ids.shape[0], self.shape[1])
        ops.embed_segments(out, self.table, ids, row_offsets, self.separator)
        return out
