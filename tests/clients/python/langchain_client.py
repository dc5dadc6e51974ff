"""LangChain's `ChatOpenAI` and `OpenAI`, over chats, responses and completions."""

from __future__ import annotations

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
    Person,
    hold,
    refusal,
)
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

REACH: dict[str, Any] = {"base_url": V1, "api_key": KEY, "max_retries": 0, "temperature": 0}
chat = ChatOpenAI(model="demo", stream_usage=True, **REACH)
responses = ChatOpenAI(model="demo", use_responses_api=True, **REACH)


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city == CITY
    return RESULT


def whole_and_streamed() -> None:
    for model in [chat, responses]:
        whole = model.invoke(QUESTION)
        assert HEARD in whole.text
        streamed = joined(model, QUESTION)
        assert streamed.text == whole.text
        assert streamed.usage_metadata is not None
        assert whole.usage_metadata is not None
        assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
        assert streamed.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"] > 0


def joined(model: Any, asked: Any) -> AIMessageChunk:
    """The chunks of a streamed answer, added up by LangChain's own `+`."""
    first, *others = model.stream(asked)
    assert others
    for chunk in others:
        first += chunk
    return first


def a_batch_and_a_completion() -> None:
    system = SystemMessage("You are Pelton.")
    answers = chat.batch([[system, HumanMessage(QUESTION)], [system, HumanMessage(ABOUT_WEATHER)]])
    assert all(answer.text for answer in answers)
    assert OpenAI(model="demo", max_tokens=8, **REACH).invoke("Pelton is")


def tools() -> None:
    for model in [chat, responses]:
        # Strictly typed, as agents do it.
        able = model.bind_tools([get_weather], tool_choice="required", strict=True, parallel_tool_calls=False)
        turns: list[Any] = [HumanMessage(ABOUT_WEATHER)]
        whole = able.invoke(turns)
        (call,) = whole.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": CITY})
        (streamed,) = joined(able, turns).tool_calls
        assert (streamed["name"], streamed["args"]) == (call["name"], call["args"])
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage)
        after = model.bind_tools([get_weather], tool_choice="none").invoke([*turns, whole, result])
        assert after.text
        assert not after.tool_calls


def structured() -> None:
    for method in ["json_schema", "function_calling"]:
        assert isinstance(chat.with_structured_output(Person, method=method).invoke(QUESTION), Person)
    mode = chat.with_structured_output(None, method="json_mode")
    assert isinstance(mode.invoke("Give me JSON with the keys name and age for Anna, 31."), dict)
    assert isinstance(responses.with_structured_output(Person).invoke(QUESTION), Person)


def refused() -> None:
    for model in [chat, responses]:
        hot = refusal(openai.BadRequestError, model.invoke, QUESTION, temperature=-1)
        assert hot.param == "temperature"
        other = refusal(openai.NotFoundError, model.invoke, QUESTION, model=UNKNOWN_MODEL)
        assert UNKNOWN_MODEL in str(other)
        assert refusal(ContextOverflowError, model.invoke, "water " * 9_000)


hold(whole_and_streamed, a_batch_and_a_completion, tools, structured, refused)
