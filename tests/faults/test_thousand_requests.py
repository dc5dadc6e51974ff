"""A thousand requests of all kinds while the worker is killed again and again, each time two seconds after it became ready."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.load import complete, prompts
from support.server import Server, is_alive, serving

pytestmark = pytest.mark.long

REQUESTS = 1_000
CLIENTS = 48
TOKENS = 24
KILL_AFTER_S = 2.0
KILLS_MIN = 3
# What a new worker has to be told of a request besides its tokens: each in turn.
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.9},
    {"structured_outputs": {"regex": "([a-z]{2,5}-)*"}, "temperature": 1},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"logit_bias": {"7": 3.0}, "min_tokens": 4, "logprobs": 2},
]


def test_a_thousand_requests_get_the_same_tokens_while_workers_die(checkpoints: Path) -> None:
    asked = prompts(REQUESTS, seed=17, longest=40)
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512") as server:
        undisturbed = everybody(server, asked)
        stop = threading.Event()
        killer = threading.Thread(target=keep_killing, args=(server, stop))
        killer.start()
        rounds = 0
        try:
            while server.metric("pelton_worker_restarts_total") < KILLS_MIN or rounds == 0:
                rounds += 1
                assert everybody(server, asked) == undisturbed, f"round {rounds}"
        finally:
            stop.set()
            killer.join()
        server.wait_until("it is ready again", lambda: server.get("/readyz").status_code == 200)
        server.wait_until("all blocks came home", lambda: server.metric("pelton_blocks_held") == 0)


def everybody(server: Server, asked: list[list[int]]) -> list[list[int]]:
    """The tokens of all answers; an error of any request fails."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = pool.map(
            lambda number, prompt: complete(
                server, prompt, max_tokens=TOKENS, seed=number, **KINDS[number % len(KINDS)]
            ),
            range(len(asked)),
            asked,
        )
        return [done.tokens for done in answers]


def keep_killing(server: Server, stop: threading.Event) -> None:
    """The kills are a matter of time on purpose: they hit whatever the worker is doing then."""
    seen = server.metric("pelton_generated_tokens_total")
    while not stop.wait(0.05):
        drawn = server.metric("pelton_generated_tokens_total")
        if drawn <= seen:
            continue  # the new worker loads still: to kill it now would be another test
        if stop.wait(KILL_AFTER_S):
            return
        victim = server.worker_pid()
        os.kill(victim, signal.SIGKILL)
        server.wait_until("it is dead", lambda dead=victim: not is_alive(dead))
        seen = server.metric("pelton_generated_tokens_total")
