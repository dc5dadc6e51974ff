"""Beam search finds what `transformers` finds: through the server, alone and beside others, whole and streamed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.checkpoints import greedy
from support.load import complete, prompts
from support.server import Server, serving, sse

COMPLETIONS = "/v1/completions"
WIDTH = 4
TOKENS = 14


@pytest.fixture(scope="module")
def server(checkpoints: Path) -> Iterator[Server]:
    with serving(checkpoints / "llama-gqa", "--max-running", "16") as server:
        yield server


@functools.cache
def ends(folder: Path) -> tuple[int, ...]:
    """A few tokens that the model likes to draw, so that beams end at all lengths."""
    return tuple(sorted({greedy(folder, prompt, 6)[-1] for prompt in prompts(8, seed=3)}))


@torch.inference_mode()
def searched(
    folder: Path, prompt: Sequence[int], length_penalty: float, stop: Sequence[int]
) -> list[tuple[list[int], float]]:
    """The oracle: the answers with their scores, best first."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=TOKENS,
        num_beams=WIDTH,
        num_return_sequences=WIDTH,
        do_sample=False,
        early_stopping="never",
        length_penalty=length_penalty,
        eos_token_id=list(stop),
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers = []
    for row, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((at + 1 for at, token in enumerate(row) if token in stop), len(row))
        answers.append((row[:end], score))
    return answers


def asked(prompt: Sequence[int], length_penalty: float, stop: Sequence[int]) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n": WIDTH,
        "max_tokens": TOKENS,
        "use_beam_search": True,
        "length_penalty": length_penalty,
        "stop_token_ids": list(stop),
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 1,
        "temperature": 0,
    }


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
def test_the_answers_are_those_of_transformers(server: Server, checkpoints: Path, length_penalty: float) -> None:
    folder = checkpoints / "llama-gqa"
    stop = ends(folder)
    some = prompts(5, seed=int(10 * length_penalty) + 40)
    with ThreadPoolExecutor(len(some) + 1) as pool:
        beside = pool.submit(complete, server, some[0], max_tokens=40)
        bodies = [asked(prompt, length_penalty, stop) for prompt in some]
        answers = [job.result().json() for job in [pool.submit(server.post, COMPLETIONS, body) for body in bodies]]
        assert beside.result().tokens == greedy(folder, some[0], 40), "others are served as ever"
    lengths = set()
    for prompt, answer in zip(some, answers, strict=True):
        expected = searched(folder, prompt, length_penalty, stop)
        assert [choice["token_ids"] for choice in answer["choices"]] == [tokens for tokens, _ in expected]
        for choice, (tokens, score) in zip(answer["choices"], expected, strict=True):
            lengths.add(len(tokens))
            assert choice["finish_reason"] == ("stop" if tokens[-1] in stop else "length")
            assert choice["stop_reason"] == (tokens[-1] if tokens[-1] in stop else None)
            logprobs = choice["logprobs"]["token_logprobs"]
            assert sum(logprobs) / len(tokens) ** length_penalty == pytest.approx(score, abs=1e-3)
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        assert usage["completion_tokens"] == sum(len(tokens) for tokens, _ in expected)
    assert len(lengths) > 1 or length_penalty > 0, "beams of several lengths were compared"


def test_a_stream_tells_the_same(server: Server, checkpoints: Path) -> None:
    body = asked(prompts(1, seed=9)[0], 1.0, ends(checkpoints / "llama-gqa"))
    whole = server.post(COMPLETIONS, body).json()["choices"]
    told: dict[int, tuple[str, list[int], str]] = {}
    with server.stream(COMPLETIONS, {**body, "stream": True}) as response:
        for event in sse(response):
            for choice in event["choices"]:
                text, tokens, reason = told.get(choice["index"], ("", [], ""))
                told[choice["index"]] = (
                    text + choice["text"],
                    tokens + choice["token_ids"],
                    choice["finish_reason"] or reason,
                )
    assert [told[at] for at in range(WIDTH)] == [
        (choice["text"], choice["token_ids"], choice["finish_reason"]) for choice in whole
    ]


