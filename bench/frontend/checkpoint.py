"""The model that both servers load and neither runs: its tokenizer and chat template are what counts.

The tokenizer is byte-level BPE of 32,768 tokens with the rule by which Qwen's divides words, trained on texts that are on every machine that
has the repository.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
VOCABULARY: Final = 32_768
CONTEXT: Final = 4096
CODE_BYTES: Final = 6_000_000
SPECIALS: Final = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prose() -> str:
    """The repository's own documents."""
    files = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return "\n\n".join(file.read_text() for file in files)


def python_sources(most: int) -> str:
    """Python's standard library."""
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if size > most:
            break
        texts.append(path.read_text(encoding="utf-8", errors="ignore"))
        size += len(texts[-1])
    return "\n".join(texts)


def _trained(code_bytes: int) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([prose(), python_sources(code_bytes)], trainer)
    return tokenizer


def make(folder: Path, code_bytes: int = CODE_BYTES) -> None:
    """Config, weights, tokenizer and template."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, head_dim=32,
        intermediate_size=688, vocab_size=VOCABULARY, tie_word_embeddings=True, max_position_embeddings=CONTEXT,
        bos_token_id=None, eos_token_id=SPECIALS.index("<|endoftext|>"), pad_token_id=SPECIALS.index("<|endoftext|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)
    of_tokenizer: Any = transformers.PreTrainedTokenizerFast
    fast = of_tokenizer(
        tokenizer_object=_trained(code_bytes), unk_token="<unk>", eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
