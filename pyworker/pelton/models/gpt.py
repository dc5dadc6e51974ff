"""GPT-2, GPT-NeoX, BLOOM, StarCoder2 and Cohere: decoders with layer norms, with MLPs without a gate, or with attention and MLP side by side."""

from __future__ import annotations

from dataclasses import replace

from pelton.layers.rotary import NONE
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models.config import DecoderConfig, read_decoder, read_local, read_rope

GPT2_FIELDS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
NEOX_FIELDS = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}
BLOOM_FIELDS = {"rms_norm_eps": "layer_norm_epsilon", "max_position_embeddings": "seq_length"}
BLOOM_OTHERS = {"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
STARCODER2_FIELDS = {"rms_norm_eps": "norm_epsilon"}
COHERE_FIELDS = {"rms_norm_eps": "layer_norm_eps"}


def gpt2(fields: Fields) -> DecoderConfig:
    """Radford et al. 2019: positions are learned and added once. Weights stand transposed, queries, keys and values fused."""
    if fields.flag("add_cross_attention"):
        raise LoadError("`add_cross_attention` in config.json is true; supported: false")
    fields = _ungrouped(fields)
    fields = fields.usual(intermediate_size=4 * fields.count("hidden_size"), tie_word_embeddings=True)
    config = read_decoder(fields, norm_eps=1e-5, activation=("hidden_act", "gelu_new"), rope=NONE, is_gated=False)
    # `reorder_and_upcast_attn` says where half floats would be widened; scores are float32 here in any case.
    return replace(
        config,
        positions=fields.count("max_position_embeddings", 1024),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        is_fused=True,
        is_transposed=True,
        norm="layer",
        norm_bias=True,
        has_learned_positions=True,
        attention_scale=config.attention_scale if fields.flag("scale_attn_weights", default=True) else 1.0,
        attention_scale_falls=fields.flag("scale_attn_by_inverse_layer_idx"),
    )


def gpt_neox(fields: Fields) -> DecoderConfig:
    """arXiv:2204.06745, and 2304.01373 (Pythia): a share of each head is rotated; each head's query, key and value are fused."""
    fields = _ungrouped(fields.usual(partial_rotary_factor=0.25))
    rope = read_rope(fields, fields.count("max_position_embeddings", 2048), may_be_partial=True)
    config = read_decoder(fields, norm_eps=1e-5, activation=("hidden_act", "gelu"), rope=rope, is_gated=False)
    bias = fields.flag("attention_bias", default=True)
    return replace(
        config,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        is_fused=True,
        is_fused_by_head=True,
        block="parallel" if fields.flag("use_parallel_residual", default=True) else "serial",
        norm="layer",
        norm_bias=True,
    )


def bloom(fields: Fields) -> DecoderConfig:
    """arXiv:2211.05100: no positions but what scores lose with distance; the embedding is normed; each head's query, key and value are fused."""
    if fields.flag("apply_residual_connection_post_layernorm"):
        raise LoadError("`apply_residual_connection_post_layernorm` in config.json is true; supported: false")
    fields = _ungrouped(fields).without("hidden_act", "intermediate_size")
    # Old checkpoints and transformers name some sizes otherwise.
    fields = fields.usual(**{name: fields.get(other) for name, other in BLOOM_OTHERS.items() if other in fields})
    fields = fields.usual(intermediate_size=4 * fields.count("hidden_size"), tie_word_embeddings=True)
    config = read_decoder(
        fields, norm_eps=1e-5, activation=("hidden_act", "gelu_pytorch_tanh"), rope=NONE, is_gated=False
    )
    return replace(
        config,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        is_fused=True,
        is_fused_by_head=True,
        norm="layer",
        norm_bias=True,
        has_slopes=True,
        norms_embedding=True,
    )


def starcoder2(fields: Fields) -> DecoderConfig:
    """arXiv:2402.19173: grouped heads, biases everywhere, and a window in every layer where the config has one."""
    fields = fields.usual(num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True)
    config = read_decoder(fields, norm_eps=1e-5, activation=("hidden_act", "gelu_pytorch_tanh"), is_gated=False)
    bias = fields.flag("use_bias", default=True)
    return replace(
        config,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm="layer",
        norm_bias=True,
        windows=(fields.count_or_null("sliding_window", None),) * config.layers,
    )


def cohere(fields: Fields) -> DecoderConfig:
    """huggingface.co/CohereLabs: one norm without bias for attention and MLP; neighbouring columns are rotated together."""
    fields = fields.usual(max_position_embeddings=8192, tie_word_embeddings=True)
    rope = read_rope(fields, fields.count("max_position_embeddings"), theta=500_000.0)
    config = read_decoder(fields, norm_eps=1e-5, rope=replace(rope, is_interleaved=True))
    bias = fields.flag("attention_bias")
    return replace(
        config,
        # Command R: 8,192 positions by the one name, which its first code could hold, and 131,072, which it was made for, by the other.
        positions=max(config.positions, fields.count("model_max_length", 1)),
        qkv_bias=bias,
        out_bias=bias,
        block="parallel, one norm",
        norm="layer",
        query_norm="each head" if fields.flag("use_qk_norm") else None,
        logit_scale=fields.number("logit_scale", 0.0625),
    )


def cohere2(fields: Fields) -> DecoderConfig:
    """arXiv:2504.00698: three layers with a window, then one without, which knows no positions."""
    config = cohere(fields.without("use_qk_norm").usual(rope_theta=10_000.0))
    window = fields.count_or_null("sliding_window", 4096)
    if window is None:
        raise LoadError("`sliding_window` in config.json is null; supported: a whole number from 1")
    every = fields.count("sliding_window_pattern", 4)
    is_local = read_local(fields, [(layer + 1) % every != 0 for layer in range(config.layers)])
    return replace(
        config,
        windows=tuple(window if local else None for local in is_local),
        ropes=tuple(rope if local else NONE for rope, local in zip(config.ropes, is_local, strict=True)),
    )


def _ungrouped(fields: Fields) -> Fields:
    """Of models whose heads are all alike and share the width: whatever these fields say, nobody looks at them."""
    return fields.without("num_key_value_heads", "head_dim")
