"""What every client asks of the demo model, and how its conversation is told to the test that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ROOT = sys.argv[1]  # of the server
V1 = f"{ROOT}/v1"
KEY = "none"  # clients insist on one

QUESTION = "What is Pelton?"
HEARD = "server for large language models"  # what the demo model answers to it, greedily
ABOUT_WEATHER = "What is the weather in Paris?"
CITY = "Paris"
RESULT = "17 degrees and rain"
UNKNOWN_MODEL = "no-such-model"


class Weather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=12)


class Person(BaseModel):
    """Somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def refusal(kind: type[Exception], ask: Callable[..., object], *args: object, **fields: Any) -> Any:
    """The error that a request ends with, which must be of a kind: the client's own."""
    try:
        ask(*args, **fields)
    except kind as error:
        return error
    raise AssertionError(f"it was taken: {fields}")


def hold(*parts: Callable[[], None]) -> None:
    """Runs the parts of a conversation and names each that went well: the test wants all of them named."""
    for part in parts:
        part()
        print(f"ok: {part.__name__}", flush=True)
