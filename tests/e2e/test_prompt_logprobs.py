"""Log-probabilities of prompts are those of `transformers`: whole, in chunks, beside others, and with the prompt cached by somebody else."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from support.load import prompts
from support.server import Server, serving, sse

COMPLETIONS = "/v1/completions"
CLOSE = 2e-4


@pytest.fixture(scope="module")
def server(checkpoints: Path) -> Iterator[Server]:
    # A step of 16 tokens cuts prompts into many chunks.
    with serving(checkpoints / "llama-gqa", "--token-budget", "16", "--max-running", "4") as server:
        yield server


@functools.cache
def exact(folder: Path, prompt: tuple[int, ...]) -> torch.Tensor:
    """Of all tokens, behind each of the prompt's."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return logits.double().log_softmax(dim=-1)


def check_list(got: Sequence[Any], folder: Path, prompt: Sequence[int], top: int) -> None:
    """vLLM's form."""
    assert len(got) == len(prompt)
    assert got[0] is None
    true = exact(folder, tuple(prompt))
    for at, entry in enumerate(got[1:]):
        own = entry[str(prompt[at + 1])]
        assert own["logprob"] == pytest.approx(float(true[at, prompt[at + 1]]), abs=CLOSE)
        assert own["rank"] == pytest.approx(1 + int((true[at] > true[at, prompt[at + 1]]).sum()), abs=2)
        assert len(entry) in (top, top + 1)
        best = sorted((each["logprob"] for each in entry.values()), reverse=True)[:top]
        assert best == pytest.approx(true[at].topk(top).values.tolist(), abs=CLOSE)


def check_echo(got: dict[str, Any], folder: Path, prompt: Sequence[int], drawn: int) -> None:
    """OpenAI's form."""
    assert {len(got[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {
        len(prompt) + drawn
    }
    assert got["token_logprobs"][0] is None
    assert got["top_logprobs"][0] is None
    true = exact(folder, tuple(prompt))
    own = [float(true[at, token]) for at, token in enumerate(prompt[1:])]
    assert got["token_logprobs"][1 : len(prompt)] == pytest.approx(own, abs=CLOSE)
    best = [max(top.values()) for top in got["top_logprobs"][1 : len(prompt)]]
    assert best == pytest.approx(true[:-1].max(dim=-1).values.tolist(), abs=CLOSE)
    assert got["text_offset"] == sorted(got["text_offset"])


@pytest.mark.parametrize("drawn", [0, 1, 5])
@pytest.mark.parametrize("is_cached", [False, True])
def test_an_echo_with_logprobs_tells_of_the_prompt(
    server: Server, checkpoints: Path, drawn: int, is_cached: bool
) -> None:
    asked = prompts(3, seed=drawn + 10 * is_cached)
    ask = {"max_tokens": drawn, "echo": True, "logprobs": 2, "temperature": 0, "ignore_eos": True}
    plain = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if is_cached:
        for prompt in asked:
            server.post(COMPLETIONS, {**plain, "prompt": prompt})
    body = {**ask, "prompt": asked, "return_token_ids": True}
    answer = server.post(COMPLETIONS, body).json()
    assert answer["usage"]["completion_tokens"] == drawn * len(asked)
    for prompt, choice in zip(asked, answer["choices"], strict=True):
        check_echo(choice["logprobs"], checkpoints / "llama-gqa", prompt, drawn)
        assert choice["finish_reason"] == "length"
        assert len(choice["token_ids"]) == drawn
        whole = server.post(COMPLETIONS, {**plain, "prompt": prompt}).json()
        assert whole["choices"][0]["token_ids"][:drawn] == choice["token_ids"]
        # It leaves its prompt behind for others.
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    parts: dict[int, list[dict[str, Any]]] = {}
    with server.stream(COMPLETIONS, {**body, "stream": True}) as response:
        for event in sse(response):
            for part in event["choices"]:
                parts.setdefault(part["index"], []).append(part)
    for choice in answer["choices"]:
        mine = parts[choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [entry for part in mine for entry in part["logprobs"][name]] == choice["logprobs"][name]


def test_prompt_logprobs_in_every_protocol(server: Server, checkpoints: Path) -> None:
    folder, prompt = checkpoints / "llama-gqa", prompts(1, seed=5)[0]
    ask = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "prompt_logprobs": 3, "n": 2, "presence_penalty": 1.0}
    for choice in server.post(COMPLETIONS, ask).json()["choices"]:
        check_list(choice["prompt_logprobs"], folder, prompt, 3)
    with server.stream(COMPLETIONS, {**ask, "stream": True}) as response:
        told = [
            part["prompt_logprobs"] for event in sse(response) for part in event["choices"] if "prompt_logprobs" in part
        ]
    assert len(told) == 2
    for each in told:
        check_list(each, folder, prompt, 3)
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 3, "prompt_logprobs": 1}}
    check_list(server.post("/inference/v1/generate", body).json()["prompt_logprobs"], folder, prompt, 1)
    single = server.post(COMPLETIONS, {**ask, "prompt": prompt[:1], "n": 1}).json()["choices"][0]
    assert single["prompt_logprobs"] == [None]


def test_a_chats_prompt_has_logprobs(server: Server, checkpoints: Path) -> None:
    ask = {
        "messages": [{"role": "user", "content": "one two"}],
        "max_tokens": 2,
        "return_token_ids": True,
        "prompt_logprobs": 0,
    }
    answer = server.post("/v1/chat/completions", ask).json()
    prompt = answer["prompt_token_ids"]
    for at, entry in enumerate(answer["prompt_logprobs"][1:], start=1):
        assert list(entry) == [str(prompt[at])]
    true = exact(checkpoints / "llama-gqa", tuple(prompt))
    own = [next(iter(entry.values()))["logprob"] for entry in answer["prompt_logprobs"][1:]]
    assert own == pytest.approx([float(true[at, token]) for at, token in enumerate(prompt[1:])], abs=CLOSE)
    with server.stream("/v1/chat/completions", {**ask, "stream": True}) as response:
        told = [event.get("prompt_logprobs") for event in sse(response)]
    assert told[0] == answer["prompt_logprobs"]
    assert not any(told[1:])


def test_the_official_client_reads_an_echo(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.completions.create(
        model=server.model_name, prompt="one two three", echo=True, logprobs=1, max_tokens=0
    )
    choice = answer.choices[0]
    assert choice.text == "one two three"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])


@pytest.mark.parametrize("wrong", [-1, 21, "2"])
def test_more_than_is_allowed_is_refused_by_name(server: Server, wrong: object) -> None:
    answer = server.post(COMPLETIONS, {"prompt": "a", "prompt_logprobs": wrong})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"
