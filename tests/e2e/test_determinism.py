"""The same seed gives the same tokens alone, in a crowd, chunked, from the cache and after a replay: bit for bit, in bfloat16, and
with KV of 8 bits."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.load import complete, prompts, together
from support.server import Server, serving

TOKENS = 48


def jobs() -> list[dict[str, Any]]:
    """32 requests that sample in different ways."""
    made: list[dict[str, Any]] = []
    for index, prompt in enumerate(prompts(32, seed=7)):
        job: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0.9, "seed": index}
        extras: list[dict[str, Any]] = [
            {},
            {"top_k": 20, "top_p": 0.9},
            {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
            {"min_p": 0.05, "logit_bias": {"77": 4.0, "78": -100}},
        ]
        made.append({**job, **extras[index % len(extras)]})
    return made


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_tokens_do_not_depend_on_company_chunks_cache_or_replay(bf16_checkpoint: Path, kv_dtype: str) -> None:
    kept_as = ("--kv-dtype", kv_dtype)
    with serving(bf16_checkpoint, "--prefix-caching", "false", *kept_as) as server:
        alone = [complete(server, **job).tokens for job in jobs()]
        assert [done.tokens for done in together(server, jobs())] == alone, "among 32 others"
        assert len({tuple(tokens) for tokens in alone}) == len(alone), "the requests differ"
    with serving(bf16_checkpoint, "--token-budget", "33", "--max-running", "32", "--threads", "1", *kept_as) as server:
        assert [done.tokens for done in together(server, jobs())] == alone, "chunked, on one thread"
        cached = [complete(server, **job) for job in jobs()]
        assert [done.tokens for done in cached] == alone, "with the prefix cached"
        assert sum(done.cached for done in cached) > 0
        assert replayed(server) == alone, "after a replay"


def replayed(server: Server) -> list[list[int]]:
    """All jobs at once, with the worker killed while they run."""
    before = server.metric("pelton_generated_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(together, server, jobs())
        server.wait_until("tokens flow", lambda: server.metric("pelton_generated_tokens_total") > before + 200)
        os.kill(server.worker_pid(), signal.SIGKILL)
        return [done.tokens for done in answers.result()]
