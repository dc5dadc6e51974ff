"""Small random-weight checkpoints, made on the spot, and what `transformers` says they generate.

PyTorch and `transformers` are imported where they are used: that takes some ten seconds of a process, and not every one needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
END = SPECIALS.index("</s>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB = 512
LICENSE = Path(__file__).parents[2] / "LICENSE"


@dataclass(frozen=True)
class Variant:
    """One architecture in one shape. `overrides` are fields of its config."""

    name: str
    family: str
    overrides: dict[str, Any]


VARIANTS = [
    Variant("llama-gqa", "llama", {"num_attention_heads": 8, "num_key_value_heads": 2}),
    Variant("llama-tied", "llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    Variant(
        "llama3-rope",
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    Variant(
        "llama-linear-rope",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    Variant("qwen3", "qwen3", {"head_dim": 24}),
    Variant(
        "qwen3-tied-yarn",
        "qwen3",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
]

# Layers with and without a window; not among those above, each of which costs a server.
WINDOWED = Variant("gemma3", "gemma3", {"num_hidden_layers": 7, "sliding_window": 48, "query_pre_attn_scalar": 16})

# Families that are not native, each of another shape; not among those above either.
BORROWED = [
    Variant("qwen3-moe", "qwen3_moe", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}),
    Variant("opt", "opt", {"ffn_dim": 144, "word_embed_proj_dim": 64, "tie_word_embeddings": True}),
    Variant("glm4", "glm4", {"partial_rotary_factor": 0.5, "attention_bias": True, "pad_token_id": 0}),
    Variant(
        "gpt-oss",
        "gpt_oss",
        {
            "num_hidden_layers": 4,
            "sliding_window": 21,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "pad_token_id": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
]

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 144,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": SPECIALS.index("<s>"),
    "eos_token_id": END,
    "tie_word_embeddings": False,
    # Large weights make logits that differ clearly, so that greedy choices are no coin tosses.
    "initializer_range": 0.15,
}


def make_tokenizer(folder: Path) -> None:
    """A byte-level BPE over a text that does not change: some tests need answers of some kind, and random models give others with other tokens."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([LICENSE.read_text()] * 4, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def make_checkpoint(folder: Path, variant: Variant, dtype: str = "float32", seed: int = 0) -> Path:
    """Writes a checkpoint in Hugging Face layout and returns its folder."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
        "opt": (transformers.OPTConfig, transformers.OPTForCausalLM),
        "glm4": (transformers.Glm4Config, transformers.Glm4ForCausalLM),
        "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
    }
    make_config, make_model = kinds[variant.family]
    torch.manual_seed(seed)
    model = make_model(make_config(**{**SHAPE, **variant.overrides})).to(getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = END
    model.save_pretrained(folder, safe_serialization=True)
    make_tokenizer(folder)
    return folder


@functools.lru_cache(4)
def oracle(folder: Path) -> Any:
    """The checkpoint in `transformers`, in float32. It is not to be changed."""
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(folder: Path, prompt: Sequence[int], count: int) -> list[int]:
    """What the oracle says: `count` greedy tokens after `prompt`, stop tokens ignored."""
    import torch

    model = oracle(folder)
    known = list(prompt)
    past = None
    step = torch.tensor([known])
    with torch.inference_mode():
        for _ in range(count):
            out = model(input_ids=step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            known.append(int(out.logits[0, -1].argmax()))
            step = torch.tensor([[known[-1]]])
    return known[len(prompt) :]
