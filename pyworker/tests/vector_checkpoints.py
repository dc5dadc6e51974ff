"""Small checkpoints of models that give vectors, with random weights, and what `transformers` makes of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from random_checkpoints import NORMS, VOCAB, gemma3_beside_images
from safetensors.torch import save_file

SEPARATOR = 3

BERT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 100,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "initializer_range": 0.15,
}
ROBERTA = BERT | {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
MODERN = {key: value for key, value in BERT.items() if key != "type_vocab_size"} | {
    "num_hidden_layers": 4,
    "local_attention": 16,
    "cls_token_id": 1,
    "sep_token_id": SEPARATOR,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN3: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 144,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
}
GEMMA3 = QWEN3 | {"sliding_window": 19, "tie_word_embeddings": True}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": VOCAB, "n_positions": 512, "initializer_range": 0.15}
# Name -> (config's class, model's class, fields).
VARIANTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (transformers.BertConfig, transformers.BertModel, BERT),
    "bert-masked": (transformers.BertConfig, transformers.BertForMaskedLM, BERT | {"hidden_act": "gelu_new"}),
    "bert-classes": (transformers.BertConfig, transformers.BertForSequenceClassification, BERT | {"num_labels": 3}),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel, ROBERTA),
    "roberta-classes": (
        transformers.RobertaConfig,
        transformers.RobertaForSequenceClassification,
        ROBERTA | {"num_labels": 1},
    ),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, ROBERTA),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertModel, MODERN),
    "modernbert-masked": (
        transformers.ModernBertConfig,
        transformers.ModernBertForMaskedLM,
        MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 9},
    ),
    "modernbert-classes": (
        transformers.ModernBertConfig,
        transformers.ModernBertForSequenceClassification,
        MODERN | {"id2label": {0: "no", 1: "yes"}, "classifier_pooling": "mean", "classifier_bias": True},
    ),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, QWEN3 | {"tie_word_embeddings": True}),
    # Each token sees the whole text.
    "qwen2-both-ways": (transformers.Qwen2Config, transformers.Qwen2Model, QWEN3 | {"is_causal": False}),
    "llama-both-ways-classes": (
        transformers.LlamaConfig,
        transformers.LlamaForSequenceClassification,
        QWEN3 | {"num_labels": 2, "is_causal": False},
    ),
    "qwen3-bare": (transformers.Qwen3Config, transformers.Qwen3Model, QWEN3),
    "qwen3-classes": (
        transformers.Qwen3Config,
        transformers.Qwen3ForSequenceClassification,
        QWEN3 | {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    "llama-classes": (transformers.LlamaConfig, transformers.LlamaForSequenceClassification, QWEN3 | {"num_labels": 1}),
    # Not called as the whole model is (GPT2LMHeadModel, Gemma3ForCausalLM), or with another first word in names of tensors.
    "gpt2-bare": (transformers.GPT2Config, transformers.GPT2Model, GPT2),
    "gpt2-classes": (transformers.GPT2Config, transformers.GPT2ForSequenceClassification, GPT2 | {"num_labels": 3}),
    "gpt_neox-classes": (
        transformers.GPTNeoXConfig,
        transformers.GPTNeoXForSequenceClassification,
        BERT | {"num_labels": 3},
    ),
    "bloom-bare": (transformers.BloomConfig, transformers.BloomModel, BERT),
    "gemma3-beside-images": (gemma3_beside_images, transformers.Gemma3ForConditionalGeneration, GEMMA3),
    "gemma3-beside-images-bare": (gemma3_beside_images, transformers.Gemma3Model, GEMMA3),
    "gemma3-beside-images-classes": (gemma3_beside_images, transformers.Gemma3ForSequenceClassification, GEMMA3),
    "gemma3-bare": (transformers.Gemma3TextConfig, transformers.Gemma3TextModel, GEMMA3),
}


def write(folder: Path, variant: str, dtype: torch.dtype = torch.float32) -> Path:
    """Writes a checkpoint with the part of a tokenizer that says what separates two texts, and returns its folder."""
    make_config, make_model, fields = VARIANTS[variant]
    torch.manual_seed(sum(map(ord, variant)))
    model = make_model(make_config(**fields))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((*NORMS, "LayerNorm.weight")):
                parameter.uniform_(0.5, 1.5)
            if name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    model.to(dtype).save_pretrained(folder)
    tokenizer = {"added_tokens": [{"id": SEPARATOR, "content": "<sep>"}], "model": {"vocab": {}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": {"content": "<sep>"}}))
    return folder


def pooled_by(folder: Path, mode: str, *, normalizes: bool = True, dense: Sequence[torch.nn.Linear] = ()) -> Path:
    """Makes it a folder of sentence-transformers. Each layer of `dense` is followed by tanh."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *(["Normalize"] if normalizes else [])]
    modules = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "lasttoken", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    for at, layer in enumerate(dense, 2):
        own = folder / f"{at}_Dense"
        own.mkdir()
        sizes = {"in_features": layer.in_features, "out_features": layer.out_features, "bias": layer.bias is not None}
        activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
        (own / "config.json").write_text(json.dumps(sizes | activation))
        save_file(
            {f"linear.{name}": value.detach() for name, value in layer.state_dict().items()}, own / "model.safetensors"
        )
    return folder


@functools.cache
def oracle(folder: Path, kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint in transformers: "Model" without a head, or with one for classes."""
    make = {"Model": transformers.AutoModel, "Classes": transformers.AutoModelForSequenceClassification}[kind]
    return make.from_pretrained(folder, dtype=dtype).eval()


@torch.inference_mode()
def hidden(folder: Path, tokens: Sequence[int], dtype: torch.dtype = torch.float32, **given: Any) -> torch.Tensor:
    """The last hidden states of one text: [tokens, width] float32."""
    model = oracle(folder, "Model", dtype)
    out: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), **given).last_hidden_state[0]
    return out.float()


@torch.inference_mode()
def classes(folder: Path, tokens: Sequence[int], **given: Any) -> torch.Tensor:
    """The logits of one text: [classes]."""
    out: torch.Tensor = oracle(folder, "Classes")(input_ids=torch.tensor([list(tokens)]), **given).logits[0]
    return out
