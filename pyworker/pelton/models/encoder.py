"""An encoder: every token of a text sees every other, and what comes out is a vector for each.

BERT (arXiv:1810.04805) norms each sum, ModernBERT (2412.13663) what attention and MLP read. Keys and values go through the
step's blocks as in decoders, though nobody looks at them after the step: attention has one way to find them.
"""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.kv import Place
from pelton.layers.attention import CachedAttention
from pelton.layers.embedding import Embedding, Segments
from pelton.layers.linear import Linear
from pelton.layers.mlp import GatedMlp, PlainMlp
from pelton.layers.norm import LayerNorm, ResidualLayerNorm, ResidualSum
from pelton.layers.rotary import Rotary
from pelton.models.encoder_config import EncoderConfig
from pelton.step import Step


class SelfAttention(nn.Module):
    """Of each token to all of its row, or to those within a window."""

    def __init__(self, config: EncoderConfig, place: Place, window: int | None, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.width = config.width
        self.qkv = Linear(config.width, [config.width] * 3, config.attention_bias, config.is_fused)
        self.core = CachedAttention(place, rotary, config.head_dim**-0.5, window, is_whole=True)
        self.out = Linear(config.width, [config.width], config.attention_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:  # [tokens, width]
        q, k, v = self.qkv(x).view(x.shape[0], -1, self.head_dim).chunk(3, dim=1)
        out: Tensor = self.out(self.core(q, k, v, step))
        return out


class BlockNormedAfter(nn.Module):
    """x = norm(x + attention(x)); x = norm(x + mlp(x))"""

    def __init__(self, config: EncoderConfig, attention: SelfAttention) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = ResidualLayerNorm(config.width, config.norm_eps, config.norm_bias)
        self.mlp = _mlp(config)
        self.mlp_norm = ResidualLayerNorm(config.width, config.norm_eps, config.norm_bias)

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:  # one tensor twice
        x, _ = self.attention_norm(self.attention(x, step), x)
        x, _ = self.mlp_norm(self.mlp(x), x)
        return x, x


class BlockNormedBefore(nn.Module):
    """residual += x; x = attention(norm(residual)); residual += x; x = mlp(norm(residual)). The first layer's input is normed."""

    def __init__(self, config: EncoderConfig, attention: SelfAttention, is_first: bool) -> None:
        super().__init__()
        norm = config.width, config.norm_eps, config.norm_bias
        self.attention_norm = ResidualSum() if is_first else ResidualLayerNorm(*norm)
        self.attention = attention
        self.mlp_norm = ResidualLayerNorm(*norm)
        self.mlp = _mlp(config)

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        x, residual = self.attention_norm(x, residual)
        x, residual = self.mlp_norm(self.attention(x, step), residual)
        return self.mlp(x), residual


def _mlp(config: EncoderConfig) -> nn.Module:
    width, inner, has_bias = config.width, config.mlp_width, config.mlp_bias
    if config.is_gated:
        return GatedMlp(width, inner, has_bias, config.activation, config.is_fused)
    return PlainMlp(width, inner, has_bias, config.activation)


class Encoder(nn.Module):
    """The whole of it. `positions` bounds the tables of rotary angles."""

    def __init__(self, config: EncoderConfig, positions: int) -> None:
        super().__init__()
        self.config = config
        rotaries = {rope: Rotary(rope, config.head_dim, positions) for rope in config.ropes}
        norm = config.width, config.norm_eps, config.norm_bias
        self.embedding = Embedding(config.vocab, config.width)
        self.segments = Segments(config.segments, config.width, config.separator) if config.segments else None
        self.positions = None
        if config.has_learned_positions:
            rows = config.positions_skipped + config.positions + config.positions_unused
            self.positions = Embedding(rows, config.width, skipped=config.positions_skipped)
        self.embedding_norm = LayerNorm(*norm)
        self.blocks = nn.ModuleList()
        for place, window, rope in zip(config.division.places, config.windows, config.ropes, strict=True):
            attention = SelfAttention(config, place, window, rotaries[rope])
            if config.norms_before:
                self.blocks.append(BlockNormedBefore(config, attention, is_first=not self.blocks))
            else:
                self.blocks.append(BlockNormedAfter(config, attention))
        self.norm = ResidualLayerNorm(*norm) if config.norms_before else None

    def forward(self, step: Step) -> Tensor:  # [tokens, width]
        x: Tensor = self.embedding(step.ids)
        if self.segments is not None:
            ops.add(x, self.segments(step.ids, step.row_offsets))
        if self.positions is not None:
            ops.add(x, self.positions(step.positions))
        x = self.embedding_norm(x)
        residual = torch.zeros_like(x) if self.norm is not None else x
        for block in self.blocks:
            x, residual = block(x, residual, step)
        if self.norm is not None:
            x, _ = self.norm(x, residual)
        return x
