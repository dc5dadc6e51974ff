"""The server's own tokens for texts of any Unicode, with the vocabulary's added tokens among it, are those of `transformers` and of tiktoken.

`add_bos_token` and `add_eos_token` stand in the `tokenizer_config.json` of some of these folders, as in published ones. Beside a `tokenizer.json`,
which says itself what goes around a text, they mean nothing: `transformers` 5 passes over them, as Pelton does. Without one they
end up in the one that is made.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tiktoken
import vocabulary_checkpoints
from pelton.loading.tokenizer_json import tokenizer_json
from support.any_text import texts
from support.checkpoints import Variant, make_checkpoint
from support.server import Server
from support.tokenizer_files import PUBLISHED, by_letters, write
from tiktoken.load import load_tiktoken_bpe

SEED = 20261128
COUNT = 400


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with room for every vocabulary here."""
    return make_checkpoint(tmp_path_factory.mktemp("weights"), Variant("any", "llama", {"vocab_size": 2048}))


def model_of(model_type: str, weights: Path, folder: Path) -> Path:
    """A folder whose vocabulary `transformers` reads as this type's, and whose weights Pelton as a Llama's, as `architectures` says."""
    shutil.copytree(weights, folder, ignore=shutil.ignore_patterns("tokenizer*"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    return folder


class Answers:
    """What a server says."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self.url, self.client = server.url, client

    def ids(self, text: str, special: bool) -> list[int]:
        asked = {"prompt": text, "add_special_tokens": special}
        found: list[int] = self.client.post(f"{self.url}/tokenize", json=asked).raise_for_status().json()["tokens"]
        return found

    def text(self, ids: list[int]) -> str:
        return str(self.client.post(f"{self.url}/detokenize", json={"tokens": ids}).raise_for_status().json()["prompt"])


@contextmanager
def answers(folder: Path) -> Iterator[Answers]:
    """Of a server that has its vocabulary, and need not wait for its weights."""
    server = Server(folder)
    try:
        with httpx.Client(verify=False, trust_env=False, timeout=60) as client:
            server.wait_until("it answers", lambda: _is_open(server, client))
            yield Answers(server, client)
    finally:
        server.stop(signal.SIGKILL)


def _is_open(server: Server, client: httpx.Client) -> bool:
    assert server.process.poll() is None, "\n".join(server.log)
    try:
        return client.post(f"{server.url}/tokenize", json={"prompt": ""}).is_success
    except httpx.TransportError:
        return False


def check(folder: Path, vocabulary: Path) -> None:
    """Of the server that serves `folder`, against `transformers`, which reads `vocabulary`."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(vocabulary)
    with answers(folder) as ours:
        for text in texts(COUNT, list(theirs.get_added_vocab()), SEED):
            for special in (False, True):
                ids = ours.ids(text, special)
                assert ids == theirs.encode(text, add_special_tokens=special), (SEED, text, special)
            assert ours.text(ids) == theirs.decode(ids), (SEED, text, ids)


@pytest.mark.parametrize("name", PUBLISHED)
def test_with_a_published_tokenizer_json(name: str, weights: Path, tmp_path: Path) -> None:
    folder = model_of(PUBLISHED[name].model_type, weights, tmp_path / "model")
    write(folder, PUBLISHED[name])
    check(folder, folder)


def made(kind: str, weights: Path, path: Path) -> tuple[Path, Path]:
    """A model whose `tokenizer.json` is made of a vocabulary of this kind, and the folder of that vocabulary."""
    vocabulary = vocabulary_checkpoints.make(kind, path / "vocabulary")
    folder = model_of("llama", weights, path / "model")
    (folder / "tokenizer.json").write_text(tokenizer_json(vocabulary), encoding="utf-8")
    return folder, vocabulary


@pytest.mark.parametrize("kind", vocabulary_checkpoints.KINDS)
def test_with_a_made_tokenizer_json(kind: str, weights: Path, tmp_path: Path) -> None:
    check(*made(kind, weights, tmp_path))


def encoding(kind: str, vocabulary: Path, added: dict[str, int]) -> tiktoken.Encoding:
    """By its own library, of the same files."""
    if kind == "tiktoken":
        ranks, pattern = load_tiktoken_bpe(str(vocabulary / "tokenizer.model")), by_letters(r"\p{N}{1,3}")
    else:
        file = json.loads((vocabulary / "tekken.json").read_text())
        first, pattern = file["config"]["default_num_special_tokens"], file["config"]["pattern"]
        ranks = {base64.b64decode(row["token_bytes"]): first + row["rank"] for row in file["vocab"]}
    return tiktoken.Encoding(kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens=added)


@pytest.mark.parametrize("kind", ["tiktoken", "tekken"])
def test_ids_are_those_of_tiktoken(kind: str, weights: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder, vocabulary = made(kind, weights, tmp_path)
    added: dict[str, int] = AutoTokenizer.from_pretrained(vocabulary).get_added_vocab()
    theirs = encoding(kind, vocabulary, added)
    with answers(folder) as ours:
        for text in texts(COUNT, list(added), SEED):
            # Each library has its own year's Unicode; what this Python's does not know may be letters to one of them.
            known = "".join(letter for letter in text if unicodedata.category(letter) != "Cn")
            assert ours.ids(known, special=False) == theirs.encode(known, allowed_special="all"), (SEED, known)
