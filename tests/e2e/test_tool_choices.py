"""Every `tool_choice` beside every form of the text, with thoughts and without, streamed and whole: what has to come of it.

The model knows nothing, so that whatever fits is what the grammar lets through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import CHAT_TEMPLATE, END, Variant, make_checkpoint
from support.server import Server, serving, sse

CHAT = "/v1/chat/completions"
# Tools in the form of Hermes, and thoughts that the template opens unless it is told not to.
TEMPLATE = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}{# </think> #}",
).replace(
    "{% for m in messages %}",
    "{% if tools %}<|im_start|>system\n<tools>{{ tools | tojson }}</tools>\nA call is written as "
    '<tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call><|im_end|>\n{% endif %}{% for m in messages %}',
    1,
)
SHORT = {"enum": ["a", "b", "c"]}
DOCUMENT = {
    "type": "object",
    "properties": {"sky": SHORT, "sure": {"type": "boolean"}},
    "required": ["sky", "sure"],
    "additionalProperties": False,
}


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {name: SHORT}, "required": [name], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("one"), tool("two"), tool("three")]
ARGUMENTS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("one"), named("three")]}}


CHOICES: dict[str, Any] = {
    "none": "none",
    "auto": "auto",
    "required": "required",
    "named": named("two"),
    "allowed, auto": allowed("auto"),
    "allowed, required": allowed("required"),
}
FORMS: dict[str, dict[str, Any]] = {
    "text": {},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": DOCUMENT}}},
}
ALL, SOME, NONE = frozenset(ARGUMENTS), frozenset({"one", "three"}), frozenset[str]()
# What may be called, and whether something has to be. What is not called fits the form of the text.
OUTCOMES: dict[str, tuple[frozenset[str], bool]] = {
    "none": (NONE, False),
    "auto": (ALL, False),
    "required": (ALL, True),
    "named": (frozenset({"two"}), True),
    "allowed, auto": (SOME, False),
    "allowed, required": (SOME, True),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variant = Variant("chooser", "llama", {"max_position_embeddings": 2048})
    made = make_checkpoint(tmp_path_factory.mktemp("chooser") / "chooser", variant)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    weights = load_file(made / "model.safetensors")
    weights["lm_head.weight"][END] = 0  # hardly ever drawn where it has not to be
    save_file(weights, made / "model.safetensors", {"format": "pt"})
    with serving(made) as running:
        yield running


def whole(server: Server, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    told = {"content": message["content"] or "", "reasoning": message.get("reasoning", ""), "calls": calls}
    return told, choice["finish_reason"]


def streamed(server: Server, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    told: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    reason = ""
    with server.stream(CHAT, {**body, "stream": True}) as response:
        for event in sse(response):
            for choice in event["choices"]:
                delta = choice["delta"]
                told["content"] += delta.get("content") or ""
                told["reasoning"] += delta.get("reasoning") or ""
                for call in delta.get("tool_calls", []):
                    if call["function"].get("name"):
                        told["calls"].append({"name": call["function"]["name"], "arguments": ""})
                    told["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
                reason = choice["finish_reason"] or reason
    return told, reason


def check(told: dict[str, Any], reason: str, choice: str, form: str) -> None:
    may_be_called, has_to_call = OUTCOMES[choice]
    for call in told["calls"]:
        assert call["name"] in may_be_called
        if reason != "length":
            jsonschema.validate(json.loads(call["arguments"]), ARGUMENTS[call["name"]])
    if has_to_call:
        assert told["calls"], told
        assert not told["content"]
    if reason == "length":
        return  # it was not complete: a JSON object may be long
    # Nobody has to be told that what was named was called.
    assert reason == ("tool_calls" if told["calls"] and choice != "named" else "stop")
    if told["calls"] or form == "text":
        return
    document = json.loads(told["content"])
    if form == "json_object":
        assert isinstance(document, dict)
    else:
        jsonschema.validate(document, DOCUMENT)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", CHOICES)
def test_each_combination_comes_to_what_it_has_to(server: Server, choice: str, form: str, thinks: bool) -> None:
    """B:SO1"""
    body = {
        "messages": [{"role": "user", "content": "What now?"}],
        "tools": TOOLS,
        "tool_choice": CHOICES[choice],
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": thinks},
        "temperature": 1,
        "max_tokens": 300,
        **FORMS[form],
        **({"thinking_token_budget": 5} if thinks else {}),
    }
    calls = 0
    for seed in range(3):
        told, reason = whole(server, {**body, "seed": seed})
        assert streamed(server, {**body, "seed": seed}) == (told, reason)
        assert bool(told["reasoning"]) == thinks
        check(told, reason, choice, form)
        assert form != "json_schema" or reason != "length", "every document and every call of these is short"
        calls += len(told["calls"])
    assert calls <= 3, "no answer calls twice"
    assert calls == 3 or choice in {"none", "auto", "allowed, auto"}


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_demanded_call_that_is_cut_shows_no_mark(server: Server, choice: str) -> None:
    """Issue 6: wherever `max_tokens` or `stop` cuts it, there is the call so far, or nothing."""
    body = {
        "messages": [{"role": "user", "content": "What now?"}],
        "tools": TOOLS,
        "tool_choice": CHOICES[choice],
        "chat_template_kwargs": {"enable_thinking": False},
        "seed": 1,
    }
    cuts: list[dict[str, Any]] = [{"max_tokens": count} for count in range(1, 14)]
    for cut in [*cuts, {"max_tokens": 99, "stop": "tool_call"}, {"max_tokens": 99, "stop": "name"}]:
        told, reason = whole(server, {**body, **cut})
        assert streamed(server, {**body, **cut}) == (told, reason)
        assert told["content"] == "", cut
        assert reason == ("stop" if "stop" in cut else "length")
        assert not told["calls"] or told["calls"][0]["name"] in ARGUMENTS
