"""A decoder in numbers: what the families' configs have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pelton.layers.rotary import KINDS, Rope
from pelton.loading.config import Fields
from pelton.loading.error import LoadError


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a decoder with gated MLPs and grouped heads."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    norm_eps: float
    rope: Rope
    positions: int  # the longest context that the checkpoint promises
    is_tied: bool  # the embedding's table is the head's weight too
    attention_bias: bool
    mlp_bias: bool

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise LoadError(
                f"`num_attention_heads` {self.heads} is no multiple of `num_key_value_heads` {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise LoadError(f"`head_dim` is {self.head_dim}; rotary positions need an even one")


def read_decoder(fields: Fields, head_dim: int | None = None, mlp_bias: bool = False) -> DecoderConfig:
    """Reads a config.json as Llama has it. `head_dim` is what its absence means: None is width over heads."""
    fields.word("hidden_act", ["silu"], "silu")  # B:M3
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    positions = fields.count("max_position_embeddings", 2048)
    rope = read_rope(fields, positions)
    return DecoderConfig(
        vocab=fields.count("vocab_size"),
        width=width,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", head_dim or max(1, width // heads)),
        mlp_width=fields.count("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        positions=_longest(rope, positions),
        is_tied=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias") if mlp_bias else False,
    )


def read_rope(fields: Fields, positions: int) -> Rope:
    """transformers 5 writes `rope_parameters`; before it stood `rope_theta` beside an optional `rope_scaling`.

    Where both stand the older one holds, unless it is empty: so transformers resolves them, and so the model was tried.
    """
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    given = fields.object(name)
    for layers in ("full_attention", "sliding_attention"):
        if layers in given:
            raise LoadError(f"`{name}` in config.json differs by layer (`{layers}`); supported: one for all layers")
    kind = given.word("rope_type" if "rope_type" in given else "type", list(KINDS), "default")
    if given.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise LoadError("`partial_rotary_factor` in config.json is not 1; supported: 1")
    theta = given.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if kind == "default":
        return Rope(kind, theta)
    if kind == "linear":
        return Rope(kind, theta, given.number("factor"))
    # A field beside the others comes before the one within, as transformers reads them.
    original = fields.count(
        "original_max_position_embeddings", given.count("original_max_position_embeddings", positions)
    )
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
        if high <= low:
            raise LoadError(f"`{name}.high_freq_factor` {high} is not above `low_freq_factor` {low}")
        return Rope(kind, theta, given.number("factor"), original, low_freq_factor=low, high_freq_factor=high)
    if theta == 1.0:
        raise LoadError(
            "`rope_theta` in config.json is 1, and all its waves are the same; supported with yarn: any other"
        )
    factor = given.number("factor", positions / original)
    return Rope(
        kind,
        theta,
        factor,
        original,
        beta_fast=given.number("beta_fast", 32.0),
        beta_slow=given.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(given, factor),
        truncate=given.flag("truncate", True),
    )


def _longest(rope: Rope, positions: int) -> int:
    """Yarn's factor may be added to a config whose `max_position_embeddings` still is the first training's."""
    return max(positions, int(rope.original_positions * rope.factor)) if rope.kind == "yarn" else positions


def _yarn_attention_factor(given: Fields, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in given:
        return given.number("attention_factor")
    if given.get("mscale") and given.get("mscale_all_dim"):
        return mscale(given.number("mscale")) / mscale(given.number("mscale_all_dim"))
    return mscale(1.0)
