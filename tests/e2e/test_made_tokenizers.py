"""A model whose tokenizer is a SentencePiece file alone: `tokenizer.json` is made of it once, and kept."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.checkpoints import LICENSE, VOCAB, Variant, make_checkpoint
from support.server import Server, serving

MADE = "transformers makes one of"
TEXTS = ["", "Hello, world", "  two  spaces ", "Grüße aus Köln, 你好 世界 👋", "a\nb\r\n\n 1234", "<s>in words</s>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama as of 2023: its tokenizer.json is taken away, and a `tokenizer.model` put in its place."""
    import sentencepiece

    made = make_checkpoint(tmp_path_factory.mktemp("spoken") / "spoken", Variant("spoken", "llama", {}))
    for path in (made / "tokenizer.json", made / "tokenizer_config.json"):
        path.unlink()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for line in LICENSE.read_text().splitlines() if line.strip()),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (made / "tokenizer.model").write_bytes(model.getvalue())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    said = {"tokenizer_class": "LlamaTokenizer", "legacy": False, **names}
    (made / "tokenizer_config.json").write_text(json.dumps(said))
    return made


def ids(server: Server, text: str) -> list[int]:
    """By the server."""
    told: list[int] = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    return told


def test_the_first_start_makes_it_and_the_second_has_it(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    answers = []
    for start in ("first", "second"):
        with serving(folder, "--model-cache", str(tmp_path)) as server:
            assert any(MADE in line for line in server.log) is (start == "first"), server.log
            for text in TEXTS:
                told = ids(server, text)
                assert told == theirs.encode(text), text
                words = server.post("/detokenize", {"tokens": told}).json()["prompt"]
                assert words == theirs.decode(told), text
            body = {"prompt": "This License", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            answers.append(server.post("/v1/completions", body).json()["choices"][0]["text"])
    assert answers[0] == answers[1]


def test_a_completion_has_the_space_between_it_and_its_prompt(folder: Path, tmp_path: Path) -> None:
    """Decoders of SentencePiece take the first space off a text: an answer that goes on is none."""
    with serving(folder, "--model-cache", str(tmp_path)) as server:
        word = ids(server, "the")[-1]
        body = {"prompt": "This License", "max_tokens": 2, "allowed_token_ids": [word], "ignore_eos": True}
        choice = server.post("/v1/completions", {**body, "logprobs": 0}).json()["choices"][0]
        assert choice["text"] == " the the" == "".join(choice["logprobs"]["tokens"])
        echoed = server.post("/v1/completions", {**body, "echo": True}).json()["choices"][0]
        assert echoed["text"] == "This License the the"
        alone = server.post("/v1/completions", {**body, "prompt": [1]}).json()["choices"][0]
        assert alone["text"] == "the the", "before it stands the mark of a beginning alone"
