"""`tokenizer.json` as published checkpoints of byte-level BPE have it: their split patterns, their added tokens, what they put around a text.

The vocabulary is small, and learnt from this repository's licence and texts of any Unicode.
"""

# ruff: noqa: RUF001 -- DeepSeek's bars and pattern are wide

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.any_text import texts
from support.checkpoints import LICENSE

Json = dict[str, Any]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SIGNS_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def by_letters(digits: str) -> str:
    """Llama 3's, Qwen 2's."""
    return CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SIGNS_AND_SPACES


def by_case(ending: str, digits: str) -> str:
    """OpenAI's `o200k`, Mistral's since Nemo."""
    words = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ending}"
    return words + "|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SIGNS_AND_SPACES


def splits(*patterns: str) -> Json:
    """The pre-tokenizer of these patterns, each of which splits what the one before it has left."""
    parts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*parts, to_bytes(use_regex=False)]}


def to_bytes(use_regex: bool) -> Json:
    """From text to bytes; `use_regex`: by GPT-2's pattern before that."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


@dataclass(frozen=True)
class Published:
    """What is told of one family's files. `said` is its `tokenizer_config.json`: the class and the flags that published ones have."""

    model_type: str
    splits: Json
    special: tuple[str, ...]
    said: Json
    plain: tuple[str, ...] = ()  # added tokens that are part of texts
    begins: bool = False  # each text with the first special token
    takes_spaces: bool = False  # added tokens, on both sides
    normalizer: Json | None = None
    ignore_merges: bool = False

    @property
    def added(self) -> list[str]:
        return [*self.special, *self.plain]


QWEN35 = by_letters(r"\p{N}").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + SIGNS_AND_SPACES,
)
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_SAID: Json = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
QWEN_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PUBLISHED = {
    "GPT-2": Published(
        "gpt2", to_bytes(use_regex=True), ("<|endoftext|>",), {"model_max_length": 1024, "add_prefix_space": False}
    ),
    "Llama 3": Published(
        "llama",
        splits(by_letters(r"\p{N}{1,3}")),
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        begins=True,
        ignore_merges=True,
    ),
    "Qwen 3": Published(
        "qwen3",
        splits(by_letters(r"\p{N}")),
        QWEN_SPECIAL,
        {"tokenizer_class": "Qwen2Tokenizer", **QWEN_SAID, "add_bos_token": False, "add_prefix_space": False},
        plain=QWEN_PLAIN,
        normalizer={"type": "NFC"},
    ),
    "Qwen 3.5": Published(
        "qwen3_5",
        splits(QWEN35),
        QWEN_SPECIAL,
        {"tokenizer_class": "Qwen2Tokenizer", **QWEN_SAID, "add_bos_token": False, "add_prefix_space": False},
        plain=QWEN_PLAIN,
        normalizer={"type": "NFC"},
    ),
    "DeepSeek 3": Published(
        "deepseek_v3",
        splits(*DEEPSEEK3),
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        {
            "tokenizer_class": "LlamaTokenizerFast",
            "legacy": True,
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": "<｜begin▁of▁sentence｜>",
            "eos_token": "<｜end▁of▁sentence｜>",
        },
        plain=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
        normalizer={"type": "Sequence", "normalizers": []},
    ),
    "gpt-oss": Published(
        "gpt_oss",
        splits(by_case(CONTRACTIONS + "?", r"\p{N}{1,3}")),
        ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|message|>"),
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
    ),
    "Mistral NeMo": Published(
        "mistral",
        splits(by_case("", r"\p{N}")),
        ("<s>", "</s>", "[INST]", "[/INST]"),
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": False,
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
        begins=True,
    ),
    # The published class is GPT2Tokenizer, which in transformers 5 forgets that digits stand alone, as they did when the model was trained.
    "SmolLM 2": Published(
        "llama",
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, to_bytes(use_regex=True)],
        },
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"),
        {"tokenizer_class": "TokenizersBackend", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ),
    "Phi 4": Published(
        "phi3",
        splits(by_letters(r"\p{N}{1,3}")),
        ("<|endoftext|>", "<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
        takes_spaces=True,
    ),
}


def write(folder: Path, published: Published) -> None:
    """`tokenizer.json` and `tokenizer_config.json`."""
    from tokenizers import Tokenizer

    model = {**_model(), "ignore_merges": published.ignore_merges}
    first = len(model["vocab"])
    steps = {
        "version": "1.0",
        "added_tokens": [_added(id_, name, published) for id_, name in enumerate(published.added, first)],
        "normalizer": published.normalizer,
        "pre_tokenizer": published.splits,
        "post_processor": _template(published.special[0], first) if published.begins else to_bytes(use_regex=True),
        "decoder": to_bytes(use_regex=True),
    }
    tokenizer = Tokenizer.from_str(json.dumps({**steps, "model": model}))
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(published.said), encoding="utf-8")


@functools.cache
def _model() -> Json:
    """Learnt of texts that are not split, so that each place where one pattern splits and another does not shows in the tokens.

    Every seventh merge is left out: whether a word that is a token is taken whole shows, too.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1800, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*LICENSE.read_text().splitlines(), *texts(2000, [], seed=1)], trainer)
    model: Json = json.loads(tokenizer.to_str())["model"]
    del model["merges"][::7]
    return model


def _added(id_: int, name: str, published: Published) -> Json:
    sides = {"lstrip": published.takes_spaces, "rstrip": published.takes_spaces}
    is_special = name in published.special
    return {"id": id_, "content": name, "single_word": False, **sides, "normalized": False, "special": is_special}


def _template(name: str, id_: int) -> Json:
    first, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    known = {name: {"id": name, "ids": [id_], "tokens": [name]}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, first, second],
        "special_tokens": known,
    }
