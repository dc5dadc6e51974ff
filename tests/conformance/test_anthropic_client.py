"""Anthropic's official Python client holds conversations with the server."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest
from support.server import Server, serving

MESSAGES = "/v1/messages"
# The client has no parameter for it any more, and the protocol still has.
GREEDY = {"temperature": 0}
HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def client_of(server: Server, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture
def client(demo: Server) -> anthropic.Anthropic:
    return client_of(demo)


def test_whole_and_streamed_agree(client: anthropic.Anthropic) -> None:
    ask: dict[str, Any] = {
        "model": "demo",
        "system": "You are Pelton.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is Pelton?"}]}],
        "max_tokens": 40,
        "metadata": {"user_id": "me"},
        "extra_body": GREEDY,
    }
    whole = client.messages.create(**ask)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", "demo")
    assert whole.id.startswith("msg_")
    assert whole._request_id
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert [block.type for block in whole.content] == ["text"]
    assert text == whole.content[0].text
    assert streamed.content[0].text == text
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert whole.stop_reason in ("end_turn", "max_tokens")
    assert streamed.usage.output_tokens == whole.usage.output_tokens

    def prompt(usage: anthropic.types.Usage) -> int:
        return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)

    # The second one finds the first one's prompt in the cache: the sum is the same.
    assert streamed.usage.cache_read_input_tokens
    assert prompt(streamed.usage) == prompt(whole.usage)
    counted = client.messages.count_tokens(model="demo", system=ask["system"], messages=ask["messages"])
    assert counted.input_tokens == prompt(whole.usage)


def test_it_is_the_chat_by_another_name(demo: Server, client: anthropic.Anthropic) -> None:
    turns: list[Any] = [{"role": "user", "content": "What can you do?"}]
    ours = client.messages.create(model="demo", messages=turns, max_tokens=30, extra_body=GREEDY)
    chat = demo.post("/v1/chat/completions", {"messages": turns, "max_tokens": 30, "temperature": 0}).json()
    assert ours.content[0].text == chat["choices"][0]["message"]["content"]
    assert ours.usage.output_tokens == chat["usage"]["completion_tokens"]


def test_the_events_come_in_order(demo: Server) -> None:
    body = {"messages": HI, "max_tokens": 8, "temperature": 0, "stream": True}
    with demo.stream(MESSAGES, body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == names
    names = [name for name in names if name != "ping"]
    middle = names[2:-3]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(middle) == {"content_block_delta"}
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)


def test_a_tool_is_called_and_its_result_is_read(client: anthropic.Anthropic) -> None:
    ask: dict[str, Any] = {"model": "demo", "tools": [TOOL], "max_tokens": 80, "extra_body": GREEDY}
    turns: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    forced = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    whole = client.messages.create(messages=turns, tool_choice=forced, **ask)
    assert whole.stop_reason == "tool_use"
    [call] = [block for block in whole.content if block.type == "tool_use"]
    jsonschema.validate(call.input, TOOL["input_schema"])
    with client.messages.stream(messages=turns, tool_choice=forced, **ask) as stream:
        streamed = stream.get_final_message()
    [again] = [block for block in streamed.content if block.type == "tool_use"]
    assert (again.name, again.input) == (call.name, call.input)
    turns.append({"role": "assistant", "content": [block.model_dump() for block in whole.content]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "17 degrees"}]}
    turns.append({"role": "user", "content": [result]})
    after = client.messages.create(messages=turns, **ask)
    assert after.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert after.usage.output_tokens > 0


def test_models_are_listed(client: anthropic.Anthropic, demo: Server) -> None:
    [model] = list(client.models.list(limit=1))
    assert (model.type, model.id, model.display_name) == ("model", "demo", "demo")
    assert model.created_at.year >= 2025
    assert client.models.retrieve("demo") == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert demo.get("/v1/models").json()["object"] == "list", "without the header it is OpenAI's"


def test_a_call_that_was_cut_is_the_same_whole_and_streamed(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"cities": {"type": "array", "items": TOOL["input_schema"], "minItems": 3}},
        "required": ["cities"],
        "additionalProperties": False,
    }
    ask: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{**TOOL, "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "get_weather"},
        "extra_body": GREEDY,
    }
    inputs = []
    for max_tokens in range(10, 60, 3):
        whole = client.messages.create(**ask, max_tokens=max_tokens)
        with client.messages.stream(**ask, max_tokens=max_tokens) as stream:
            streamed = stream.get_final_message()
        [ours, theirs] = [[block.input for block in it.content if block.type == "tool_use"] for it in (whole, streamed)]
        assert ours == theirs
        if whole.stop_reason == "max_tokens":
            inputs.extend(ours)
    assert {"cities"} in [set(cut) for cut in inputs], "some were cut in the midst"
    assert all(set(cut) <= {"cities"} for cut in inputs), inputs


def test_structured_output_fits_its_schema(client: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    body = {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "seed": 3}
    answer = client.messages.create(model="demo", messages=HI, max_tokens=200, extra_body=body)
    jsonschema.validate(json.loads(answer.content[0].text), schema)
    assert answer.stop_reason == "end_turn"


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    ask: dict[str, Any] = {"model": "demo", "messages": HI, "max_tokens": 30, "extra_body": GREEDY}
    text = client.messages.create(**ask).content[0].text
    stop = text[3:6]
    cut = client.messages.create(**ask, stop_sequences=["never said", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]


def test_an_answer_begun_is_continued(client: anthropic.Anthropic) -> None:
    turns: list[Any] = [*HI, {"role": "assistant", "content": "I am"}]
    longer = client.messages.count_tokens(model="demo", messages=turns).input_tokens
    assert longer > client.messages.count_tokens(model="demo", messages=HI).input_tokens
    assert client.messages.create(model="demo", messages=turns, max_tokens=8).usage.output_tokens > 0


@pytest.mark.parametrize(
    ("fields", "error", "kind", "names"),
    [
        ({"model": "no-such-model"}, anthropic.NotFoundError, "not_found_error", "no-such-model"),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "invalid_request_error", "stop_sequences"),
        ({"extra_body": {"temprature": 1}}, anthropic.BadRequestError, "invalid_request_error", "`temperature`?"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        (
            {"messages": [{"role": "user", "content": "x " * 9000}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            "messages",
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            anthropic.BadRequestError,
            "invalid_request_error",
            "tools[0].type",
        ),
    ],
)
def test_a_bad_request_names_its_parameter(
    client: anthropic.Anthropic, fields: dict[str, Any], error: type[anthropic.APIStatusError], kind: str, names: str
) -> None:
    with pytest.raises(error) as caught:
        client.messages.create(**{"model": "demo", "messages": HI, "max_tokens": 5, **fields})
    body = caught.value.body
    assert isinstance(body, dict)
    assert list(body) == ["type", "error", "request_id"]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert names in body["error"]["message"]
    assert caught.value.response.headers["request-id"] == body["request_id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("GET", f"{MESSAGES}/batches", 404, "not_found_error"),
        ("POST", f"{MESSAGES}/count_tokens", 400, "invalid_request_error"),
    ],
)
def test_every_refusal_there_has_anthropics_form(demo: Server, method: str, path: str, status: int, kind: str) -> None:
    response = httpx.request(method, demo.url + path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert ("allow" in response.headers) == (status == 405)


def test_a_key_is_taken_from_the_clients_own_header(checkpoints: Any) -> None:
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--api-key", "right") as server:
        asked: Any = {"model": "", "messages": HI, "max_tokens": 3}
        asked["model"] = server.get("/v1/models", headers={"x-api-key": "right"}).json()["data"][0]["id"]
        assert client_of(server, "right").messages.create(**asked).usage.output_tokens > 0
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client_of(server, "wrong").messages.create(**asked)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "authentication_error"


def test_a_client_that_leaves_costs_nothing_more(demo: Server) -> None:
    body = {"messages": HI, "max_tokens": 2000, "stream": True, "output_config": {"format": LONG}}
    with contextlib.suppress(httpx.StreamError), demo.stream(MESSAGES, body) as response:
        next(response.iter_lines())
    demo.wait_until("the answer is given up", lambda: demo.metric("vllm:num_requests_running") == 0)


LONG = {"type": "json_schema", "schema": {"type": "array", "items": {"const": "again and again"}, "minItems": 400}}
