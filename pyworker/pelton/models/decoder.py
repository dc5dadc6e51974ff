"""A decoder over gated MLPs and rotary attention: the figure that most open models share, with switches for what they differ in.

Llama (arXiv:2302.13971, 2307.09288, 2407.21783) is the plain case. Which switches a checkpoint sets, its family's file says.
"""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.kv import Place
from pelton.layers.attention import CachedAttention
from pelton.layers.embedding import Embedding
from pelton.layers.linear import Head, Linear
from pelton.layers.mlp import GatedMlp
from pelton.layers.norm import ResidualNorm, ResidualSum, RmsNorm
from pelton.layers.rotary import Rotary
from pelton.models.config import DecoderConfig
from pelton.models.model import LanguageModel
from pelton.step import Step


class Attention(nn.Module):
    """Causal self-attention with fewer heads for keys and values than for queries."""

    def __init__(self, config: DecoderConfig, place: Place, window: int | None, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.qkv = Linear(config.width, [q_width, kv_width, kv_width], config.qkv_bias, config.is_fused)
        self.q_norm = self.k_norm = None
        if config.query_norm is not None:  # normed queries and keys keep the logits of attention bounded
            widths = {"head": (config.head_dim, config.head_dim), "all heads": (q_width, kv_width)}[config.query_norm]
            self.q_norm, self.k_norm = (RmsNorm(width, config.norm_eps, config.gain_offset) for width in widths)
        self.core = CachedAttention(place, rotary, config.attention_scale, window, config.attention_cap)
        self.out = Linear(q_width, [config.width], config.out_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:  # [tokens, width]
        q, k, v = (self._cut(part) for part in self.qkv(x).split(self.qkv.heights, dim=1))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        out: Tensor = self.out(self.core(q, k, v, step))
        return out

    def _cut(self, part: Tensor) -> Tensor:
        return part.contiguous().view(part.shape[0], -1, self.head_dim)


class Block(nn.Module):
    """One layer: attention, then MLP. Each reads the sum of all before it, normed, and what it adds may be normed too."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        width, eps, offset = config.width, config.norm_eps, config.gain_offset

        def before() -> nn.Module:
            return ResidualNorm(width, eps, offset) if config.norms_before else ResidualSum()

        def after() -> nn.Module:
            return RmsNorm(width, eps, offset) if config.norms_after else nn.Identity()

        self.attention_norm, self.attention_post_norm = before(), after()
        self.attention = attention
        self.mlp_norm, self.mlp_post_norm = before(), after()
        self.mlp = GatedMlp(width, config.mlp_width, config.mlp_bias, config.activation, config.is_fused)
        self.scale = config.residual_scale

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        x, residual = self.attention_norm(x, residual)  # residual += x; x = norm(residual)
        x = self._scaled(self.attention_post_norm(self.attention(x, step)))
        x, residual = self.mlp_norm(x, residual)
        return self._scaled(self.mlp_post_norm(self.mlp(x))), residual

    def _scaled(self, x: Tensor) -> Tensor:
        if self.scale != 1.0:
            ops.scale(x, self.scale)
        return x


class Decoder(LanguageModel):
    """The whole of it. `positions` bounds the tables of rotary angles."""

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, positions: int) -> None:
        super().__init__()
        rotaries = {rope: Rotary(rope, config.head_dim, positions) for rope in config.ropes}
        layers = zip(config.division.places, config.windows, config.ropes, strict=True)
        self.config = config
        self.embedding = Embedding(config.vocab, config.width, config.embedding_scale)
        self.blocks = nn.ModuleList(
            Block(config, Attention(config, place, window, rotaries[rope])) for place, window, rope in layers
        )
        self.norm = ResidualNorm(config.width, config.norm_eps, config.gain_offset)
        self.head = Head(config.width, config.vocab, config.logit_scale, config.logit_cap)

    def forward(self, step: Step) -> Tensor:  # [tokens, width]: what the head reads
        x: Tensor = self.embedding(step.ids)
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual, step)
        x, _ = self.norm(x, residual)
        return x

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:  # [draws, vocab] float32
        hidden = self(step)
        if drawn_at.shape[0] == 0:  # of parts of prompts alone: for kernels there is no such step
            return torch.empty(0, self.config.vocab, device=hidden.device)
        out: Tensor = self.head(hidden.index_select(0, drawn_at))
        return out
