"""Tokenizers that are made of other files give the ids that `transformers` gives, and SentencePiece's those of its own library."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import vocabulary_checkpoints
from pelton.loading.tokenizer_json import tokenizer_json
from tokenizers import Tokenizer

RANGES = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x500), (0x4E00, 0x4F00), (0x1F600, 0x1F640), (0xAC00, 0xAC80)]


def texts(seed: int) -> list[str]:
    """Of the vocabulary's own words, of any letters, and with every white space."""
    chance = random.Random(seed)
    drawn = []
    for _ in range(60):
        letters = [chr(chance.randrange(*chance.choice(RANGES))) for _ in range(chance.randrange(1, 40))]
        words = chance.choice(vocabulary_checkpoints.lines()).split(" ")
        drawn.append(" ".join(words[:6]) + chance.choice(["", " ", "\n", "\t  "]) + "".join(letters))
    return ["", " ", "  two  spaces ", "a\nb\r\n\n c", "1234567 3.14", *drawn]


@pytest.mark.parametrize("kind", vocabulary_checkpoints.KINDS)
def test_ids_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = vocabulary_checkpoints.make(kind, tmp_path)
    made = Tokenizer.from_str(tokenizer_json(folder))  # the library that the router reads it with
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in texts(seed=len(kind)):
        for special in (True, False):
            ids = made.encode(text, add_special_tokens=special).ids
            assert ids == theirs.encode(text, add_special_tokens=special), (kind, text)


@pytest.mark.parametrize("kind", ["sentencepiece bpe, as llama", "sentencepiece unigram, as t5"])
def test_ids_are_those_of_sentencepiece(kind: str, tmp_path: Path) -> None:
    import sentencepiece

    folder = vocabulary_checkpoints.make(kind, tmp_path)
    made = Tokenizer.from_str(tokenizer_json(folder))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
    # Before white space at the very beginning transformers puts no other one, and SentencePiece does.
    for text in filter(None, map(str.lstrip, texts(seed=7))):
        assert made.encode(text, add_special_tokens=False).ids == theirs.encode(text), (kind, text)


BEGINS_AND_ENDS = {"bos_token": 1, "eos_token": 2}
NAMED = {
    "sentencepiece bpe, as llama": {"unk_token": 0, **BEGINS_AND_ENDS},
    "sentencepiece unigram, as t5": {"pad_token": 0, "eos_token": 1, "unk_token": 2},
    "vocabulary and merges, as gpt-2": dict.fromkeys(("bos_token", "eos_token", "unk_token"), 900),
    "tekken": {"unk_token": 0, **BEGINS_AND_ENDS},
}


@pytest.mark.parametrize("kind", NAMED)
def test_special_tokens_have_their_names_where_no_other_file_says_them(kind: str, tmp_path: Path) -> None:
    folder = vocabulary_checkpoints.make(kind, tmp_path)
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    added = json.loads(tokenizer_json(folder))["added_tokens"]
    assert {name: token["id"] for token in added for name in token["names"]} == NAMED[kind]


def test_tekken_is_read_where_its_own_library_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations.mistral import tokenizer as mistral
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    folder = vocabulary_checkpoints.make("tekken", tmp_path)
    without = tokenizer_json(folder)
    monkeypatch.setattr(mistral, "is_mistral_common_available", lambda: True)
    monkeypatch.setitem(TOKENIZER_MAPPING_NAMES, "mistral", "MistralCommonBackend")
    assert tokenizer_json(folder) == without


def test_what_cannot_be_read_is_told_in_a_line(tmp_path: Path) -> None:
    folder = vocabulary_checkpoints.make("tekken", tmp_path)
    (folder / "tekken.json").write_text("{")
    with pytest.raises(ValueError, match=r"^transformers cannot make one of the files here: [^\n]+$"):
        tokenizer_json(folder)
