"""Tokenizers that are made of other files give the ids that `transformers` gives, and SentencePiece's those of its own library."""

from __future__ import annotations

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


def test_what_cannot_be_read_is_told_in_a_line(tmp_path: Path) -> None:
    folder = vocabulary_checkpoints.make("tekken", tmp_path)
    (folder / "tekken.json").write_text("{")
    with pytest.raises(ValueError, match=r"^transformers cannot make one of the files here: [^\n]+$"):
        tokenizer_json(folder)
