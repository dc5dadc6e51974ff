"""`truncation: "auto"`: a conversation that does not fit loses its oldest turns, as few as can be, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from support.server import Server

RESPONSES = "/v1/responses"
CONTEXT = 512
ANSWER = 8
INSTRUCTIONS = "You are brief."
Items = list[dict[str, Any]]


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def exchanges(count: int) -> Items:
    turns = [
        [said("user", f"Question {n}: {'why ' * (n % 7)}"), said("assistant", f"Answer {n}.")] for n in range(count)
    ]
    return [turn for pair in turns for turn in pair]


def ask(server: Server, items: Items | str, **fields: Any) -> Any:
    drawn = {"max_output_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "truncation": "auto"}
    return server.post(RESPONSES, {"input": items, **drawn, **fields})


def answered(server: Server, items: Items | str, **fields: Any) -> dict[str, Any]:
    response = ask(server, items, **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["usage"]["output_tokens"] == fields.get("max_output_tokens", ANSWER)
    return answer


def text(answer: dict[str, Any]) -> str:
    return str(answer["output"][0]["content"][0]["text"])


def tokens(server: Server, messages: Items) -> int:
    return int(server.post("/tokenize", {"messages": messages}).json()["count"])


def words(server: Server, count: int) -> str:
    """A text of about so many tokens."""
    ten, twenty = [tokens(server, [said("user", "why " * n)]) for n in (10, 20)]
    return "why " * (10 * count // (twenty - ten))


def error(response: Any) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    told: dict[str, Any] = response.json()["error"]
    return told


@pytest.mark.parametrize("count", [20, 300])
def test_as_few_exchanges_are_left_out_as_can_be(server: Server, count: int) -> None:
    items = [*exchanges(count), said("user", "And now?")]
    system = [said("system", INSTRUCTIONS)]
    fits = [n for n in range(count + 1) if tokens(server, system + items[2 * n :]) + ANSWER <= CONTEXT]
    least = fits[0]
    assert 0 < least < count, "some are left out and some are not"
    answer = answered(server, items, instructions=INSTRUCTIONS)
    assert answer["truncation"] == "auto"
    assert answer["usage"]["input_tokens"] == tokens(server, system + items[2 * least :])
    by_hand = answered(server, items[2 * least :], instructions=INSTRUCTIONS, truncation="disabled")
    assert by_hand["truncation"] == "disabled"
    assert text(by_hand) == text(answer)
    # The more room the answer wants, the less is told.
    longer = answered(server, items, instructions=INSTRUCTIONS, max_output_tokens=200)
    assert longer["usage"]["input_tokens"] <= CONTEXT - 200


def test_what_fits_stays_whole(server: Server) -> None:
    items = [*exchanges(2), said("user", "And now?")]
    auto, disabled = answered(server, items), answered(server, items, truncation="disabled")
    assert auto["usage"]["input_tokens"] == disabled["usage"]["input_tokens"] == tokens(server, items)


def test_without_it_the_conversation_is_refused(server: Server) -> None:
    items = [*exchanges(60), said("user", "And now?")]
    for truncation in ["disabled", None]:
        told = error(ask(server, items, truncation=truncation))
        assert (told["code_name"], told["param"]) == ("context_length_exceeded", "input")


@pytest.mark.parametrize("words", [CONTEXT, 100_000])
def test_a_last_item_that_is_too_long_alone_is_refused(server: Server, words: int) -> None:
    told = error(ask(server, [*exchanges(3), said("user", "wheel " * words)]))
    assert (told["code_name"], told["param"]) == ("context_length_exceeded", "input")


def test_a_last_item_that_leaves_less_room_is_answered(server: Server) -> None:
    last = said("user", words(server, CONTEXT * 5 // 8))
    size = tokens(server, [last])
    assert CONTEXT // 2 < size < CONTEXT - ANSWER
    usage = ask(server, [*exchanges(60), last], max_output_tokens=CONTEXT).json()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (size, CONTEXT - size)


def test_half_of_the_context_is_the_conversations_whatever_the_answer_wants(server: Server) -> None:
    items = [*exchanges(10), said("user", "And now?")]
    size = tokens(server, items[-3:])
    assert size < CONTEXT // 2
    usage = ask(server, items, max_output_tokens=CONTEXT).json()["usage"]
    assert size <= usage["input_tokens"] <= CONTEXT // 2


def test_a_call_goes_with_its_output(server: Server) -> None:
    def call(number: int, output: str) -> Items:
        made = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        return [made, {"type": "function_call_output", "call_id": f"c{number}", "output": output}]

    # Without the first call alone it would fit; but an output without its call is none.
    long = words(server, CONTEXT * 5 // 8)
    items = [said("user", "why?"), *call(1, long), *call(2, "cold")]
    results = [said("tool", long), said("tool", "cold")]
    function = {"name": "f", "arguments": "{}"}
    calls = [
        {"role": "assistant", "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}]} for n in (1, 2)
    ]
    results = [{**result, "tool_call_id": f"c{n}"} for n, result in enumerate(results, start=1)]
    ends = [[calls[0], results[0], calls[1], results[1]], [calls[1], results[1]]]
    sizes = [tokens(server, end) for end in ends]
    answer_of = {"max_output_tokens": CONTEXT - sizes[0] + 1}
    assert 1 < answer_of["max_output_tokens"] <= CONTEXT // 2, sizes
    answer = answered(server, items, **answer_of)
    assert answer["usage"]["input_tokens"] == sizes[1]
    # With a little less for the answer the first call stays, and its output with it.
    answer_of["max_output_tokens"] -= 1
    assert answered(server, items, **answer_of)["usage"]["input_tokens"] == sizes[0]


def test_a_kept_conversation_stays_whole(server: Server) -> None:
    long = [*exchanges(12), said("user", "My name is Ada.")]
    first = answered(server, long)
    second = answered(server, "why " * 60, previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] + ANSWER <= CONTEXT
    assert second["previous_response_id"] == first["id"]
    kept = server.get(f"{RESPONSES}/{first['id']}/input_items?limit=100").json()["data"]
    assert len(kept) == len(long)


def test_a_wrong_word_is_named(server: Server) -> None:
    told = error(ask(server, "hi", truncation="middle"))
    assert told["param"] == "truncation"
    assert '"auto" or "disabled"' in told["message"]
