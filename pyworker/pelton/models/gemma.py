"""Gemma 2 (arXiv:2408.00118) and Gemma 3 (arXiv:2503.19786): norms around attention and MLP, layers with and without a window.

A gain is 1 + weight, embeddings are multiplied by √width, the gate is GELU in its tanh form.
Gemma 3 that looks at images, too, has its text's config within its own; here it is that text alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pelton.layers.rotary import Rope
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models.config import DecoderConfig, read_decoder, read_local, read_rope

# What published configs of Gemma 3 leave out, those of 4 B and more nearly all of it.
GEMMA3_USUAL = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}
TEXT_FIELDS = {name: f"text_config.{name}" for name in (*GEMMA3_USUAL, "head_dim")}


def gemma2(fields: Fields) -> DecoderConfig:
    """Every second layer, from the first on, has a window; scores and logits are capped softly."""
    config = _gemma(fields, read_rope(fields, _positions(fields)))
    window = fields.count_or_null("sliding_window", 4096)
    is_local = read_local(fields, [layer % 2 == 0 for layer in range(config.layers)])
    return replace(
        config,
        windows=tuple(window if local else None for local in is_local),
        attention_cap=fields.number_or_null("attn_logit_softcapping", 50.0),
        logit_cap=fields.number_or_null("final_logit_softcapping", 30.0),
    )


def gemma3(fields: Fields) -> DecoderConfig:
    """Five layers with a window, then one without; these turn more slowly. Normed queries and keys need no cap."""
    fields = fields.usual(**GEMMA3_USUAL)
    everywhere, nearby = _ropes(fields, _positions(fields))
    config = _gemma(fields, everywhere)
    window = fields.count_or_null("sliding_window", 4096)
    every = fields.count("sliding_window_pattern", 6)
    is_local = read_local(fields, [(layer + 1) % every != 0 for layer in range(config.layers)])
    return replace(
        config,
        query_norm="head",
        windows=tuple(window if local else None for local in is_local),
        ropes=tuple(nearby if local else everywhere for local in is_local),
        logit_cap=fields.number_or_null("final_logit_softcapping", None),
    )


def gemma3_beside_images(fields: Fields) -> DecoderConfig:
    """As transformers 5 has it: the outer config says whether the head is tied, and its logits are not capped, whatever the inner one says."""
    if "text_config" not in fields:
        raise LoadError("config.json has no `text_config`")
    text = fields.object("text_config")
    text.word("model_type", ["gemma3_text"], "gemma3_text")
    config = gemma3(text.without("final_logit_softcapping"))
    return replace(config, is_tied=fields.flag("tie_word_embeddings", default=True))


def _positions(fields: Fields) -> int:
    return fields.count("max_position_embeddings")


def _gemma(fields: Fields, rope: Rope) -> DecoderConfig:
    if fields.flag("use_bidirectional_attention"):
        raise LoadError("`use_bidirectional_attention` in config.json is true; supported: false")
    bias = fields.flag("attention_bias")
    config = read_decoder(fields, head_dim=256, activation=("hidden_activation", "gelu_pytorch_tanh"), rope=rope)
    return replace(
        config,
        is_tied=fields.flag("tie_word_embeddings", default=True),
        qkv_bias=bias,
        out_bias=bias,
        gain_offset=1.0,
        norms_after=True,
        embedding_scale=math.sqrt(config.width),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
    )


def _ropes(fields: Fields, positions: int) -> tuple[Rope, Rope]:
    """Of the layers without and with a window. transformers 5 writes one object for each."""
    given = fields.object("rope_parameters")
    if "full_attention" in given or "sliding_attention" in given:
        everywhere, nearby = (
            fields.alone(rope_parameters=given.get(f"{kind}_attention")) for kind in ("full", "sliding")
        )
        return read_rope(everywhere, positions, theta=1e6), read_rope(nearby, positions, theta=1e4)
    return read_rope(fields, positions, theta=1e6), Rope("default", fields.number("rope_local_base_freq", 1e4))
