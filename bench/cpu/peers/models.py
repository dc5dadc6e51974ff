"""Checkpoints of random weights in the shapes that are compared, and the same weights for llama.cpp.

    FOLDER/transformers/bin/python bench/cpu/peers/models.py --out MODELS tiny qwen06b [--gguf bf16 q8_0 q4_0]

Run by `compare.py` in the environment of `transformers`, which has what writes both formats. Speed does not depend on what weights are,
only on how many: `tiny` shows the servers' overhead, `qwen06b` has Qwen3-0.6B's layers and `llama1b` Llama 3.2 1B's, each with a vocabulary
of 32,768.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path
from typing import Any, Final

import torch

TEXT_BYTES: Final = 10_000_000
SPECIALS: Final = ["<unk>", "<s>", "</s>", "<pad>"]
CONTEXT: Final = 4096
SHAPES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tiny": ("llama", {
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "intermediate_size": 688, "vocab_size": 8192, "tie_word_embeddings": False,
    }),
    "qwen06b": ("qwen3", {
        "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "vocab_size": 32_768, "tie_word_embeddings": True,
    }),
    "llama1b": ("llama", {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "vocab_size": 32_768, "tie_word_embeddings": True,
    }),
}  # fmt: skip
# Of a layer, Hugging Face's names and llama.cpp's.
LAYER_NAMES: Final = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
OTHER_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def train_tokenizer(vocabulary: int) -> Any:
    """Byte-level pairs from the sources of Python's standard library, which every machine has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if size > TEXT_BYTES:
            break
        texts.append(path.read_text(encoding="utf-8", errors="ignore"))
        size += len(texts[-1])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=1, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_checkpoint(name: str, folder: Path) -> tuple[Any, Any]:
    """A model in bfloat16, saved with its tokenizer."""
    import transformers

    kind, sizes = SHAPES[name]
    of_config, of_model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[kind]
    config = of_config(
        **sizes, max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=2, pad_token_id=3, initializer_range=0.02
    )
    torch.manual_seed(0)
    model = of_model(config).to(torch.bfloat16).eval()
    model.generation_config.do_sample = False
    model.save_pretrained(folder, safe_serialization=True)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(config.vocab_size),
        unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    return model, config


def write_gguf(model: Any, config: Any, folder: Path, kind: str, quantisation: str) -> None:
    """The same weights in llama.cpp's format, `weights-QUANTISATION.gguf` in the checkpoint's folder."""
    import gguf

    path = folder / f"weights-{quantisation}.gguf"
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_name(folder.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    write_vocabulary(writer, gguf, json.loads((folder / "tokenizer.json").read_text())["model"], config.vocab_size)
    quantised = getattr(gguf.GGMLQuantizationType, quantisation.upper())
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float()
        title = OTHER_NAMES.get(name)
        if title is None:
            _, _, layer, rest = name.split(".", 3)
            base = rest.rsplit(".", 1)[0]
            title = f"blk.{layer}.{LAYER_NAMES[base]}.weight"
            if kind == "llama" and base.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if "q_proj" in base else config.num_key_value_heads
                values = interleaved(values, heads)
        array = values.contiguous().numpy()
        if array.ndim == 1:
            writer.add_tensor(title, array)
            continue
        # A row that is no whole number of blocks stays in bfloat16 (`tiny`'s down projection, 688 wide), as with llama.cpp's own tool.
        divides = array.shape[1] % gguf.GGML_QUANT_SIZES[quantised][0] == 0
        stored = quantised if divides else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(title, gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_vocabulary(writer: Any, gguf: Any, bpe: dict[str, Any], size: int) -> None:
    """The tokenizer. Ids that it has not trained are unused ones."""
    tokens, types = [f"[PAD{at}]" for at in range(size)], [gguf.TokenType.UNUSED] * size
    for token, at in bpe["vocab"].items():
        tokens[at] = token
        types[at] = gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(False)


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's `llama` rotates neighbours, the checkpoint halves of a head."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(SHAPES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gguf", nargs="*", default=[], choices=["bf16", "q8_0", "q4_0"])
    options = parser.parse_args()
    for name in options.names:
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        model, config = make_checkpoint(name, folder)
        for quantisation in options.gguf:
            write_gguf(model, config, folder, SHAPES[name][0], quantisation)
        print(f"{name}: {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} M parameters in {folder}")


if __name__ == "__main__":
    main()
