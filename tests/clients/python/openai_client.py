"""OpenAI's Python client: chats, completions and responses, with its own helpers for tools and types."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from conversation import (
    ABOUT_WEATHER,
    CITY,
    HEARD,
    KEY,
    QUESTION,
    RESULT,
    UNKNOWN_MODEL,
    V1,
    WEATHER,
    Person,
    Weather,
    hold,
    refusal,
)

client = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0)
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER_TURNS: list[Any] = [{"role": "user", "content": ABOUT_WEATHER}]
ASK: dict[str, Any] = {"model": "demo", "temperature": 0}


def whole_and_streamed() -> None:
    whole = client.chat.completions.create(messages=TURNS, **ASK)
    assert HEARD in whole.choices[0].message.content
    with client.chat.completions.stream(messages=TURNS, stream_options={"include_usage": True}, **ASK) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        streamed = stream.get_final_completion()
    assert text == streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert streamed.usage.completion_tokens == whole.usage.completion_tokens > 0
    assert streamed.usage.prompt_tokens == whole.usage.prompt_tokens > 0


def the_asynchronous_client() -> None:
    async def text() -> str:
        async with openai.AsyncOpenAI(base_url=V1, api_key=KEY, max_retries=0) as other:
            chunks = [chunk async for chunk in await other.chat.completions.create(messages=TURNS, stream=True, **ASK)]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert HEARD in asyncio.run(text())


def tools() -> None:
    ask = {**ASK, "tools": [openai.pydantic_function_tool(Weather, name="get_weather")]}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.parse(messages=WEATHER_TURNS, tool_choice=named, parallel_tool_calls=False, **ask)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city=CITY)
    with client.chat.completions.stream(messages=WEATHER_TURNS, tool_choice="required", **ask) as stream:
        deltas = [e.arguments_delta for e in stream if e.type == "tool_calls.function.arguments.delta"]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "".join(deltas) == streamed.function.arguments
    assert streamed.function.parsed_arguments == Weather(city=CITY)
    turns = [*WEATHER_TURNS, whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    after = client.chat.completions.create(messages=turns, tool_choice="none", **ask)
    assert after.choices[0].message.content
    assert after.choices[0].finish_reason == "stop"


def structured() -> None:
    whole = client.chat.completions.parse(messages=TURNS, response_format=Person, **ASK)
    assert isinstance(whole.choices[0].message.parsed, Person)
    with client.chat.completions.stream(messages=TURNS, response_format=Person, **ASK) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def refused() -> None:
    hot = refusal(openai.BadRequestError, client.chat.completions.create, messages=TURNS, model="demo", temperature=-1)
    assert hot.param == "temperature"
    assert hot.request_id
    other = refusal(openai.NotFoundError, client.chat.completions.create, messages=TURNS, model=UNKNOWN_MODEL)
    assert other.body["code_name"] == "model_not_found"


def responses_whole_and_streamed() -> None:
    whole = client.responses.create(input=QUESTION, **ASK)
    assert HEARD in whole.output_text
    with client.responses.stream(input=QUESTION, **ASK) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert text == streamed.output_text == whole.output_text
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0


def responses_tools() -> None:
    tool: Any = {"type": "function", **WEATHER["function"], "strict": True}
    ask = {**ASK, "tools": [tool]}
    whole = client.responses.parse(input=ABOUT_WEATHER, tool_choice="required", parallel_tool_calls=False, **ask)
    (call,) = whole.output
    assert call.parsed_arguments == {"city": CITY}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    after = client.responses.create(input=[result], previous_response_id=whole.id, tool_choice="none", **ask)
    assert after.output_text
    # The same without the server's memory: all items are sent back.
    turns: list[Any] = [*WEATHER_TURNS, *whole.output, result]
    itself = client.responses.create(input=turns, store=False, tool_choice="none", **ask)
    assert itself.output_text == after.output_text


def responses_structured() -> None:
    whole = client.responses.parse(input=QUESTION, text_format=Person, **ASK)
    assert isinstance(whole.output_parsed, Person)


hold(
    whole_and_streamed,
    the_asynchronous_client,
    tools,
    structured,
    refused,
    responses_whole_and_streamed,
    responses_tools,
    responses_structured,
)
