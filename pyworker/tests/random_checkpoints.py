"""Small checkpoints with random weights, in every shape that a family knows, and what `transformers` makes of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 199  # no multiple of anything
POSITIONS = 512

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 144,
    "vocab_size": VOCAB,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    # Large weights make logits that differ clearly, so that greedy choices are no coin tosses.
    "initializer_range": 0.15,
}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

GEMMA = {"tie_word_embeddings": True, "final_logit_softcapping": 20.0}

# Name -> (family, what differs from SHAPE).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_attention_heads": 8, "head_dim": 8}),
    "llama-heads": ("llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama-tied-biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}}),
    "llama-dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "max_position_embeddings": 70},
    ),
    "qwen3": ("qwen3", {"head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3-tied-yarn": (
        "qwen3",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "qwen3-windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 2}),
    "mistral": ("mistral", {"sliding_window": 33}),
    "mistral-unbounded": ("mistral", {"sliding_window": None, "head_dim": 20}),
    "ministral": (
        "ministral",
        {"sliding_window": 17, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "qwen2": ("qwen2", {}),
    "gemma2": ("gemma2", GEMMA | {"sliding_window": 24, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0}),
    "gemma3": ("gemma3", GEMMA | {"num_hidden_layers": 7, "sliding_window": 19, "query_pre_attn_scalar": 20}),
    "gemma3-beside-images": (
        "gemma3_beside_images",
        {"tie_word_embeddings": True, "num_hidden_layers": 7, "sliding_window": 19, "query_pre_attn_scalar": 20},
    ),
    # Of which this class of transformers caps nothing, though its text's config says so.
    "gemma3-beside-images-untied": (
        "gemma3_beside_images",
        {
            "final_logit_softcapping": 2.0,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}},
            "sliding_window": 27,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 40}),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 5.0},
    ),
    "olmo2": ("olmo2", {"num_attention_heads": 8, "head_dim": 8}),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "phi3-longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0 + place / 8 for place in range(8)],
                "long_factor": [2.0 + place for place in range(8)],
            },
        },
    ),
}

# GPT-2 and GPT-NeoX do not look at numbers of heads for keys and values, though these stand in their config.json here.
NEOX_ROPE = {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5}
VARIANTS |= {
    "gpt2": ("gpt2", {"tie_word_embeddings": True}),
    "gpt2-scaled": (
        "gpt2",
        {
            "n_inner": 100,
            "activation_function": "relu",
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
            "initializer_range": 0.1,
        },
    ),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox-serial": (
        "gpt_neox",
        {
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": NEOX_ROPE,
            "tie_word_embeddings": True,
        },
    ),
    "bloom": ("bloom", {"tie_word_embeddings": True}),
    "bloom-heads": ("bloom", {"n_head": 6, "hidden_size": 96, "layer_norm_epsilon": 1e-3}),  # no power of two
    "starcoder2": ("starcoder2", {"sliding_window": 27, "tie_word_embeddings": True}),
    "starcoder2-unbiased": ("starcoder2", {"use_bias": False, "num_key_value_heads": 1}),
    "cohere": ("cohere", {"tie_word_embeddings": True}),
    "cohere-normed": ("cohere", {"use_qk_norm": True, "attention_bias": True, "logit_scale": 0.7}),
    "cohere-normed-alone": ("cohere", {"use_qk_norm": True, "num_key_value_heads": 1}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "sliding_window": 22, "tie_word_embeddings": True}),
}

# What looks at images has more layers than the text's model.
IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 9,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 28,
    "patch_size": 14,
}


def gemma3_beside_images(**text: Any) -> transformers.Gemma3Config:
    """Whether the head is tied stands outside alone: transformers does not ask the text's config."""
    return transformers.Gemma3Config(
        tie_word_embeddings=text.pop("tie_word_embeddings"),
        initializer_range=text["initializer_range"],
        text_config=text,
        vision_config={"model_type": "siglip_vision_model", **IMAGES},
        mm_tokens_per_image=4,
    )


KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "ministral": (transformers.MinistralConfig, transformers.MinistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "gemma3_beside_images": (gemma3_beside_images, transformers.Gemma3ForConditionalGeneration),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    "granite": (transformers.GraniteConfig, transformers.GraniteForCausalLM),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
    "bloom": (transformers.BloomConfig, transformers.BloomForCausalLM),
    "starcoder2": (transformers.Starcoder2Config, transformers.Starcoder2ForCausalLM),
    "cohere": (transformers.CohereConfig, transformers.CohereForCausalLM),
    "cohere2": (transformers.Cohere2Config, transformers.Cohere2ForCausalLM),
}


NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")


def write(folder: Path, variant: str, dtype: torch.dtype = torch.float32, shard: str = "1GB") -> Path:
    """Writes a checkpoint and returns its folder."""
    family, overrides = VARIANTS[variant]
    make_config, make_model = KINDS[family]
    torch.manual_seed(sum(map(ord, variant)))
    model = make_model(make_config(**{**SHAPE, **overrides}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(NORMS):  # transformers starts with ones, which hide a wrong gain; Gemma adds 1
                parameter.uniform_(0.5, 1.5).sub_(1.0 if family.startswith("gemma") else 0.0)
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


@functools.cache
def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint in transformers; "eager", since other ways of some versions leave soft caps out without a word."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


@torch.inference_mode()
def logits(folder: Path, tokens: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What transformers says after each token, computing in `dtype`: float32 of [tokens, vocab]."""
    out: torch.Tensor = oracle(folder, dtype)(input_ids=torch.tensor([list(tokens)])).logits[0]
    return out.float()


@torch.inference_mode()
def greedy(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens after `prompt`, stop tokens ignored."""
    known, past, step = list(prompt), None, torch.tensor([list(prompt)])
    for _ in range(count):
        out = oracle(folder)(input_ids=step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        known.append(int(out.logits[0, -1].argmax()))
        step = torch.tensor([[known[-1]]])
    return known[len(prompt) :]
