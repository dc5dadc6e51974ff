"""A decoder over MLPs and attention: the figure that most open models share, with switches for what they differ in.

Llama (arXiv:2302.13971, 2307.09288, 2407.21783), with gates and rotary positions, is the plain case. Which switches a checkpoint sets, its family's file says.
"""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.kv import Place
from pelton.layers.attention import CachedAttention, slopes_of
from pelton.layers.embedding import Embedding, SharedEmbedding
from pelton.layers.linear import Head, Linear
from pelton.layers.mlp import GatedMlp, PlainMlp
from pelton.layers.norm import LayerNorm, ResidualLayerNorm, ResidualNorm, ResidualSum, RmsNorm
from pelton.layers.rotary import Rotary
from pelton.models.config import DecoderConfig
from pelton.models.model import LanguageModel
from pelton.step import Step


class Attention(nn.Module):
    """Causal self-attention with fewer heads for keys and values than for queries. `layer` counts from 0."""

    def __init__(self, config: DecoderConfig, layer: int, place: Place, window: int | None, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.is_by_head = config.is_fused_by_head
        self.norms_by_head = config.query_norm == "head"
        heads = config.heads, config.kv_heads
        q_width, kv_width = (count * config.head_dim for count in heads)
        parts = [q_width, kv_width, kv_width]
        self.qkv = Linear(config.width, parts, config.qkv_bias, config.is_fused, config.is_transposed)
        # Normed queries and keys keep the logits of attention bounded.
        self.q_norm: LayerNorm | RmsNorm | None = None
        self.k_norm: LayerNorm | RmsNorm | None = None
        if config.query_norm == "each head":
            self.q_norm, self.k_norm = (LayerNorm(config.head_dim, config.norm_eps, False, count) for count in heads)
        elif config.query_norm is not None:
            widths = {"head": (config.head_dim, config.head_dim), "all heads": (q_width, kv_width)}[config.query_norm]
            self.q_norm, self.k_norm = (RmsNorm(width, config.norm_eps, config.gain_offset) for width in widths)
        scale = config.attention_scale / (layer + 1 if config.attention_scale_falls else 1)
        slopes = slopes_of(config.heads) if config.has_slopes else None
        self.core = CachedAttention(
            place, rotary, scale, window, config.attention_cap, is_whole=not config.is_causal, slopes=slopes
        )
        self.out = Linear(q_width, [config.width], config.out_bias, is_transposed=config.is_transposed)

    def forward(self, x: Tensor, step: Step) -> Tensor:  # [tokens, width]
        q, k, v = self._cut(self.qkv(x))
        norm = None
        if self.norms_by_head and isinstance(self.q_norm, RmsNorm) and isinstance(self.k_norm, RmsNorm):
            norm = ops.HeadNorm(self.q_norm.gain, self.k_norm.gain, self.q_norm.eps)
        elif self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q.contiguous()), self.k_norm(k.contiguous())
        out: Tensor = self.out(self.core(q, k, v, step, norm))
        return out

    def _cut(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, [tokens, heads, head_dim] each, where they lie."""
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        if self.is_by_head:
            return heads.view(qkv.shape[0], -1, 3, self.head_dim).unbind(2)
        return torch.split(heads, [height // self.head_dim for height in self.qkv.heights], dim=1)


class Block(nn.Module):
    """One layer: attention, then MLP. Each reads the sum of all before it, normed, and what it adds may be normed too."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()

        def before() -> nn.Module:
            return _residual_norm(config) if config.norms_before else ResidualSum()

        def after() -> nn.Module:
            return _norm(config) if config.norms_after else nn.Identity()

        self.attention_norm, self.attention_post_norm = before(), after()
        self.attention = attention
        self.mlp_norm, self.mlp_post_norm = before(), after()
        self.mlp = _mlp(config)
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


class ParallelBlock(nn.Module):
    """One layer whose attention and MLP read the same sum, each with a norm of its own or both with one, and add together."""

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = _residual_norm(config)
        self.attention = attention
        self.mlp_norm = _norm(config) if config.block == "parallel" else None
        self.mlp = _mlp(config)

    def forward(self, x: Tensor, residual: Tensor, step: Step) -> tuple[Tensor, Tensor]:  # [tokens, width] both
        x, residual = self.attention_norm(x, residual)
        added = self.attention(x, step)
        ops.add(added, self.mlp(x if self.mlp_norm is None else self.mlp_norm(residual)))
        return added, residual


def _norm(config: DecoderConfig) -> nn.Module:
    if config.norm == "layer":
        return LayerNorm(config.width, config.norm_eps, config.norm_bias)
    return RmsNorm(config.width, config.norm_eps, config.gain_offset)


def _residual_norm(config: DecoderConfig) -> nn.Module:
    if config.norm == "layer":
        return ResidualLayerNorm(config.width, config.norm_eps, config.norm_bias)
    return ResidualNorm(config.width, config.norm_eps, config.gain_offset)


def _mlp(config: DecoderConfig) -> nn.Module:
    width, inner, has_bias = config.width, config.mlp_width, config.mlp_bias
    if config.is_gated:
        return GatedMlp(width, inner, has_bias, config.activation, config.is_fused)
    return PlainMlp(width, inner, has_bias, config.activation, config.is_transposed)


class Trunk(nn.Module):
    """All but the head. `positions` bounds the tables of rotary angles. `head`: whose table is the embedding's, too."""

    def __init__(self, config: DecoderConfig, positions: int, head: Head | None = None) -> None:
        super().__init__()
        rotaries = {rope: Rotary(rope, config.head_dim, positions) for rope in config.ropes}
        layers = zip(config.division.places, config.windows, config.ropes, strict=True)
        self.config = config
        given_scale = config.embedding_scale if config.scales_given else 1.0
        self.embedding = (
            Embedding(config.vocab, config.width, config.embedding_scale, given_scale=given_scale)
            if head is None
            else SharedEmbedding(head, config.embedding_scale, given_scale)
        )
        self.embedding_norm = _norm(config) if config.norms_embedding else None
        rows = config.positions + config.positions_unused
        self.positions = Embedding(rows, config.width) if config.has_learned_positions else None
        make = Block if config.block == "serial" else ParallelBlock
        self.blocks = nn.ModuleList(
            make(config, Attention(config, layer, place, window, rotaries[rope]))
            for layer, (place, window, rope) in enumerate(layers)
        )
        self.norm = _residual_norm(config)

    def forward(self, step: Step) -> Tensor:  # [tokens, width]: what the head reads
        x: Tensor = self.embedding(step.ids, step.embeds)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.positions is not None:
            ops.add(x, self.positions(step.positions))
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual, step)
        x, _ = self.norm(x, residual)
        return x


class Decoder(Trunk, LanguageModel):
    """The whole of it. `shares_table`: the head's weight is the embedding's table, and is there once."""

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, positions: int, shares_table: bool) -> None:
        head = Head(config.width, config.vocab, config.logit_scale, config.logit_cap)
        super().__init__(config, positions, head if shares_table else None)
        self.head = head
        self.embed_width, self.embed_scale = config.width, self.embedding.given_scale

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:  # [draws, vocab] float32
        hidden = self(step)
        if drawn_at.shape[0] == 0:  # of parts of prompts alone: for kernels there is no such step
            return torch.empty(0, self.config.vocab, device=hidden.device)
        out: Tensor = self.head(hidden.index_select(0, drawn_at))
        return out
