"""Llama (arXiv:2302.13971, 2307.09288, 2407.21783): pre-norm decoder, rotary positions, grouped heads, gated MLP."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pelton.layers.attention import CachedAttention
from pelton.layers.embedding import Embedding
from pelton.layers.linear import Head, Linear
from pelton.layers.mlp import GatedMlp
from pelton.layers.norm import ResidualNorm
from pelton.layers.rotary import Rotary
from pelton.loading.config import Fields
from pelton.models.config import DecoderConfig, read_decoder
from pelton.step import Step


class Attention(nn.Module):
    """Causal self-attention with fewer heads for keys and values than for queries."""

    def __init__(self, config: DecoderConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.qkv = Linear(config.width, [q_width, kv_width, kv_width], config.attention_bias)
        self.core = CachedAttention(layer, config.head_dim, rotary)
        self.out = Linear(q_width, [config.width], config.attention_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:  # [tokens, width]
        q, k, v = self.heads(x)
        out: Tensor = self.out(self.core(q, k, v, step))
        return out

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: [tokens, heads, head_dim]."""
        q, k, v = self.qkv(x).split(self.qkv.heights, dim=1)
        return self._cut(q), self._cut(k), self._cut(v)

    def _cut(self, part: Tensor) -> Tensor:
        return part.contiguous().view(part.shape[0], -1, self.head_dim)


class Block(nn.Module):
    """One layer: attention, then MLP, each on the normed sum of all before it."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = ResidualNorm(config.width, config.norm_eps)
        self.attention = attention
        self.mlp_norm = ResidualNorm(config.width, config.norm_eps)
        self.mlp = GatedMlp(config.width, config.mlp_width, config.mlp_bias)

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        x, residual = self.attention_norm(x, residual)  # residual += x; x = norm(residual)
        x = self.attention(x, step)
        x, residual = self.mlp_norm(x, residual)
        return self.mlp(x), residual


class Llama(nn.Module):
    """The whole decoder. `positions` bounds the table of rotary angles."""

    family: ClassVar = "llama"
    attention: ClassVar = Attention
    # Which of the checkpoint's tensors a layer holds; `*` is the block's number. Several stand one above the other.
    names: ClassVar[dict[str, list[str]]] = {
        "embedding": ["model.embed_tokens"],
        "blocks.*.attention_norm": ["model.layers.*.input_layernorm"],
        "blocks.*.attention.qkv": [f"model.layers.*.self_attn.{part}_proj" for part in "qkv"],
        "blocks.*.attention.out": ["model.layers.*.self_attn.o_proj"],
        "blocks.*.mlp_norm": ["model.layers.*.post_attention_layernorm"],
        "blocks.*.mlp.gate_up": [f"model.layers.*.mlp.{part}_proj" for part in ("gate", "up")],
        "blocks.*.mlp.down": ["model.layers.*.mlp.down_proj"],
        "norm": ["model.norm"],
        "head": ["lm_head"],
    }
    # Old checkpoints carry frequencies, which follow from the config.
    ignored: ClassVar[list[str]] = [r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"]

    def __init__(self, config: DecoderConfig, positions: int) -> None:
        super().__init__()
        rotary = Rotary(config.rope, config.head_dim, positions)
        self.config = config
        self.embedding = Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(
            Block(config, self.attention(config, layer, rotary)) for layer in range(config.layers)
        )
        self.norm = ResidualNorm(config.width, config.norm_eps)
        self.head = Head(config.width, config.vocab)

    @staticmethod
    def read_config(fields: Fields) -> DecoderConfig:
        """The family's config.json."""
        return read_decoder(fields, mlp_bias=True)

    def forward(self, step: Step) -> Tensor:  # [tokens, width]: what the head reads
        x: Tensor = self.embedding(step.ids)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual, step)
        x, _ = self.norm(x, residual)
        return x
