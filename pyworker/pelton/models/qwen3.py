"""Qwen3 (arXiv:2505.09388): Llama, with queries and keys normed head by head before they are rotated."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from pelton.layers.norm import HeadNorm
from pelton.layers.rotary import Rotary
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models import llama
from pelton.models.config import DecoderConfig, read_decoder


class Attention(llama.Attention):
    """Normed heads keep the logits of attention bounded, so biases are rare."""

    def __init__(self, config: DecoderConfig, layer: int, rotary: Rotary) -> None:
        super().__init__(config, layer, rotary)
        self.q_norm = HeadNorm(config.head_dim, config.norm_eps)
        self.k_norm = HeadNorm(config.head_dim, config.norm_eps)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        return self.q_norm(q), self.k_norm(k), v


class Qwen3(llama.Llama):
    """The whole decoder."""

    family: ClassVar = "qwen3"
    attention: ClassVar = Attention
    names: ClassVar[dict[str, list[str]]] = llama.Llama.names | {
        "blocks.*.attention.q_norm": ["model.layers.*.self_attn.q_norm"],
        "blocks.*.attention.k_norm": ["model.layers.*.self_attn.k_norm"],
    }

    @staticmethod
    def read_config(fields: Fields) -> DecoderConfig:
        """The family's config.json."""
        if fields.flag("use_sliding_window"):
            raise LoadError("`use_sliding_window` in config.json is true; supported: full attention in every layer")
        return read_decoder(fields, head_dim=128)
