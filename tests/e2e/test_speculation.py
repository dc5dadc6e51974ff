"""Drafts change how many steps an answer takes, and nothing else: the same requests to a server with them and to one without."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import SPECIALS, VOCAB
from support.load import Done, complete, prompts, together
from support.server import PELTON, Server, serving

TOKENS = 96
NGRAM = ("--speculate", "ngram", "--speculate-max", "6")
FLAGS = ("--max-model-len", "512", "--token-budget", "64")
WORDS = "start: WORD{200,}\nWORD: /[a-z]{1,6}[ ,.]/"


def repetitive(seed: int) -> list[int]:
    """A prompt that says the same again and again."""
    source = random.Random(seed)
    phrase = [source.randrange(len(SPECIALS), VOCAB) for _ in range(source.randint(4, 11))]
    return phrase * (60 // len(phrase))


def jobs() -> list[dict[str, Any]]:
    """Requests that repeat themselves and that do not, and such as have no drafts beside them."""
    greedy: list[dict[str, Any]] = [{"prompt": repetitive(seed)} for seed in range(6)]
    biased = {"logit_bias": {str(token): 8.0 for token in range(20, 24)}}  # four tokens: drafts come true now and then
    sampled = [{"prompt": repetitive(seed), "temperature": 1.0, "seed": seed, **biased} for seed in range(10, 18)]
    stops = [{**job, "stop_token_ids": [21, 22], "min_tokens": 17} for job in sampled[:3]]
    others: list[dict[str, Any]] = [
        {"prompt": repetitive(30), "presence_penalty": 0.7},
        {"prompt": repetitive(31), "structured_outputs": {"grammar": WORDS}},
        {"prompt": repetitive(32), "max_tokens": 1},
        {"prompt": repetitive(33), "max_tokens": 2},
        {"prompt": prompts(1, seed=9, shortest=300, longest=301)[0]},  # in chunks, beside all others
    ]
    return [{"max_tokens": TOKENS, **job} for job in greedy + sampled + stops + others]


@pytest.fixture(scope="module")
def folder(checkpoints: Path) -> Path:
    return checkpoints / "llama-gqa"


@pytest.fixture(scope="module")
def plainly(folder: Path) -> Iterator[tuple[list[Done], Any]]:
    """What a server says that drafts nothing."""
    with serving(folder, *FLAGS) as server:
        done = [complete(server, **job) for job in jobs()]
        assert server.metric("pelton_spec_draft_tokens_total") == 0
        yield done, with_logprobs(server)


def with_logprobs(server: Server) -> Any:
    """Two answers to a prompt, each with its log-probabilities."""
    body = {
        "model": server.model_name,
        "prompt": repetitive(50),
        "n": 2,
        "max_tokens": 40,
        "temperature": 1.0,
        "seed": 4,
        "logit_bias": {str(token): 8.0 for token in range(30, 33)},
        "logprobs": 3,
        "ignore_eos": True,
    }
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_tokens_are_those_without_drafts(folder: Path, plainly: tuple[list[Done], Any]) -> None:
    done, choices = plainly
    expected = [answer.tokens for answer in done]
    with serving(folder, *FLAGS, *NGRAM) as server:
        # How deep drafts go, measured times say: on a busy machine not deep at once.
        for _ in range(20):
            alone = [complete(server, **job) for job in jobs()]
            assert [answer.tokens for answer in alone] == expected
            assert [(answer.text, answer.finish_reason) for answer in alone] == [
                (a.text, a.finish_reason) for a in done
            ]
            accepted = server.metric("pelton_spec_accepted_tokens_total")
            if accepted > 100:
                break
        assert accepted > 100
        assert with_logprobs(server) == choices
        accepted = server.metric("pelton_spec_accepted_tokens_total")
        assert server.metric("pelton_spec_draft_tokens_total") > accepted, "some were wrong"
        assert [answer.tokens for answer in together(server, jobs())] == expected, "among others"
        assert server.metric("pelton_spec_accepted_tokens_total") > accepted


def test_an_answer_that_repeats_its_prompt_takes_fewer_steps(folder: Path) -> None:
    job = {"prompt": repetitive(0), "max_tokens": TOKENS, "logit_bias": {"33": 100.0}}  # the same token again and again
    steps = []
    for flags in ((), NGRAM):
        with serving(folder, *FLAGS, *flags) as server:
            before = server.metric("pelton_steps_total")
            complete(server, **job)
            steps.append(server.metric("pelton_steps_total") - before)
    # Under half, unless others keep the machine busy: drafts are as deep as steps' times say that they pay.
    assert steps[1] < 0.9 * steps[0], steps


def test_a_worker_that_dies_among_drafts_costs_no_token(folder: Path, plainly: tuple[list[Done], Any]) -> None:
    expected = [answer.tokens for answer in plainly[0]]
    with serving(folder, *FLAGS, *NGRAM) as server, ThreadPoolExecutor(1) as pool:
        answers = pool.submit(together, server, jobs())
        # The first ones: how many there will be depends on how long steps take.
        server.wait_until("drafts count", lambda: server.metric("pelton_spec_accepted_tokens_total") > 0)
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert [answer.tokens for answer in answers.result()] == expected
        assert server.metric("pelton_worker_restarts_total") == 1


def test_a_recording_plans_the_same_drafts_and_explains_them(folder: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with serving(folder, *FLAGS, *NGRAM, "--record", str(recording)) as server:
        together(server, jobs())
        # How many depends on how long steps take: on a busy machine few are worth it.
        accepted = server.metric("pelton_spec_accepted_tokens_total")
        assert accepted > 0
        assert server.stop() == 0
    ran = subprocess.run([PELTON, "replay", recording, "--json"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert report["is_exact"], report["notes"]
    drafts = [request["drafts"] for request in report["requests"]]
    assert sum(told["accepted"] for told in drafts) == accepted, drafts
    assert any(told["computed"] == 0 for told in drafts), "those with a grammar or penalties"
