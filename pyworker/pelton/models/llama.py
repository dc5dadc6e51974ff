"""Llama and its near kin: pre-norm decoders that differ by a switch or two."""

from __future__ import annotations

from dataclasses import replace

from pelton.layers.rotary import NONE
from pelton.loading.config import Fields
from pelton.models.config import DecoderConfig, read_decoder, read_local, read_rope


def llama(fields: Fields) -> DecoderConfig:
    """arXiv:2302.13971, 2307.09288, 2407.21783."""
    bias = fields.flag("attention_bias")
    return replace(read_decoder(fields), qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def mistral(fields: Fields) -> DecoderConfig:
    """arXiv:2310.06825: a window in every layer, unless the config says null. Ministral 8B: in those that `layer_types` names."""
    config = read_decoder(fields)
    window = fields.count_or_null("sliding_window", 4096)
    is_local = read_local(fields, [True] * config.layers)
    return replace(config, windows=tuple(window if local else None for local in is_local))


def qwen2(fields: Fields) -> DecoderConfig:
    """arXiv:2407.10671, 2412.15115: biases where queries, keys and values are made. A window in the upper layers, if asked for."""
    config = replace(read_decoder(fields), qkv_bias=True)
    return replace(config, windows=_qwen_windows(fields, config.layers))


def qwen3(fields: Fields) -> DecoderConfig:
    """arXiv:2505.09388: queries and keys are normed head by head before they are rotated, so biases are rare."""
    bias = fields.flag("attention_bias")
    config = replace(read_decoder(fields, head_dim=128), qkv_bias=bias, out_bias=bias, query_norm="head")
    return replace(config, windows=_qwen_windows(fields, config.layers))


def _qwen_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    window = fields.count_or_null("sliding_window", 4096) if fields.flag("use_sliding_window") else None
    first = fields.count("max_window_layers", 28, least=0)
    is_local = read_local(fields, [layer >= first for layer in range(layers)])
    return tuple(window if local else None for local in is_local)


def smollm3(fields: Fields) -> DecoderConfig:
    """huggingface.co/blog/smollm3: some layers know no positions (arXiv:2501.18795); these may have a window."""
    config = llama(fields.usual(rope_theta=2_000_000.0))
    if "no_rope_layers" in fields:
        rotates = fields.switches("no_rope_layers", config.layers)  # 1 is with
    else:
        interval = fields.count("no_rope_layer_interval", 4)
        rotates = [(layer + 1) % interval != 0 for layer in range(config.layers)]
    window = fields.count_or_null("sliding_window", None) if fields.flag("use_sliding_window") else None
    return replace(
        config,
        is_tied=fields.flag("tie_word_embeddings", default=True),
        ropes=tuple(rope if has else NONE for rope, has in zip(config.ropes, rotates, strict=True)),
        windows=tuple(window if local else None for local in read_local(fields, [not has for has in rotates])),
    )


def granite(fields: Fields) -> DecoderConfig:
    """huggingface.co/ibm-granite: four numbers that keep all sizes of the model at one learning rate (arXiv:2203.03466)."""
    return replace(
        llama(fields),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        scales_given=True,
        residual_scale=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )


def olmo2(fields: Fields) -> DecoderConfig:
    """arXiv:2501.00656: norms after attention and MLP instead of before them, and over all queries and all keys of a token."""
    bias = fields.flag("attention_bias")
    config = read_decoder(fields, norm_eps=1e-5)
    return replace(config, qkv_bias=bias, out_bias=bias, query_norm="all heads", norms_before=False, norms_after=True)


def phi3(fields: Fields) -> DecoderConfig:
    """arXiv:2404.14219, 2412.08905: products stand fused in the checkpoint. A share of each head may be rotated alone."""
    positions = fields.count("max_position_embeddings", 4096)
    rope = read_rope(fields, positions, may_be_partial=True)
    config = read_decoder(fields, norm_eps=1e-5, rope=rope)
    windows = (fields.count_or_null("sliding_window", None),) * config.layers
    return replace(config, is_fused=True, windows=windows)
