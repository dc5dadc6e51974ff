"""LlamaIndex's `OpenAILike`."""

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
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

REACH: dict[str, Any] = {"api_base": V1, "api_key": KEY, "max_retries": 0, "temperature": 0, "context_window": 4096}
llm = OpenAILike(model="demo", is_chat_model=True, is_function_calling_model=True, max_tokens=200, **REACH)
TURNS = [ChatMessage(role="user", content=QUESTION)]


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city == CITY
    return RESULT


def whole_and_streamed() -> None:
    whole = llm.chat(TURNS)
    assert HEARD in whole.message.content
    chunks = list(llm.stream_chat(TURNS, stream_options={"include_usage": True}))
    assert "".join(chunk.delta or "" for chunk in chunks) == chunks[-1].message.content == whole.message.content
    assert chunks[-1].additional_kwargs["completion_tokens"] == whole.raw.usage.completion_tokens > 0
    assert chunks[-1].additional_kwargs["prompt_tokens"] == whole.raw.usage.prompt_tokens > 0


def completions() -> None:
    plain = OpenAILike(model="demo", is_chat_model=False, max_tokens=12, **REACH)
    whole = plain.complete("Pelton is")
    assert whole.text
    assert "".join(chunk.delta or "" for chunk in plain.stream_complete("Pelton is")) == whole.text


def tools() -> None:
    tool = FunctionTool.from_defaults(get_weather)
    turns = [ChatMessage(role="user", content=ABOUT_WEATHER)]
    whole = llm.chat_with_tools([tool], chat_history=turns, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(whole)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": CITY})
    *_, last = llm.stream_chat_with_tools([tool], chat_history=turns, tool_required=True)
    (streamed,) = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)
    # The whole loop: call, result, answer.
    result = ChatMessage(
        role="tool", content=get_weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
    )
    after = llm.chat([*turns, whole.message, result])
    assert after.message.content
    assert after.raw.choices[0].finish_reason == "stop"


def structured() -> None:
    by_schema = OpenAILike(
        model="demo", is_chat_model=True, should_use_structured_outputs=True, max_tokens=200, **REACH
    )
    for model in [by_schema, llm]:  # the second one by a tool
        assert isinstance(model.as_structured_llm(Person).chat(TURNS).raw, Person)


def refused() -> None:
    hot = refusal(openai.BadRequestError, llm.chat, TURNS, temperature=-1)
    assert hot.param == "temperature"
    other = refusal(openai.NotFoundError, OpenAILike(model=UNKNOWN_MODEL, is_chat_model=True, **REACH).chat, TURNS)
    assert UNKNOWN_MODEL in str(other)


hold(whole_and_streamed, completions, tools, structured, refused)
