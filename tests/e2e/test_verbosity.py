"""`verbosity`: a variable of chat templates that know it, and refused with those that do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.checkpoints import CHAT_TEMPLATE, Variant, make_checkpoint
from support.server import Server, serving

TEMPLATE = "{% if verbosity is defined %}Verbosity: {{ verbosity }}.\n{% endif %}" + CHAT_TEMPLATE
ASKED = [{"role": "user", "content": "Why?"}]


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose template tells it how long answers shall be."""
    folder = make_checkpoint(tmp_path_factory.mktemp("verbose") / "verbose", Variant("verbose", "llama", {}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with serving(folder) as running:
        yield running


def chat(server: Server, **fields: Any) -> Any:
    return server.post("/v1/chat/completions", {"messages": ASKED, "max_tokens": 2, **fields})


def response(server: Server, text: dict[str, Any]) -> Any:
    return server.post("/v1/responses", {"input": "Why?", "max_output_tokens": 2, "text": text})


def prompt(server: Server, **fields: Any) -> str:
    ids = server.post("/v1/chat/completions/render", {"messages": ASKED, **fields}).json()["token_ids"]
    return str(server.post("/detokenize", {"tokens": ids}).json()["prompt"])


def test_a_template_that_knows_it_is_told(knowing: Server) -> None:
    plain = prompt(knowing)
    assert "Verbosity" not in plain
    for word in ["low", "medium", "high"]:
        told = prompt(knowing, verbosity=word)
        assert told == f"Verbosity: {word}.\n{plain}"
        count = knowing.post("/tokenize", {"messages": ASKED, "verbosity": word}).json()["count"]
        assert chat(knowing, verbosity=word).json()["usage"]["prompt_tokens"] == count
        answer = response(knowing, {"verbosity": word}).json()
        assert answer["usage"]["input_tokens"] == count
        assert answer["text"]["verbosity"] == word
    own = prompt(knowing, verbosity="low", chat_template_kwargs={"verbosity": "own"})
    assert own == f"Verbosity: own.\n{plain}"


def test_any_other_refuses_what_it_would_not_do(server: Server) -> None:
    for word in ["low", "high"]:
        for refused, param in [
            (chat(server, verbosity=word), "verbosity"),
            (response(server, {"verbosity": word}), "text.verbosity"),
        ]:
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["param"] == param
            assert f'"{word}"' in error["message"]
            assert 'allowed: "medium"' in error["message"]
    assert chat(server, verbosity="medium").status_code == 200
    assert response(server, {"verbosity": "medium"}).json()["text"]["verbosity"] == "medium"


def test_a_wrong_word_is_named(knowing: Server) -> None:
    for refused, param in [
        (chat(knowing, verbosity="terse"), "verbosity"),
        (response(knowing, {"verbosity": "terse"}), "text.verbosity"),
    ]:
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param)
        assert '"low", "medium" or "high"' in error["message"]
