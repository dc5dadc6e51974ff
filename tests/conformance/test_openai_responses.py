"""The official Python client holds conversations over `/v1/responses`, whose earlier parts the server keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from support.server import Server, serving

RESPONSES = "/v1/responses"
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
# An answer that takes long, whatever the model would rather say.
LONG = {
    "format": {
        "type": "json_schema",
        "name": "long",
        "schema": {"type": "array", "items": {"const": "again and again"}, "minItems": 400},
    }
}


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(demo: Server) -> openai.OpenAI:
    return client_of(demo)


def test_whole_and_streamed_agree(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "demo",
        "instructions": "You are Pelton.",
        "input": "What is Pelton?",
        "max_output_tokens": 40,
        "temperature": 0,
        "metadata": {"a": "b"},
    }
    whole = client.responses.create(**ask)
    assert whole.id.startswith("resp_")
    assert whole.output_text
    assert (whole.object, whole.model, whole.metadata, whole.instructions) == (
        "response",
        "demo",
        {"a": "b"},
        "You are Pelton.",
    )
    with client.responses.stream(**ask) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert (final.status, final.incomplete_details) == (whole.status, whole.incomplete_details)
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.input_tokens_details.cached_tokens > 0  # the first one's prompt was found


def test_the_events_come_in_order(demo: Server) -> None:
    body = {"input": "hi", "max_output_tokens": 8, "temperature": 0, "stream": True}
    with demo.stream(RESPONSES, body) as response:
        assert response.status_code == 200
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == names
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    assert names[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert names[-1] in ("response.completed", "response.incomplete")
    assert (names[-1] == "response.incomplete") == (events[-1]["response"]["usage"]["output_tokens"] == 8)


def test_it_is_the_chat_by_another_name(demo: Server, client: openai.OpenAI) -> None:
    ours = client.responses.create(model="demo", input="What can you do?", max_output_tokens=30, temperature=0)
    turns = [{"role": "user", "content": "What can you do?"}]
    chat = demo.post("/v1/chat/completions", {"messages": turns, "max_tokens": 30, "temperature": 0}).json()
    assert ours.output_text == chat["choices"][0]["message"]["content"]


def test_a_conversation_goes_on_where_it_was(demo: Server, client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "max_output_tokens": 20, "temperature": 0}
    first = client.responses.create(input="My name is Ada.", **ask)
    second = client.responses.create(input="What is my name?", previous_response_id=first.id, **ask)
    assert second.previous_response_id == first.id
    turns: list[Any] = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    itself = client.responses.create(input=turns, **ask)
    assert second.output_text == itself.output_text
    # The client may as well send back the items that it got.
    own: list[Any] = [turns[0], *[item.model_dump() for item in first.output], turns[2]]
    assert client.responses.create(input=own, **ask).output_text == second.output_text
    again = client.responses.retrieve(second.id)
    assert again.output_text == second.output_text
    items = client.responses.input_items.list(second.id).data
    assert [item.content[0].text for item in items] == ["What is my name?"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="hi", previous_response_id=first.id, **ask)
    assert caught.value.param == "previous_response_id"
    # What came after it stands on its own.
    third = client.responses.create(input="And now?", previous_response_id=second.id, **ask)
    assert third.usage is not None
    assert itself.usage is not None
    assert third.usage.input_tokens > itself.usage.input_tokens


def test_a_stream_is_kept_too_and_nothing_that_is_not_wanted(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "input": "hi", "max_output_tokens": 5}
    *_, last = client.responses.create(**ask, stream=True)
    assert last.type in ("response.completed", "response.incomplete")
    assert client.responses.retrieve(last.response.id).output_text == last.response.output_text
    silent = client.responses.create(**ask, store=False)
    assert silent.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(silent.id)


def test_input_tokens_are_counted_as_the_response_counts_them(demo: Server, client: openai.OpenAI) -> None:
    first: dict[str, Any] = {"model": "demo", "instructions": "Be brief.", "input": "What is Pelton?"}
    kept = client.responses.create(**first, max_output_tokens=8)
    second = {"model": "demo", "previous_response_id": kept.id, "input": "And why?", "tools": [TOOL]}
    for ask in (first, second):
        counted = client.responses.input_tokens.count(**ask)
        assert counted.object == "response.input_tokens"
        usage = client.responses.create(**ask, max_output_tokens=8).usage
        assert usage is not None
        assert counted.input_tokens == usage.input_tokens
    refused = demo.post(f"{RESPONSES}/input_tokens", {"input": 5})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    compact = demo.post(f"{RESPONSES}/compact", {"input": "hi"})
    assert compact.status_code == 400
    assert "not served yet" in compact.json()["error"]["message"]


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    turns: list[Any] = [{"role": "user", "content": f"Turn {number}."} for number in range(5)]
    response = client.responses.create(model="demo", input=turns, max_output_tokens=2)

    def texts(**how: Any) -> list[str]:
        page = client.responses.input_items.list(response.id, **how)
        return [item.content[0].text for item in page.data]

    assert texts(order="asc") == [f"Turn {number}." for number in range(5)]
    assert texts(limit=2) == ["Turn 4.", "Turn 3."]
    everything = [item.content[0].text for item in client.responses.input_items.list(response.id, limit=2, order="asc")]
    assert everything == texts(order="asc")


def test_a_tool_is_called_and_its_output_is_read(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "tools": [TOOL], "max_output_tokens": 80, "temperature": 0}
    question = "What is the weather in Paris?"
    whole = client.responses.create(input=question, tool_choice="required", parallel_tool_calls=False, **ask)
    [call] = [item for item in whole.output if item.type == "function_call"]
    assert call.name == "get_weather"
    jsonschema.validate(json.loads(call.arguments), TOOL["parameters"])
    with client.responses.stream(input=question, tool_choice="required", parallel_tool_calls=False, **ask) as stream:
        deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        [streamed] = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert "".join(deltas) == streamed.arguments == call.arguments
    output: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}]
    after = client.responses.create(input=output, previous_response_id=whole.id, **ask)
    assert after.usage is not None
    assert whole.usage is not None
    assert after.usage.input_tokens > whole.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input=[{**output[0], "call_id": "never"}], previous_response_id=whole.id, **ask)
    assert caught.value.param == "input[0].call_id"


def test_structured_output_fits_its_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    answer = client.responses.create(model="demo", input="hi", max_output_tokens=200, text=text)
    jsonschema.validate(json.loads(answer.output_text), schema)


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "input": "What is Pelton?", "max_output_tokens": 12, "temperature": 0}
    ask |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.responses.create(**ask)
    [part] = whole.output[0].content
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in part.logprobs)
    assert "".join(entry.token for entry in part.logprobs).startswith(part.text[:6])
    with client.responses.stream(**ask) as stream:
        streamed = [entry for e in stream if e.type == "response.output_text.delta" for entry in e.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in part.logprobs][: len(streamed)]
    assert streamed


def test_an_answer_in_the_background_is_had_later(demo: Server, client: openai.OpenAI) -> None:
    started = client.responses.create(model="demo", input="hi", max_output_tokens=8, background=True)
    assert started.status == "in_progress"
    demo.wait_until("it is complete", lambda: client.responses.retrieve(started.id).status != "in_progress")
    done = client.responses.retrieve(started.id)
    assert done.status in ("completed", "incomplete")
    assert done.usage is not None
    assert client.responses.cancel(started.id).status == done.status
    long: Any = LONG
    endless = client.responses.create(model="demo", input="hi", max_output_tokens=3000, text=long, background=True)
    assert client.responses.cancel(endless.id).status == "cancelled"
    demo.wait_until("it is given up", lambda: demo.metric("vllm:num_requests_running") == 0)
    assert client.responses.retrieve(endless.id).status == "cancelled"
    plain = client.responses.create(model="demo", input="hi", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(plain.id)


def test_a_stream_in_the_background_is_gone_on_with(demo: Server, client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "demo", "input": "hi", "max_output_tokens": 300, "temperature": 0}
    stream = client.responses.create(**ask, text=LONG, background=True, stream=True)
    before = [next(stream) for _ in range(6)]
    stream.close()
    assert before[0].type == "response.created"
    response, seen = before[0].response.id, before[-1].sequence_number
    rest = list(client.responses.retrieve(response, stream=True, starting_after=seen))
    events = before + rest
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = rest[-1]
    assert last.type == "response.incomplete"
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == last.response.output_text
    assert client.responses.retrieve(response).output_text == last.response.output_text
    # The client's own helper goes through all of them again.
    with client.responses.stream(response_id=response) as again:
        deltas = [event.delta for event in again if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text
    # Of one that is cancelled the client knows every event, the last one too.
    endless = client.responses.create(**{**ask, "max_output_tokens": 3000}, text=LONG, background=True, stream=True)
    response = next(endless).response.id
    assert client.responses.cancel(response).status == "cancelled"
    *_, last = endless
    assert isinstance(last, openai.types.responses.ResponseIncompleteEvent)
    assert last.response.status == "cancelled"
    plain = client.responses.create(**ask, background=True)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.retrieve(plain.id, stream=True)
    assert caught.value.param == "stream"
    assert client.responses.cancel(plain.id).id == plain.id


@pytest.mark.parametrize(
    ("fields", "error", "names"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError, "no-such-model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"input": []}, openai.BadRequestError, "input"),
        ({"input": "x " * 9000}, openai.BadRequestError, "input"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temperature"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0].type"),
        ({"previous_response_id": "resp_never"}, openai.BadRequestError, "previous_response_id"),
        ({"input": "x " * 9000, "truncation": "auto"}, openai.BadRequestError, "input"),
        ({"truncation": "middle"}, openai.BadRequestError, "truncation"),
        ({"reasoning": {"summary": "concise"}}, openai.BadRequestError, "reasoning.summary"),
        ({"text": {"verbosity": "low"}}, openai.BadRequestError, "text.verbosity"),
    ],
)
def test_a_bad_request_names_its_parameter(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], names: str
) -> None:
    with pytest.raises(error) as caught:
        client.responses.create(**{"model": "demo", "input": "hi", **fields})
    body = caught.value.body
    assert isinstance(body, dict)
    assert names in body["message"] or names == body["param"]


def test_a_parameter_of_the_query_is_checked(demo: Server, client: openai.OpenAI) -> None:
    kept = client.responses.create(model="demo", input="hi", max_output_tokens=2).id
    for query in ["?stream=true", "?colour=red"]:
        assert demo.get(f"{RESPONSES}/{kept}{query}").status_code == 400
    for query in ["?limit=0", "?limit=x", "?order=up", "?after=never", "?colour=red"]:
        assert demo.get(f"{RESPONSES}/{kept}/input_items{query}").status_code == 400
    assert demo.get(f"{RESPONSES}/{kept}?stream=false").status_code == 200


@pytest.fixture
def small(checkpoints: Path) -> Iterator[Server]:
    flags = ["--max-model-len", "512", "--api-key", "one", "--api-key", "two", "--response-store-count", "2"]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        yield server


def test_what_is_kept_is_bounded_and_its_owners_own(small: Server) -> None:
    one, two = client_of(small, "one"), client_of(small, "two")
    model = one.models.list().data[0].id

    def create() -> str:
        return one.responses.create(model=model, input="hi", max_output_tokens=1).id

    def is_there(response: str) -> bool:
        try:
            return bool(one.responses.retrieve(response).id)
        except openai.NotFoundError:
            return False

    first, second = create(), create()
    with pytest.raises(openai.NotFoundError):
        two.responses.retrieve(second)
    third = create()
    assert not is_there(first)
    assert is_there(third)


def test_what_is_too_old_is_gone(checkpoints: Path) -> None:
    flags = ["--max-model-len", "512", "--response-store-lifetime", "1ms"]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        client = client_of(server)
        response = client.responses.create(model=server.model_name, input="hi", max_output_tokens=1)
        assert response.store is True
        path = f"{RESPONSES}/{response.id}"
        server.wait_until("it is too old", lambda: server.get(path).status_code == 404)


def test_a_server_that_keeps_nothing_says_so(checkpoints: Path) -> None:
    flags = ["--max-model-len", "512", "--response-store-count", "0"]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        client = client_of(server)
        ask: dict[str, Any] = {"model": server.model_name, "input": "hi", "max_output_tokens": 2}
        assert client.responses.create(**ask).store is False
        for fields in [{"store": True}, {"background": True}]:
            with pytest.raises(openai.BadRequestError, match="response-store-count"):
                client.responses.create(**ask, **fields)
