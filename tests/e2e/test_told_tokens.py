"""`logprob_token_ids`: log-probabilities of tokens of the client's choice, in the place of the likeliest."""

from __future__ import annotations

from typing import Any

import pytest
from support.server import Server, sse

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
ASKED = [{"role": "user", "content": "Why is the sky blue?"}]
PROMPT = [7, 21, 300, 44]
TOLD = [400, 5, 17]


def named(server: Server, token: int) -> str:
    text: str = server.post("/detokenize", {"tokens": [token]}).json()["prompt"]
    return text


def of_likeliest(server: Server, prompt: list[int], token: int, **fields: Any) -> float:
    """The same number by the way around: a prompt's log-probability of that token."""
    body = {"prompt": [*prompt, token], "max_tokens": 1, "prompt_logprobs": 0, **fields}
    entries = server.post(COMPLETIONS, body).json()["choices"][0]["prompt_logprobs"]
    return float(entries[-1][str(token)]["logprob"])


def test_completions_tell_the_tokens_that_were_asked_for(server: Server) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
    }
    choice = server.post(COMPLETIONS, {**body, "logprob_token_ids": TOLD}).json()["choices"][0]
    plain = server.post(COMPLETIONS, body).json()["choices"][0]
    assert choice["token_ids"] == plain["token_ids"]
    assert choice["logprobs"]["token_logprobs"] == plain["logprobs"]["token_logprobs"]
    names = [named(server, token) for token in TOLD]
    for at, shown in enumerate(choice["logprobs"]["top_logprobs"]):
        before = PROMPT + choice["token_ids"][:at]
        assert list(shown)[1:] == [name for name in names if name != choice["logprobs"]["tokens"][at]]
        for token, name in zip(TOLD, names, strict=True):
            assert shown[name] == pytest.approx(of_likeliest(server, before, token), abs=1e-4)


@pytest.mark.parametrize(
    "fields", [{}, {"n": 3, "seed": 4, "temperature": 1}, {"min_tokens": 3, "stop_token_ids": [9, 11]}]
)
def test_chats_tell_them_in_the_order_they_were_asked_for(server: Server, fields: dict[str, Any]) -> None:
    body = {"messages": ASKED, "max_tokens": 5, "temperature": 0, "logprobs": True, "logprob_token_ids": TOLD, **fields}
    whole = server.post(CHAT, body).json()
    names = [named(server, token) for token in TOLD]
    for choice in whole["choices"]:
        for entry in choice["logprobs"]["content"]:
            assert [candidate["token"] for candidate in entry["top_logprobs"]] == names
    with server.stream(CHAT, {**body, "stream": True}) as response:
        chunks = list(sse(response))
    for choice in whole["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        told = [entry for part in mine for entry in (part.get("logprobs") or {}).get("content", [])]
        assert told == choice["logprobs"]["content"]


def test_token_ids_in_and_out(server: Server) -> None:
    params = {"max_tokens": 3, "temperature": 0, "logprobs": 2, "logprob_token_ids": TOLD, "ignore_eos": True}
    choice = server.post(GENERATE, {"token_ids": PROMPT, "sampling_params": params}).json()["choices"][0]
    for entry in choice["logprobs"]["content"]:
        assert [candidate["token"] for candidate in entry["top_logprobs"]] == [f"token_id:{token}" for token in TOLD]


@pytest.mark.parametrize(
    "wrong",
    [
        {"logprobs": None},
        {"logprob_token_ids": [1] * 21},
        {"logprob_token_ids": [1 << 20]},
        {"logprob_token_ids": [-1]},
        {"logprob_token_ids": "5"},
        {"use_beam_search": True, "n": 2},
    ],
)
def test_what_cannot_be_told_is_refused_by_name(server: Server, wrong: dict[str, Any]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1, "logprob_token_ids": TOLD, **wrong}
    refused = server.post(COMPLETIONS, body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprob_token_ids"), refused.text
