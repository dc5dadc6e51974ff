"""A model whose answers are messages on channels, as gpt-oss's: forms of the text, calls, and a budget of thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.server import Server, serving, sse

CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"warm": {"type": "boolean"}, "degrees": {"type": "integer", "minimum": -50, "maximum": 50}},
    "required": ["warm", "degrees"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "forecast",
        "parameters": {**SCHEMA, "properties": {**SCHEMA["properties"], "city": {"enum": ["Oslo"]}}},
    },
}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
DRAWN = {"max_tokens": 300, "temperature": 2, "thinking_token_budget": 6}


@pytest.fixture(scope="module")
def on_channels(checkpoints: Path) -> Iterator[Server]:
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--format", "harmony") as running:
        yield running


@pytest.fixture(scope="module")
def no_spaces(checkpoints: Path) -> dict[str, int]:
    """A bias against tokens of spaces: they may stand before a call and not before a document, and random models like them."""
    vocabulary = json.loads((checkpoints / "llama-gqa" / "tokenizer.json").read_text())["model"]["vocab"]
    return {str(token): -100 for name, token in vocabulary.items() if set(name) <= set("ĠĊčĉ")}


def asked(seed: int, **fields: Any) -> dict[str, Any]:
    """A chat of its own for each seed: a random model does much the same with one whatever its seed."""
    messages = [{"role": "user", "content": f"How warm is it in Oslo, and in {seed} other towns?"}]
    return {"messages": messages, **DRAWN, "seed": seed, **fields}


def ask(server: Server, seed: int, **fields: Any) -> dict[str, Any]:
    answer = server.post(CHAT, asked(seed, **fields))
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_a_form_is_that_of_the_final_message(on_channels: Server) -> None:
    has_thought = set()
    for seed in range(80):
        choice = ask(on_channels, seed, response_format=FORM)
        if choice["finish_reason"] == "length":
            continue  # random models like spaces between fields
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        reasoning = choice["message"].get("reasoning") or ""
        assert len(on_channels.post("/tokenize", {"prompt": reasoning}).json()["tokens"]) <= 8, "with their budget"
        has_thought.add(bool(reasoning))
        if len(has_thought) == 2 and seed >= 8:
            return
    raise AssertionError("some think before, some do not")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
def test_a_demanded_call_is_a_message_to_the_tool(on_channels: Server, choice: Any) -> None:
    for seed in range(6):
        answer = ask(on_channels, seed, tools=[TOOL], tool_choice=choice)
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "forecast"
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL["function"]["parameters"])
        assert answer["message"]["content"] is None
        assert answer["finish_reason"] == ("tool_calls" if choice == "required" else "stop")  # as OpenAI has it


def test_beside_strict_tools_messages_are_free(on_channels: Server) -> None:
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    calls = []
    for seed in range(16):
        choice = ask(on_channels, seed, tools=[strict], max_tokens=120)
        message = choice["message"]
        assert message.get("content") or message.get("reasoning") or message.get("tool_calls")
        calls += (message.get("tool_calls") or []) if choice["finish_reason"] != "length" else []
    for call in calls:
        assert call["function"]["name"] == "forecast"
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL["function"]["parameters"])


def test_with_a_form_and_tools_it_is_one_or_the_other(on_channels: Server, no_spaces: dict[str, int]) -> None:
    kinds = set()
    for seed in range(80):
        choice = ask(on_channels, seed, tools=[TOOL], response_format=FORM, logit_bias=no_spaces)
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        if message.get("tool_calls"):
            jsonschema.validate(
                json.loads(message["tool_calls"][0]["function"]["arguments"]), TOOL["function"]["parameters"]
            )
        else:
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
        kinds.add(bool(message.get("tool_calls")))
        if len(kinds) == 2 and seed >= 12:
            return
    raise AssertionError(f"some call, some do not: {kinds}")


def test_a_stream_is_the_whole_answer(on_channels: Server) -> None:
    for seed in range(4):
        whole = ask(on_channels, seed, response_format=FORM)["message"]
        body = asked(seed, response_format=FORM, stream=True)
        with on_channels.stream(CHAT, body) as response:
            deltas = [part["delta"] for chunk in sse(response) for part in chunk["choices"]]
        for name in ("content", "reasoning"):
            assert "".join(delta.get(name) or "" for delta in deltas) == (whole.get(name) or "")
