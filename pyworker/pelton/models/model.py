"""What the worker asks of a model, whoever wrote it."""

from __future__ import annotations

from torch import Tensor, nn

from pelton.loading.budget import Sizes
from pelton.step import Step


class LanguageModel(nn.Module):
    """Token ids to logits, keys and values going through the step's blocks."""

    config: Sizes
    embed_width: int
    """Numbers of what may stand in the place of a token's embedding (`Step.embeds`); 0: nothing may."""
    embed_scale: float = 1.0
    """What the model multiplies that by."""

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:
        """Computes the step; what follows after the tokens at `drawn_at` ([draws]): [draws, vocab] float32."""
        raise NotImplementedError
