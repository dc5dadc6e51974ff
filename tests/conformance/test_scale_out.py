"""Prompts as token ids, token ids in and out: what routers of several servers and trainers use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.server import Server

CHAT = {"messages": [{"role": "user", "content": "Say something about rivers."}]}


def generated(server: Server, ids: list[int], **fields: Any) -> dict[str, Any]:
    answer = server.post("/inference/v1/generate", {"token_ids": ids, **fields})
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_a_chat_is_the_same_rendered_and_generated_apart(demo: Server) -> None:
    """As a router does it that chooses a server by the prompt's tokens."""
    rendered = demo.post("/v1/chat/completions/render", CHAT).json()
    assert rendered["token_ids"] == demo.post("/tokenize", CHAT).json()["tokens"]
    whole = demo.post(
        "/v1/chat/completions", {**CHAT, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    ).json()
    apart = generated(demo, rendered["token_ids"], sampling_params={"temperature": 0, "max_tokens": 12})
    assert apart["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    assert apart["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert apart["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == len(rendered["token_ids"])


def test_each_prompt_of_a_completion_is_rendered(demo: Server) -> None:
    rendered = demo.post("/v1/completions/render", {"prompt": ["one", "two words"], "max_tokens": 5}).json()
    ids = [demo.post("/tokenize", {"prompt": prompt}).json()["tokens"] for prompt in ("one", "two words")]
    assert [prompt["token_ids"] for prompt in rendered] == ids


def test_a_stream_of_tokens_adds_up_to_the_whole_answer(demo: Server) -> None:
    sampling = {"temperature": 1, "seed": 5, "max_tokens": 9, "n": 2, "logprobs": 2, "ignore_eos": True}
    whole = generated(demo, [300, 301, 302], sampling_params=sampling)
    body = {
        "token_ids": [300, 301, 302],
        "sampling_params": sampling,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens: list[list[int]] = [[], []]
    logprobs: list[list[Any]] = [[], []]
    last: dict[str, Any] = {}
    with demo.stream("/inference/v1/generate", body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        last = json.loads(line)
        for choice in last["choices"]:
            tokens[choice["index"]] += choice["token_ids"]
            logprobs[choice["index"]] += choice["logprobs"]["content"]
    assert tokens == [choice["token_ids"] for choice in whole["choices"]]
    assert logprobs == [choice["logprobs"]["content"] for choice in whole["choices"]]
    assert [entry["token"] for entry in logprobs[0]] == [f"token_id:{token}" for token in tokens[0]]
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs[0])
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions/render", {"prompt": "a", "temperature": 3}, "temperature"),
        ("/v1/completions/render", {"prompt": "a", "max_tokens": 1 << 30}, "max_tokens"),
        ("/v1/completions/render", {"prompt": [[1 << 30]]}, "prompt"),
        ("/v1/chat/completions/render", {**CHAT, "top_p": 2}, "top_p"),
        ("/v1/chat/completions/render", {**CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_what_would_not_be_answered_is_not_rendered(
    demo: Server, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = demo.post(path, fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "(a"}}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"type": "text"}}}),
        ("/v1/completions", {"prompt": [300] * 100_000}),
        ("/v1/completions", {"prompt": ["a"] * 1000, "n": 2}),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 2, "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 9000}]}),
        ("/v1/chat/completions", {**CHAT, "structured_outputs": {"grammar": "root ::= other"}}),
        ("/v1/chat/completions", {**CHAT, "allowed_token_ids": [300], "bad_words": ["a"], "min_tokens": 5, "n": 200}),
        ("/v1/chat/completions", {**CHAT, "use_beam_search": True, "top_p": 0.5}),
    ],
)
def test_what_is_rendered_is_refused_in_the_words_of_what_is_answered(
    demo: Server, path: str, fields: dict[str, Any]
) -> None:
    rendered, answered = demo.post(f"{path}/render", fields), demo.post(path, fields)
    assert (rendered.status_code, rendered.json()) == (400, answered.json())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1 << 30]}, "token_ids"),
        ({"token_ids": [300] * 100_000}, "token_ids"),
        ({"token_ids": [300], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": [300], "sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
    ],
)
def test_an_error_names_the_place(demo: Server, fields: dict[str, Any], param: str) -> None:
    answer = demo.post("/inference/v1/generate", fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
