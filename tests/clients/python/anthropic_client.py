"""Anthropic's Python client, with its own helpers for streams, tools and types."""

from __future__ import annotations

from typing import Any

import anthropic
from conversation import (
    ABOUT_WEATHER,
    CITY,
    HEARD,
    KEY,
    QUESTION,
    RESULT,
    ROOT,
    UNKNOWN_MODEL,
    WEATHER,
    Person,
    hold,
    refusal,
)

client = anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
# The client has no parameter for it any more, and the protocol still has.
ASK: dict[str, Any] = {"model": "demo", "max_tokens": 200, "extra_body": {"temperature": 0}}


def whole_and_streamed() -> None:
    whole = client.messages.create(messages=TURNS, **ASK)
    assert HEARD in whole.content[0].text
    with client.messages.stream(messages=TURNS, **ASK) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == streamed.content[0].text == whole.content[0].text
    assert streamed.stop_reason == whole.stop_reason == "end_turn"
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    # The second one finds the first one's prompt in the cache: the sum is the same.
    assert prompt(streamed) == prompt(whole) == client.messages.count_tokens(model="demo", messages=TURNS).input_tokens


def prompt(message: anthropic.types.Message) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def tools() -> None:
    function = WEATHER["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    ask = {**ASK, "tools": [tool]}
    turns: list[Any] = [{"role": "user", "content": ABOUT_WEATHER}]
    named: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    whole = client.messages.create(messages=turns, tool_choice=named, **ask)
    (call,) = whole.content
    assert (whole.stop_reason, call.name, call.input) == ("tool_use", "get_weather", {"city": CITY})
    with client.messages.stream(messages=turns, tool_choice=named, **ask) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert streamed.input == call.input
    assert "".join(parts)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns += [{"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(messages=turns, tool_choice={"type": "none"}, **ask)
    assert after.content[0].text
    assert after.stop_reason == "end_turn"


def the_tool_runner() -> None:
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return RESULT

    turns: list[Any] = [{"role": "user", "content": ABOUT_WEATHER}]
    final = client.beta.messages.tool_runner(tools=[get_weather], messages=turns, max_iterations=2, **ASK).until_done()
    assert asked
    assert asked[0] == CITY
    assert final.content


def structured() -> None:
    whole = client.messages.parse(messages=TURNS, output_format=Person, **ASK)
    assert isinstance(whole.parsed_output, Person)
    with client.messages.stream(messages=TURNS, output_format=Person, **ASK) as stream:
        streamed = stream.get_final_message()
    assert streamed.parsed_output == whole.parsed_output


def refused() -> None:
    none = refusal(anthropic.BadRequestError, client.messages.create, messages=TURNS, model="demo", max_tokens=0)
    assert none.type == "invalid_request_error"
    assert "max_tokens" in str(none)
    assert none.request_id
    other = refusal(anthropic.NotFoundError, client.messages.create, messages=TURNS, model=UNKNOWN_MODEL, max_tokens=1)
    assert other.type == "not_found_error"


hold(whole_and_streamed, tools, the_tool_runner, structured, refused)