def test_several_prompts_and_chats_are_searched_for_too(server: Server) -> None:
    some = prompts(3, seed=77)
    body = asked(some[0], 1.0, [])
    together = server.post(COMPLETIONS, {**body, "prompt": some}).json()["choices"]
    alone = [server.post(COMPLETIONS, {**body, "prompt": prompt}).json()["choices"] for prompt in some]
    assert [choice["text"] for choice in together] == [choice["text"] for each in alone for choice in each]

    chat = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 6, "n": 3, "use_beam_search": True}
    answer = server.post("/v1/chat/completions", {**chat, "logprobs": True, "return_token_ids": True}).json()
    sums = [sum(entry["logprob"] for entry in choice["logprobs"]["content"]) for choice in answer["choices"]]
    per_token = [
        each / len(choice["logprobs"]["content"]) for each, choice in zip(sums, answer["choices"], strict=True)
    ]
    assert per_token == sorted(per_token, reverse=True)
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) == 3


def test_a_search_computes_no_token_twice(server: Server) -> None:
    def computed() -> float:
        return server.metric("vllm:prompt_tokens_total") - server.metric("vllm:prefix_cache_hits_total")

    prompt, before = prompts(1, seed=123, shortest=80)[0], computed()
    server.post(COMPLETIONS, asked(prompt, 1.0, []))
    assert len(prompt) <= computed() - before <= len(prompt) + WIDTH * TOKENS


def test_a_client_that_leaves_ends_its_search(server: Server) -> None:
    body = {**asked(prompts(1, seed=5)[0], 1.0, []), "max_tokens": 400, "stream": True}
    with server.stream(COMPLETIONS, body) as response:
        assert response.status_code == 200
        server.wait_until("it runs", lambda: server.metric("vllm:num_requests_running") > 0)
    server.wait_until("nothing runs", lambda: server.metric("vllm:num_requests_running") == 0, within_s=5)
    drawn = server.metric("pelton_steps_total")
    assert server.get("/livez").status_code == 200
    server.wait_until("no step more", lambda: server.metric("pelton_steps_total") <= drawn + 2, within_s=1)


def test_a_search_is_ended_before_the_server_ends(checkpoints: Path) -> None:
    body = {**asked(prompts(1, seed=5)[0], 1.0, []), "max_tokens": 400}
    with serving(checkpoints / "llama-gqa") as server, ThreadPoolExecutor(1) as pool:
        expected = server.post(COMPLETIONS, body).json()["choices"]
        again = pool.submit(server.post, COMPLETIONS, {**body, "cache_salt": "another"})
        server.wait_until("it runs", lambda: server.metric("vllm:num_requests_running") > 0)
        assert server.stop() == 0
        assert again.result().json()["choices"] == expected


@pytest.mark.parametrize(
    ("fields", "param", "names"),
    [
        ({"temperature": 0.5}, "temperature", "beam search"),
        ({"top_k": 5}, "top_k", "beam search"),
        ({"stop": ["x"]}, "stop", "beam search"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "beam search"),
        ({"n": 20}, "n", "1 to 19"),
        ({"stop_token_ids": list(range(5, 25)), "ignore_eos": False}, "stop_token_ids", "fewer than 20"),
        ({"response_format": {"type": "json_object"}}, "use_beam_search", "form"),
        ({"length_penalty": 11}, "length_penalty", "-10 to 10"),
        ({"use_beam_search": "yes"}, "use_beam_search", "true or false"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty", "use_beam_search"),
        ({"use_beam_search": False, "early_stopping": True}, "early_stopping", "use_beam_search"),
    ],
)
def test_what_has_no_part_in_a_search_is_refused_by_name(
    server: Server, fields: dict[str, Any], param: str, names: str
) -> None:
    answer = server.post(COMPLETIONS, {"prompt": "a", "n": 2, "use_beam_search": True, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert names in answer.json()["error"]["message"]


def test_its_time_is_that_of_the_whole_search(server: Server) -> None:
    body = {**asked(prompts(1, seed=5)[0], 1.0, []), "max_tokens": 400}
    answer = server.post(COMPLETIONS, body, headers={"x-request-timeout-ms": "20"})
    assert answer.status_code == 504, answer.text
