"""A decoder in numbers: what the families' configs have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pelton_kernels.ops import Function

from pelton.kv import Division, divide
from pelton.layers.mlp import GATES
from pelton.layers.rotary import KINDS, NONE, Rope
from pelton.loading.config import Fields
from pelton.loading.error import LoadError, UnservedError

LAYERS_MAX = 10_000  # far above any model: a config.json may claim any number
POSITIONS_MAX = 1 << 31
# Names of the same, as config.json has them.
ACTIVATIONS: dict[str, Function] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu_erf",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of a decoder. What is not said is as in Llama."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    norm_eps: float
    activation: Function
    positions: int  # the longest context that the checkpoint promises
    is_tied: bool  # the embedding's table is the head's weight too
    ropes: tuple[Rope, ...]  # by layer
    windows: tuple[int | None, ...]  # by layer: how many tokens one sees, itself included; None: all
    attention_scale: float
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    is_fused: bool = False  # in the checkpoint: queries, keys and values; gate and up
    is_fused_by_head: bool = False  # then each head's query, key and value stand together, as many of each
    is_transposed: bool = False  # in the checkpoint: weights of the blocks
    block: Literal["serial", "parallel", "parallel, one norm"] = "serial"  # whether the MLP reads what attention added
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False  # of layer norms
    # What of queries and keys is normed together, by RMS or, with a gain for each head of its own, by layer norm.
    query_norm: Literal["head", "all heads", "each head"] | None = None
    norms_before: bool = True  # of what attention and MLP read
    norms_after: bool = False  # of what they add
    gain_offset: float = 0.0  # a norm's gain is this and its weight
    attention_cap: float | None = None  # soft, of scores
    logit_cap: float | None = None
    is_gated: bool = True  # the MLP
    has_learned_positions: bool = False  # a table of them, added to the embedding
    positions_unused: int = 0  # its rows behind `positions`: the checkpoint is for shorter texts
    is_causal: bool = True  # False: each token sees the whole text
    has_slopes: bool = False  # scores fall with each position that a key lies back (ALiBi)
    norms_embedding: bool = False  # before the first block
    attention_scale_falls: bool = False  # it is divided by the layer's number, from 1
    embedding_scale: float = 1.0
    scales_given: bool = (
        False  # what stands in the place of an embedding is scaled as well: so transformers' model does it
    )
    residual_scale: float = 1.0  # of what attention and MLP add
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise LoadError(
                f"`num_attention_heads` {self.heads} is no multiple of `num_key_value_heads` {self.kv_heads}"
            )
        for rope in self.ropes:
            if rope != NONE and int(self.head_dim * rope.share) % 2:
                raise LoadError(f"`head_dim` is {self.head_dim}; rotary positions need an even one")
            pairs = int(self.head_dim * rope.share) // 2
            if rope.kind == "dynamic" and pairs < 2:
                raise LoadError(
                    f"`head_dim` is {self.head_dim}; rope `dynamic` needs two pairs of columns that are turned"
                )
            for name, divisors in (("short_factor", rope.divisors), ("long_factor", rope.long_divisors)):
                if rope.kind == "longrope" and len(divisors) != pairs:
                    raise LoadError(f"`{name}` in config.json has {len(divisors)} numbers; supported: {pairs}")

    def within(self, positions: int) -> DecoderConfig:
        """As it is in a context of at most so many tokens (0: the model's own): no window that is never passed."""
        longest = positions or self.positions
        windows = (None if window is None or window >= longest else window for window in self.windows)
        return replace(self, windows=tuple(windows))

    def for_texts_of(self, tokens: int) -> DecoderConfig:
        """With so many positions and no more."""
        return replace(self, positions=tokens, positions_unused=self.positions - tokens).within(tokens)

    @property
    def division(self) -> Division:
        """The layers as kinds, for blocks of KV."""
        return divide(self.windows)


def read_decoder(
    fields: Fields,
    head_dim: int | None = None,
    norm_eps: float = 1e-6,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    rope: Rope | None = None,
    is_gated: bool = True,
) -> DecoderConfig:
    """Reads a config.json as Llama has it, without its biases. `head_dim`, `norm_eps`, `activation`: what absence means, for
    the first None being width over heads, for the last with the field's name. `rope`: if it is read already. `is_gated`: the MLP."""
    served = [name for name, function in ACTIVATIONS.items() if not is_gated or function in GATES]
    act = fields.word(activation[0], served, activation[1])  # B:M3
    if fields.get("per_layer_config"):
        raise UnservedError("`per_layer_config` in config.json: layers that differ in any field; supported: none")
    width, heads, layers = (fields.count(name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if layers > LAYERS_MAX:
        raise LoadError(f"`num_hidden_layers` in config.json is {layers}; supported: up to {LAYERS_MAX}")
    positions = fields.count("max_position_embeddings", 2048)
    rope = rope or read_rope(fields, positions)
    head_dim = fields.count("head_dim", head_dim or max(1, width // heads))
    return DecoderConfig(
        vocab=fields.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=head_dim,
        mlp_width=fields.count("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", norm_eps),
        activation=ACTIVATIONS[act],
        positions=_longest(rope, positions),
        is_tied=fields.flag("tie_word_embeddings"),
        ropes=(rope,) * layers,
        windows=(None,) * layers,
        attention_scale=head_dim**-0.5,
        is_gated=is_gated,
    )


def read_local(fields: Fields, usual: Sequence[bool]) -> list[bool]:
    """Which layers see a window, as `layer_types` says; `usual` is what its absence means."""
    if "layer_types" not in fields:
        return list(usual)
    allowed = ["full_attention", "sliding_attention"]
    return [word == allowed[1] for word in fields.words("layer_types", allowed, len(usual))]


def read_rope(fields: Fields, positions: int, theta: float = 10_000.0, may_be_partial: bool = False) -> Rope:
    """transformers 5 writes `rope_parameters`; before it stood `rope_theta` beside an optional `rope_scaling`.

    Where both stand the older one holds, unless it is empty: so transformers resolves them, and so the model was tried.
    """
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    given = fields.object(name)
    for layers in ("full_attention", "sliding_attention"):
        if layers in given:
            raise LoadError(f"`{name}` in config.json differs by layer (`{layers}`); supported: one for all layers")
    kind = given.word("rope_type" if "rope_type" in given else "type", [*KINDS, "su"], "default")
    share = given.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if share > 1 or (share < 1 and not may_be_partial):
        own = "partial_rotary_factor" if "partial_rotary_factor" in given else fields.called("partial_rotary_factor")
        allowed = "up to 1" if may_be_partial else "1"
        raise LoadError(f"`{own}` in config.json is {share:g}; supported: {allowed}")
    theta = given.number("rope_theta", fields.number("rope_theta", theta))
    if kind == "default":
        return Rope(kind, theta, share=share)
    if kind == "linear":
        return Rope(kind, theta, given.number("factor"), share=share)
    if kind == "dynamic":  # of which transformers takes the length from nowhere else
        return Rope(kind, theta, given.number("factor"), positions, share=share)
    # A field beside the others comes before the one within, as transformers reads them.
    original = fields.count(
        "original_max_position_embeddings", given.count("original_max_position_embeddings", positions)
    )
    if kind in ("longrope", "su"):
        return _read_longrope(given, theta, original, given.number("factor", positions / original), share)
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
        if high <= low:
            raise LoadError(f"`{name}.high_freq_factor` {high} is not above `low_freq_factor` {low}")
        factor = given.number("factor")
        return Rope(kind, theta, factor, original, low_freq_factor=low, high_freq_factor=high, share=share)
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
        own_factor=given.number("attn_factor", 1.0),
        truncate=given.flag("truncate", True),
        share=share,
    )


def _read_longrope(given: Fields, theta: float, original: int, factor: float, share: float) -> Rope:
    if original == 1 and factor > 1:
        raise LoadError("`original_max_position_embeddings` in config.json is 1; supported with longrope: 2 and more")
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(
        "longrope",
        theta,
        factor,
        original,
        attention_factor=given.number("attention_factor", usual),
        divisors=given.numbers("short_factor"),
        long_divisors=given.numbers("long_factor"),
        share=share,
    )


def _longest(rope: Rope, positions: int) -> int:
    """Yarn's factor may be added to a config whose `max_position_embeddings` still is the first training's; dynamic's always is."""
    if rope.kind not in ("yarn", "dynamic"):
        return positions
    stretched = rope.original_positions * rope.factor
    if stretched > POSITIONS_MAX:
        raise LoadError(
            f"`factor` of rope in config.json is {rope.factor:g}; supported: contexts of up to {POSITIONS_MAX} tokens"
        )
    return max(positions, int(stretched))


def _yarn_attention_factor(given: Fields, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in given:
        return given.number("attention_factor")
    if given.get("mscale") and given.get("mscale_all_dim"):
        return mscale(given.number("mscale")) / mscale(given.number("mscale_all_dim"))
    # Distils of DeepSeek R1 take the factor back with it. transformers passes it over, with a warning.
    return mscale(1.0) * given.number("attn_factor", 1.0)
