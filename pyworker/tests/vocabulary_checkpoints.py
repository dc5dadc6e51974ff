"""Folders with a vocabulary of each kind that is no `tokenizer.json`, made of this repository's own texts."""

from __future__ import annotations

import base64
import functools
import io
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def lines() -> list[str]:
    """What vocabularies are learnt from."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "LICENSE", "docs/architecture.md")]
    plain = [line for text in texts for line in text.splitlines() if line.strip()]
    return plain + ["Grüße aus Köln, 你好 世界", "naïve café: ½ ﬁ"] * 5


def sentencepiece_model(kind: str, size: int, **settings: Any) -> bytes:
    """As its own trainer writes it."""
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=out,
        model_type=kind,
        vocab_size=size,
        minloglevel=2,
        **settings,
    )
    return out.getvalue()


def llama_vocabulary(folder: Path, size: int = 700) -> None:
    """As Llama 2's: BPE with byte fallback, digits apart, nothing normalised."""
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "split_digits": True}
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2}
    (folder / "tokenizer.model").write_bytes(sentencepiece_model("bpe", size, byte_fallback=True, **plain, **ids))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "legacy": False, **names})


def _gemma(folder: Path) -> None:
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "split_digits": True}
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    (folder / "tokenizer.model").write_bytes(sentencepiece_model("bpe", 700, byte_fallback=True, **plain, **ids))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "GemmaTokenizer", **names})


def _t5(folder: Path) -> None:
    model = sentencepiece_model("unigram", 700, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})


@functools.cache
def _byte_level() -> dict[str, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _ranks() -> list[bytes]:
    """The tokens' bytes in their order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {shown: byte for byte, shown in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
    words = sorted(_byte_level()["vocab"].items(), key=lambda pair: pair[1])
    return [bytes(byte_of[shown] for shown in word) for word, _ in words]


def _gpt2(folder: Path) -> None:
    model = _byte_level()
    _write(folder / "vocab.json", {**model["vocab"], "<|endoftext|>": len(model["vocab"])})
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")


def _opt(folder: Path) -> None:
    _gpt2(folder)
    said = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "<|endoftext|>"}
    _write(folder / "tokenizer_config.json", said)


def _tiktoken(folder: Path) -> None:
    ranks = _ranks()
    rows = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)]
    (folder / "tokenizer.model").write_text("".join(rows), encoding="utf-8")
    first, last = "<|begin_of_text|>", "<|end_of_text|>"
    added = {str(len(ranks) + at): {"content": name, "special": True} for at, name in enumerate((first, last))}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": first, "eos_token": last}
    _write(folder / "tokenizer_config.json", {**said, "added_tokens_decoder": added})


def _tekken(folder: Path) -> None:
    ranks, names = _ranks(), ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    config = {
        "pattern": TEKKEN_SPLIT,
        "num_vocab_tokens": len(ranks),
        "default_vocab_size": len(ranks) + 20,
        "default_num_special_tokens": 20,
        "version": "v3",
    }
    vocab = [{"rank": at, "token_bytes": base64.b64encode(token).decode()} for at, token in enumerate(ranks)]
    specials = [{"rank": at, "token_str": name, "is_control": True} for at, name in enumerate(names)]
    _write(folder / "tekken.json", {"config": config, "vocab": vocab, "special_tokens": specials})


def _bert(folder: Path) -> None:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    signs = [chr(code) for code in range(33, 127) if not chr(code).isalpha()]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *signs, *letters, "the", "server", "##ing"]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"##{letter}" for letter in letters)]) + "\n")


# By kind: the model type, and what writes the vocabulary.
KINDS = {
    "sentencepiece bpe, as llama": ("llama", llama_vocabulary),
    "sentencepiece bpe, as gemma": ("gemma2", _gemma),
    "sentencepiece unigram, as t5": ("t5", _t5),
    "vocabulary and merges, as gpt-2": ("gpt2", _gpt2),
    "vocabulary and merges, as opt": ("opt", _opt),
    "tiktoken": ("llama", _tiktoken),
    "tekken": ("mistral", _tekken),
    "word pieces, as bert": ("bert", _bert),
}


def make(kind: str, folder: Path) -> Path:
    """A folder with this vocabulary and a configuration that says no more than the model's type."""
    model_type, write = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", {"model_type": model_type})
    write(folder)
    return folder


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
