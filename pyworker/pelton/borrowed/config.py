"""A borrowed model in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from pelton.borrowed.architecture import Architecture
from pelton.borrowed.attention import Ask, Layer
from pelton.kv import Division, divide
from pelton.loading.error import LoadError


@dataclass(frozen=True, slots=True)
class BorrowedConfig:
    """What its config says and its run has shown. `heads`, `kv_heads` and `head_dim` are the largest of all layers."""

    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    positions: int
    asks: tuple[Ask, ...]  # by layer of KV
    windows: tuple[int | None, ...]

    def within(self, positions: int) -> BorrowedConfig:
        """As it is in a context of at most so many tokens (0: the model's own): no window that is never passed."""
        longest = positions or self.positions
        return replace(
            self, windows=tuple(None if window is None or window >= longest else window for window in self.windows)
        )

    @property
    def division(self) -> Division:
        """The layers as kinds, for blocks of KV."""
        return divide(self.windows)

    @property
    def layers(self) -> list[Layer]:
        """What each call of a step asks, and where its KV lies."""
        placed = zip(self.asks, self.division.places, self.windows, strict=True)
        return [Layer(ask, place, window) for ask, place, window in placed]


def config_of(architecture: Architecture, bare: nn.Module, asks: Sequence[Ask], vocab: int) -> BorrowedConfig:
    """`bare`: the model without weights."""
    text = architecture.text
    positions = getattr(text, "max_position_embeddings", None)
    if type(positions) is not int or positions < 1:
        raise LoadError(f"`max_position_embeddings` in config.json is {positions!r}; supported: a whole number from 1")
    width = getattr(text, "hidden_size", None)
    if type(width) is not int or width < 1:
        raise LoadError(f"`hidden_size` in config.json is {width!r}; supported: a whole number from 1")
    # Keys and values of a layer share a table, and all layers the blocks: the largest decides.
    return BorrowedConfig(
        vocab=vocab,
        width=width,
        heads=max(ask.heads for ask in asks),
        kv_heads=max(ask.kv_heads for ask in asks),
        head_dim=max(max(ask.key_dim, ask.value_dim) for ask in asks),
        mlp_width=_widest(text, bare, vocab),
        positions=positions,
        asks=tuple(asks),
        windows=tuple(ask.window for ask in asks),
    )


def _widest(text: object, bare: nn.Module, vocab: int) -> int:
    """The most columns that a layer makes of a token; of experts, those that it is sent to together."""
    linears = [module.out_features for module in bare.modules() if isinstance(module, nn.Linear)]
    chosen = getattr(text, "num_experts_per_tok", None) or getattr(text, "num_experts_per_token", None) or 1
    inner = getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None) or 0
    return max([width for width in linears if width != vocab] + [inner * chosen if isinstance(inner, int) else 0, 1])
