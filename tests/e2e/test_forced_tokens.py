"""What a form leaves no choice about is not drawn, and the answer is the same as if it had been."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.server import Server, children, sse

CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Describe somebody."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "the_given_name_of_the_person": {"enum": ["Ada", "Bob", "Charlotte"]},
        "the_number_of_years_that_have_passed": {"type": "integer", "minimum": 0, "maximum": 150},
        "remarks_that_are_the_same_for_all": {"const": "Nothing of this was chosen by anybody, not even by the model."},
        "is_left_handed": {"type": "boolean"},
    },
    "required": [
        "the_given_name_of_the_person",
        "the_number_of_years_that_have_passed",
        "remarks_that_are_the_same_for_all",
        "is_left_handed",
    ],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


def forced(server: Server) -> int:
    found = re.search(r"^pelton_forced_tokens_total(?:\{.*\})? (\d+)", server.get("/metrics").text, re.MULTILINE)
    assert found
    return int(found[1])


def body(seed: int, **fields: Any) -> dict[str, Any]:
    drawn = {"max_tokens": 400, "temperature": 1, "seed": seed, "return_token_ids": True, "response_format": FORM}
    return {"messages": ASKED, **drawn, **fields}


def ids(server: Server, seed: int, **fields: Any) -> list[int]:
    choice = server.post(CHAT, body(seed, **fields)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"])["remarks_that_are_the_same_for_all"].startswith("Nothing")
    found: list[int] = choice["token_ids"]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_the_one_whose_tokens_are_all_drawn(server: Server, seed: int) -> None:
    before = forced(server)
    drawn = ids(server, seed, logprobs=True)
    assert forced(server) == before, "each token's log-probability is of a draw"
    assert ids(server, seed, presence_penalty=1e-30) == drawn
    assert forced(server) == before, "what is counted is drawn"
    assert ids(server, seed) == drawn
    skipped = forced(server) - before
    assert skipped > len(drawn) // 3, f"{skipped} of {len(drawn)} tokens"


def test_a_text_without_a_choice_is_spelled_as_the_tokenizer_spells_it(server: Server) -> None:
    text = json.dumps("Nothing of this was chosen by anybody.")
    constrained = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": {"const": json.loads(text)}}}
    }
    spelled = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    choice = server.post(CHAT, body(1, **constrained)).json()["choices"][0]
    assert choice["message"]["content"] == text
    assert choice["token_ids"][: len(spelled)] == spelled
    banned = server.post(CHAT, body(1, **constrained, bad_words=["Nothing"])).json()["choices"][0]
    assert banned["message"]["content"] == text, "where a word is ruled out, it is spelled otherwise"
    assert banned["token_ids"] != choice["token_ids"]


def test_streams_stop_texts_and_bounds_see_every_token(server: Server) -> None:
    whole = server.post(CHAT, body(2)).json()
    with server.stream(CHAT, body(2, stream=True, stream_options={"include_usage": True})) as response:
        chunks = list(sse(response))
    text = "".join(part["delta"].get("content") or "" for chunk in chunks for part in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    cut = server.post(CHAT, body(2, stop=["chosen by"])).json()["choices"][0]
    assert cut["message"]["content"] == text[: text.index("chosen by")]
    for most in (5, 17, 40):
        short = server.post(CHAT, body(2, max_tokens=most)).json()["choices"][0]
        assert (short["finish_reason"], short["token_ids"]) == ("length", whole["choices"][0]["token_ids"][:most])


def test_a_crowd_and_a_dead_worker_change_nothing(server: Server) -> None:
    alone = {seed: ids(server, seed) for seed in range(8)}
    with ThreadPoolExecutor(16) as pool:
        sent = [(seed % 8, pool.submit(ids, server, seed % 8)) for seed in range(48)]
        for child in children(server.process.pid):
            os.kill(child, signal.SIGKILL)
        assert all(answer.result() == alone[seed] for seed, answer in sent)
