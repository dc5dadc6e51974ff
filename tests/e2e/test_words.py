"""What an answer may be made of: listed tokens, bad words, no circles. Greedy, so that each answer shows what was changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.load import complete, prompts
from support.server import Server, serving

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def server(checkpoints: Path) -> Iterator[Server]:
    with serving(checkpoints / "llama-gqa", "--max-running", "8") as server:
        yield server


def text_of(server: Server, *tokens: int) -> str:
    text: str = server.post("/detokenize", {"tokens": list(tokens)}).json()["prompt"]
    return text


def answer(server: Server, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
    response = server.post(COMPLETIONS, body | fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.parametrize("temperature", [0, 1])
def test_only_listed_tokens_are_drawn(server: Server, temperature: float) -> None:
    prompt = prompts(1, seed=1)[0]
    listed = [*complete(server, prompt, max_tokens=3).tokens, 5, 9, 11, 200]
    drawn = answer(server, prompt, allowed_token_ids=listed, temperature=temperature, seed=3)["token_ids"]
    assert len(drawn) == 24
    assert set(drawn) <= set(listed)
    assert answer(server, prompt, allowed_token_ids=[7])["token_ids"] == [7] * 24
    if temperature == 0:
        assert drawn[:3] == listed[:3], "what is allowed anyway stays as it is"


def test_a_bad_word_is_not_said_and_the_rest_stays_until_then(server: Server) -> None:
    prompt = prompts(1, seed=2)[0]
    free = answer(server, prompt)["token_ids"]
    # The first pair of tokens that is told by its text, the text coming back as the same tokens.
    for at in range(1, 20):
        word = text_of(server, *free[at : at + 2])
        again = server.post("/tokenize", {"prompt": word.lstrip(" "), "add_special_tokens": False}).json()["tokens"]
        if again == free[at : at + 2]:
            break
    else:
        pytest.fail("no pair of tokens can be told by its text")
    kept = answer(server, prompt, bad_words=[word])["token_ids"]
    pairs = list(itertools.pairwise(kept))
    assert tuple(again) not in pairs
    first = next(place for place in range(23) if free[place : place + 2] == again)
    assert kept[: first + 1] == free[: first + 1]
    assert kept[first + 1] != again[1]


def test_words_and_forms_are_kept_together(server: Server) -> None:
    fields = {"structured_outputs": {"choice": ["yes", "no", "maybe"]}, "ignore_eos": False, "temperature": 1}
    tokenized = server.post("/tokenize", {"prompt": "no", "add_special_tokens": False})
    for seed in range(6):
        choice = answer(server, [3, 4], allowed_token_ids=tokenized.json()["tokens"], seed=seed, **fields)
        assert (choice["text"], choice["finish_reason"]) == ("no", "stop")
    asked = {"structured_outputs": {"choice": ["yes"]}, "allowed_token_ids": tokenized.json()["tokens"]}
    stuck = server.post(COMPLETIONS, {"prompt": [3], "max_tokens": 9, **asked})
    assert stuck.status_code == 400
    error = stuck.json()["error"]
    assert (error["param"], error["code_name"]) == ("allowed_token_ids", "conflicting_parameters")
    assert "leaves no token to begin an answer with together with `structured_outputs.choice`" in error["message"]
    begun = server.post("/tokenize", {"prompt": "ye", "add_special_tokens": False}).json()["tokens"]
    later = server.post(COMPLETIONS, {"prompt": [3], "max_tokens": 9, **asked, "allowed_token_ids": begun}).json()
    assert (later["error"]["param"], later["error"]["code_name"]) == ("allowed_token_ids", "conflicting_parameters")


def test_words_that_leave_no_token_to_begin_with_are_refused(server: Server) -> None:
    token = next(token for token in range(40, 400) if len(text_of(server, token).strip()) == 1)
    fields = {"allowed_token_ids": [token], "bad_words": [text_of(server, token)]}
    refused = server.post(COMPLETIONS, {"prompt": [3], "max_tokens": 9, **fields})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["param"], error["code_name"]) == ("bad_words", "conflicting_parameters")


def test_an_answer_that_goes_round_in_circles_is_ended(server: Server) -> None:
    fields = {"allowed_token_ids": [7], "repetition_detection": {"max_pattern_size": 4, "min_count": 5}}
    choice = answer(server, [3, 4], **fields)
    assert (choice["token_ids"], choice["finish_reason"]) == ([7] * 5, "repetition")
    assert choice["stop_reason"] == "repetition_detected"
    assert len(answer(server, [3, 4], min_tokens=9, **fields)["token_ids"]) == 9
    asked = fields["repetition_detection"] | {"min_pattern_size": 3}
    assert len(answer(server, [3, 4], **(fields | {"repetition_detection": asked}))["token_ids"]) == 15
    off = {"max_pattern_size": 0}
    assert answer(server, [3, 4], **(fields | {"repetition_detection": off}))["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": "no"}, "bad_words"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection.min_count"),
        ({"repetition_detection": {"max_pattern_size": 3, "min_count": 1}}, "repetition_detection.min_count"),
        ({"repetition_detection": {"max_size": 3}}, "repetition_detection.max_size"),
        ({"repetition_detection": {}}, "repetition_detection.max_pattern_size"),
        ({"repetition_detection": {"min_count": 3}}, "repetition_detection.max_pattern_size"),
        ({"allowed_token_ids": [1], "use_beam_search": True}, "allowed_token_ids"),
        ({"bad_words": ["a"], "use_beam_search": True}, "bad_words"),
    ],
)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    response = server.post(COMPLETIONS, {"prompt": [3], **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
