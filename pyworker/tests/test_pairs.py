"""Two texts that one model reads together: which of them a token is of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_vectors import change_json, check_close, load, texts, vectors
from vector_checkpoints import SEPARATOR, classes, hidden, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pairs")
    for variant in ("bert", "bert-classes", "roberta"):
        write(root / variant, variant)
    return root


def test_the_second_text_of_a_pair_is_another_segment(folders: Path) -> None:
    first, second = texts(5, [9, 21])
    pair = [2, *first, SEPARATOR, *second, SEPARATOR]
    segments = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
    single = [2, *first, SEPARATOR]  # its separator is the last token: nothing is behind
    folder = folders / "bert-classes"
    got = vectors(load(folder), [single, pair, first])
    check_close(got[0], classes(folder, single))
    check_close(got[1], classes(folder, pair, token_type_ids=segments))
    check_close(got[2], classes(folder, first))


@pytest.mark.parametrize("variant", ["bert", "roberta"])
def test_a_separator_within_a_text_that_is_embedded_parts_no_pair(folders: Path, variant: str) -> None:
    first, second = texts(5, [9, 21])
    text = [2, *first, SEPARATOR, *second, SEPARATOR]  # as "TITLE [SEP] ABSTRACT" is tokenised
    got = vectors(load(folders / variant, pooling="mean"), [text])
    check_close(got[0], hidden(folders / variant, text).mean(dim=0))


@pytest.mark.parametrize("names", [("tokenizer_config.json", "tokenizer.json"), ("vocab.txt",), ("config.json",), ()])
def test_the_separator_is_the_tokenizers(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = write(tmp_path / "model", "bert-classes")
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.json").unlink()
    if "tokenizer.json" in names:
        (folder / "tokenizer_config.json").write_text('{"sep_token": "</s>"}')
        (folder / "tokenizer.json").write_text('{"model": {"vocab": {"[SEP]": 9, "</s>": 7}}}')
    if "vocab.txt" in names:
        (folder / "vocab.txt").write_text("".join(f"word{at}\n" if at != 7 else "[SEP]\n" for at in range(20)))
    if "config.json" in names:
        change_json(folder / "config.json", sep_token_id=7)
    pair = [1, 50, 7, 60, 7]
    segments = [0, 0, 0, 1, 1] if names else [0] * 5
    got = vectors(load(folder), [pair])
    check_close(got[0], classes(folder, pair, token_type_ids=torch.tensor([segments])))


@pytest.mark.parametrize(
    "said",
    [
        {"tokenizer_class": "XLMRobertaTokenizerFast"},
        {"tokenizer_class": "RobertaTokenizer"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]},
    ],
)
def test_a_tokenizer_that_tells_no_segments_has_one(tmp_path: Path, said: dict[str, object]) -> None:
    """As BERTs that were made of multilingual MiniLMs."""
    folder = write(tmp_path / "model", "bert-classes")
    (folder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "</s>", **said}))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"</s>": 7}}}')
    pair = [1, 50, 7, 7, 60, 7]
    check_close(
        vectors(load(folder), [pair])[0], classes(folder, pair, token_type_ids=torch.zeros((1, 6), dtype=torch.int64))
    )
