"""What the worker asks of a model, whoever wrote it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from pelton.step import Step


class Sizes(Protocol):
    """A model in numbers, as far as memory is planned by them."""

    @property
    def vocab(self) -> int:
        """Token ids are below it."""

    @property
    def width(self) -> int:
        """Of the residual stream."""

    @property
    def heads(self) -> int:
        """Of queries."""

    @property
    def kv_heads(self) -> int:
        """Of keys and values."""

    @property
    def head_dim(self) -> int:
        """Columns of a head."""

    @property
    def mlp_width(self) -> int:
        """Within an MLP."""

    @property
    def positions(self) -> int:
        """The longest context that the checkpoint promises."""


class LanguageModel(nn.Module):
    """Token ids to logits, keys and values going through the step's blocks."""

    config: Sizes

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:
        """Computes the step; what follows after the tokens at `drawn_at` ([draws]): [draws, vocab] float32."""
        raise NotImplementedError
