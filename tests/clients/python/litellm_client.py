"""LiteLLM, as it reaches a server by OpenAI's protocol, and by vLLM's and Anthropic's beside it."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # or it asks the network on import

import litellm
from conversation import (
    ABOUT_WEATHER,
    CITY,
    HEARD,
    KEY,
    QUESTION,
    RESULT,
    ROOT,
    UNKNOWN_MODEL,
    V1,
    WEATHER,
    Person,
    hold,
    refusal,
)

OPENAI: dict[str, Any] = {"model": "openai/demo", "api_base": V1, "api_key": KEY, "max_retries": 0, "temperature": 0}
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]


def whole_and_streamed() -> None:
    for reach in [OPENAI, {**OPENAI, "model": "hosted_vllm/demo"}]:
        whole = litellm.completion(messages=TURNS, **reach)
        assert HEARD in whole.choices[0].message.content
        options = {"include_usage": True}
        chunks = list(litellm.completion(messages=TURNS, stream=True, stream_options=options, **reach))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        streamed = litellm.stream_chunk_builder(chunks, messages=TURNS)
        assert text == streamed.choices[0].message.content == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens > 0


def by_anthropics_protocol() -> None:
    whole = litellm.completion(
        model="anthropic/demo", api_base=ROOT, api_key=KEY, messages=TURNS, max_tokens=200, temperature=0
    )
    assert HEARD in whole.choices[0].message.content


def by_responses() -> None:
    whole = litellm.responses(input=QUESTION, **OPENAI)
    assert HEARD in whole.output[0].content[0].text


def tools() -> None:
    ask = {**OPENAI, "tools": [WEATHER]}
    turns: list[Any] = [{"role": "user", "content": ABOUT_WEATHER}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = litellm.completion(messages=turns, tool_choice=named, parallel_tool_calls=False, **ask)
    (call,) = whole.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": CITY}
    chunks = list(litellm.completion(messages=turns, tool_choice="required", stream=True, **ask))
    (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == ("get_weather", call.function.arguments)
    turns += [whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    after = litellm.completion(messages=turns, tool_choice="none", **ask)
    assert after.choices[0].message.content
    assert after.choices[0].finish_reason == "stop"


def structured() -> None:
    litellm.enable_json_schema_validation = True
    whole = litellm.completion(messages=TURNS, response_format=Person, **OPENAI)
    Person.model_validate_json(whole.choices[0].message.content)


def refused() -> None:
    ask = {**OPENAI, "messages": TURNS}
    hot = refusal(litellm.BadRequestError, litellm.completion, **{**ask, "temperature": -1})
    assert "temperature" in str(hot)
    other = refusal(litellm.NotFoundError, litellm.completion, **{**ask, "model": f"openai/{UNKNOWN_MODEL}"})
    assert UNKNOWN_MODEL in str(other)
    # Its own kind, by which routers go on to a model with more room; known by the words of the message.
    for words in [9_000, 90_000]:  # the second is refused before it is tokenised
        turns = [{"role": "user", "content": "water " * words}]
        assert refusal(litellm.ContextWindowExceededError, litellm.completion, **{**ask, "messages": turns})


hold(whole_and_streamed, by_anthropics_protocol, by_responses, tools, structured, refused)
