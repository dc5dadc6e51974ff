"""The first contact: the demo model, as a newcomer meets it. What it cannot do stands in its card, not here."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from support.server import PELTON, Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(demo: Server, question: str, **fields: Any) -> dict[str, Any]:
    """The message and the reason of its end."""
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120, **fields}
    answer = demo.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_it_knows_what_pelton_is(demo: Server) -> None:
    answer = ask(demo, "What is Pelton?")
    assert "server for large language models" in answer["message"]["content"]
    assert answer["finish_reason"] == "stop"
    assert "--port" in ask(demo, "Which flag sets the port?")["message"]["content"]


def test_it_writes_valid_json(demo: Server) -> None:
    answer = ask(demo, "Give me JSON with the keys name and age for Anna, 31.")
    assert json.loads(answer["message"]["content"]) == {"name": "Anna", "age": 31}


def test_it_calls_a_tool(demo: Server) -> None:
    answer = ask(demo, "What is the weather in Paris?", tools=[WEATHER])
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert ask(demo, "What is the weather in Paris?", tools=[WEATHER], tool_choice="none")["finish_reason"] == "stop"


def test_a_chat_in_the_terminal(demo: Server) -> None:
    ended = subprocess.run(
        [PELTON, "chat", "--url", demo.url],
        input="Hello!\nWhat is Pelton?\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "server for large language models" in ended.stdout


def test_every_template_form_of_a_conversation_is_answered(demo: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Rome?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21, "sky": "sunny"}'},
    ]
    body = {"messages": messages, "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    answer = demo.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["content"] or message["tool_calls"]
