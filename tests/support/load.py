"""Many requests at once against a server, and their whole answers."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from support.checkpoints import SPECIALS, VOCAB
from support.server import Server, sse


@dataclass(frozen=True)
class Done:
    """One finished answer."""

    tokens: list[int]
    text: str
    finish_reason: str
    cached: int


def prompts(count: int, seed: int, shortest: int = 3, longest: int = 90) -> list[list[int]]:
    """Random prompts of mixed lengths; some share a prefix."""
    rng = random.Random(seed)
    shared = [rng.randrange(len(SPECIALS), VOCAB) for _ in range(longest // 2)]
    made = []
    for index in range(count):
        body = [rng.randrange(len(SPECIALS), VOCAB) for _ in range(rng.randint(shortest, longest))]
        made.append(shared[: rng.randint(1, len(shared))] + body if index % 3 == 0 else body)
    return made


def complete(server: Server, prompt: Sequence[int], **fields: Any) -> Done:
    """One streamed completion of a prompt given as token ids; stop tokens are ignored unless told otherwise."""
    body = {
        "model": server.model_name,
        "prompt": list(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }
    tokens: list[int] = []
    text, finish_reason, cached = "", "", -1
    with server.stream("/v1/completions", body) as response:
        if response.status_code != 200:
            raise AssertionError(f"{response.status_code}: {response.read().decode()}")
        for event in sse(response):
            assert "error" not in event, event
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                text += choice["text"]
                finish_reason = choice["finish_reason"] or finish_reason
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert event["usage"]["completion_tokens"] == len(tokens)
    return Done(tokens, text, finish_reason, cached)


def together(server: Server, jobs: Sequence[dict[str, Any]]) -> list[Done]:
    """All jobs (fields of `complete`, `prompt` among them) at once, answers in order."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result() for f in [pool.submit(complete, server, **job) for job in jobs]]


def disturbed(server: Server, jobs: Sequence[dict[str, Any]], kills: int) -> list[list[int]]:
    """As `together`, tokens alone; kills the worker each time that some tokens have come."""
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(together, server, jobs)
        for _ in range(kills):
            before = server.metric("pelton_generated_tokens_total")
            server.wait_until(
                "tokens flow", lambda seen=before: server.metric("pelton_generated_tokens_total") > seen + 200
            )
            victim = server.worker_pid()
            os.kill(victim, signal.SIGSTOP)  # what it has not told by now it never will
            assert not answers.done(), "the last token was faster"
            os.kill(victim, signal.SIGKILL)
            server.wait_until("the loss is seen", lambda dead=victim: dead not in workers(server))
        return [done.tokens for done in answers.result()]


def workers(server: Server) -> list[int]:
    """The worker's pid, if there is one now."""
    try:
        return [server.worker_pid()]
    except (AssertionError, OSError):
        return []
