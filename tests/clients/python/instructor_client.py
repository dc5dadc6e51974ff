"""instructor over OpenAI's client, in each of its modes that a server's grammar carries."""

from __future__ import annotations

from typing import Any

import instructor
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
    Weather,
    hold,
    refusal,
)
from instructor.core import InstructorRetryException
from pydantic import field_validator

plain = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0)
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
ASK: dict[str, Any] = {"model": "demo", "temperature": 0, "max_retries": 0}


def client_of(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(plain, mode=mode)


def whole_and_streamed() -> None:
    client = client_of(instructor.Mode.TOOLS)
    whole = client.chat.completions.create(messages=TURNS, response_model=None, **ASK)
    assert HEARD in whole.choices[0].message.content
    ask = {**ASK, "messages": TURNS, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(response_model=None, **ask)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens > 0
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens > 0


def tools() -> None:
    turns: list[Any] = [{"role": "user", "content": ABOUT_WEATHER}]
    for mode in [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT]:
        client = client_of(mode)
        weather, raw = client.chat.completions.create_with_completion(messages=turns, response_model=Weather, **ASK)
        assert isinstance(weather, Weather)
        assert weather.city == CITY
        said = raw.choices[0].message
        assert said.tool_calls[0].function.name == "Weather"
        result: Any = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": RESULT}
        ask = {**ASK, "messages": [*turns, said.model_dump(), result]}
        assert isinstance(client.chat.completions.create(response_model=Person, **ask), Person)


def asked_again() -> None:
    """A call that a validator refuses goes back, with what is wrong as its result."""
    seen: list[str] = []

    class Pleasing(Person):
        @field_validator("name")
        @classmethod
        def pleases_the_second_time(cls, name: str) -> str:
            seen.append(name)
            if len(seen) == 1:
                raise ValueError("another name, please")
            return name

    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        seen.clear()
        ask = {**ASK, "max_retries": 1, "messages": TURNS}
        assert isinstance(client_of(mode).chat.completions.create(response_model=Pleasing, **ask), Pleasing)
        assert len(seen) == 2


def structured() -> None:
    for mode in [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS]:
        client = client_of(mode)
        whole = client.chat.completions.create(messages=TURNS, response_model=Person, **ASK)
        assert isinstance(whole, Person)
        *_, last = client.chat.completions.create_partial(messages=TURNS, response_model=Person, **ASK)
        Person.model_validate(last.model_dump())  # a partial one has its own name, so another prompt


def responses() -> None:
    client = client_of(instructor.Mode.RESPONSES_TOOLS)
    assert isinstance(client.responses.create(input=QUESTION, response_model=Person, **ASK), Person)


def refused() -> None:
    client = client_of(instructor.Mode.JSON_SCHEMA)
    ask = {**ASK, "messages": TURNS, "response_model": Person}
    for fields, kind in [
        ({"temperature": -1}, openai.BadRequestError),
        ({"model": UNKNOWN_MODEL}, openai.NotFoundError),
    ]:
        error = refusal(InstructorRetryException, client.chat.completions.create, **{**ask, **fields})
        assert isinstance(error.__cause__, kind)


hold(whole_and_streamed, tools, asked_again, structured, responses, refused)
