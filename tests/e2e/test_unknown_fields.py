"""`--unknown-fields`: what nobody knows is refused with the nearest name, or passes and is named in the answer's header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, serving, sse

HEADER = "x-pelton-unknown-fields"
HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "max_tokens": 2}
ROUTES = [
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions/render", CHAT),
    ("/v1/completions/render", {"prompt": "Hi"}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
    ("/v1/messages", CHAT),
    ("/v1/messages/count_tokens", {"messages": HI}),
    ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 2}}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/detokenize", {"tokens": [5]}),
]


@pytest.fixture(scope="module")
def warning(checkpoints: Path) -> Iterator[Server]:
    """A server that lets unknown fields pass."""
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--unknown-fields", "warn") as running:
        yield running


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_it_is_refused_or_named(server: Server, warning: Server, path: str, body: dict[str, Any]) -> None:
    refused = server.post(path, {**body, "colour": "red"})
    assert refused.status_code == 400
    assert "`colour` is not a parameter of this request" in refused.json()["error"]["message"]
    assert HEADER not in refused.headers
    passed = warning.post(path, {**body, "colour": "red"})
    assert passed.status_code == 200, passed.text
    assert passed.headers[HEADER] == "colour"
    known = warning.post(path, body)
    assert known.status_code == 200
    assert HEADER not in known.headers


def test_it_passes_at_any_level_and_is_shown_to_no_template(warning: Server) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi", "mood": "good"}], "colour": "red"}]
    body = {**CHAT, "messages": messages, "max_token": 3, "temperature": 0}
    answer = warning.post("/v1/chat/completions", body)
    assert sorted(answer.headers[HEADER].split(", ")) == [
        "max_token",
        "messages[0].colour",
        "messages[0].content[0].mood",
    ]
    plain = warning.post("/v1/chat/completions", {**CHAT, "temperature": 0})
    assert answer.json()["choices"] == plain.json()["choices"]


def test_a_stream_names_it_too(warning: Server) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usages": True}}
    with warning.stream("/v1/chat/completions", body) as response:
        assert response.headers[HEADER] == "stream_options.include_usages"
        assert list(sse(response))


def test_the_header_is_bounded_and_plain(warning: Server) -> None:
    names = {f"n{number}": 1 for number in range(1000)} | {"é,\r\nx": 1}
    told = warning.post("/v1/chat/completions", {**CHAT, **names}).headers[HEADER]
    assert told.startswith("n0, n1, ")
    assert told.endswith(" more")
    assert len(told) < 1100
    assert warning.post("/v1/chat/completions", {**CHAT, "é,\r\nx": 1}).headers[HEADER] == "????x"


def test_what_is_wrong_or_not_served_is_refused_all_the_same(warning: Server) -> None:
    for fields, code_name in [
        ({"audio": {"voice": "alloy"}}, "not_served_yet"),
        ({"temperature": "hot"}, "invalid_value"),
    ]:
        refused = warning.post("/v1/chat/completions", {**CHAT, **fields, "colour": "red"})
        assert (refused.status_code, refused.json()["error"]["code_name"]) == (400, code_name)


def test_the_description_says_so(server: Server, warning: Server) -> None:
    for asked, passes in [(server, False), (warning, True)]:
        schemas = asked.get("/openapi.json").json()["components"]["schemas"]
        assert schemas["ChatRequest"]["additionalProperties"] is passes
