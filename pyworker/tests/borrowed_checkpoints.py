"""Small checkpoints of families that are not native, each of another shape, and what `transformers` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from random_checkpoints import SHAPE

MLA = {  # multi-head latent attention: keys are wider than values
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}

# Name -> (config, what differs from SHAPE).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # Experts, chosen by a router; queries and keys normed.
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True},
    ),
    # LayerNorm with biases, learned positions that begin at 2, no gate.
    "opt": ("OPT", {"ffn_dim": 144, "word_embed_proj_dim": 64, "tie_word_embeddings": True}),
    # Interleaved rotation of a part of a head, norms before and after.
    "glm4": ("Glm4", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    # Sinks, a window in every second layer, experts with biases and a clamped gate.
    "gpt-oss": (
        "GptOss",
        {
            "num_hidden_layers": 4,
            "sliding_window": 21,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **MLA,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 40,
        },
    ),
    # One head of keys and values; weights whose norm is 1 + weight, and an activation that is a square.
    "nemotron": ("Nemotron", {"num_key_value_heads": 1, "partial_rotary_factor": 0.5}),
    # Layers of two sizes: those with a window have narrower heads.
    "gemma4": (
        "Gemma4",
        {
            "num_hidden_layers": 3,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "sliding_window": 19,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
        },
    ),
    # Angles that follow the length of a request, but only behind the context.
    "glm4-dynamic": (
        "Glm4",
        {
            "partial_rotary_factor": 0.5,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.5},
        },
    ),
    # The same name for angles that follow nothing.
    "hunyuan": (
        "HunYuanDenseV1",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}},
    ),
    # A class whose other checkpoints keep a state.
    "granite-4": (
        "GraniteMoeHybrid",
        {
            "layer_types": ["full_attention"] * 3,
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
        },
    ),
}
CONFIGS = {"Gemma4": "Gemma4TextConfig"}


def write(folder: Path, variant: str, dtype: torch.dtype = torch.float32, shard: str = "1GB") -> Path:
    """Writes a checkpoint and returns its folder."""
    family, overrides = VARIANTS[variant]
    config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**{**SHAPE, **overrides})
    torch.manual_seed(sum(map(ord, variant)))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):  # transformers starts with ones, which hide a wrong gain
                parameter.uniform_(0.5, 1.5).sub_(1.0 if family == "Nemotron" else 0.0)
            if "bias" in name or "sinks" in name:
                parameter.uniform_(-0.5, 0.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder
