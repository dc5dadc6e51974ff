"""Several workers behind one server: the same tokens, each prefix where its cache is, one death that nobody sees."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.load import Done, complete, prompts, together
from support.server import Server, serving

JOBS = [{"prompt": p, "max_tokens": 64, "temperature": 0.7, "seed": i} for i, p in enumerate(prompts(32, seed=41))]
PREFIX = 200
WHOLE_BLOCKS = 192


@pytest.fixture(scope="module")
def expected(checkpoints: Path) -> list[list[int]]:
    """What one worker says."""
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512") as server:
        return [done.tokens for done in together(server, JOBS)]


@pytest.fixture(scope="module")
def two(checkpoints: Path) -> Iterator[Server]:
    """A server with two workers, both ready."""
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--workers", "2", "--device", "cpu") as server:
        wait_for_both(server)
        yield server


def wait_for_both(server: Server) -> None:
    server.wait_until("both workers are ready", lambda: server.metric("pelton_workers_ready") == 2, 120)


def test_32_streams_over_two_workers_are_those_over_one(two: Server, expected: list[list[int]]) -> None:
    assert len(two.worker_pids()) == 2
    assert [done.tokens for done in together(two, JOBS)] == expected


def test_a_death_of_one_leaves_the_other_serving(two: Server, expected: list[list[int]]) -> None:
    first, second = two.worker_pids()
    restarts = two.metric("pelton_worker_restarts_total")
    with ThreadPoolExecutor(1) as pool:
        before = two.metric("pelton_generated_tokens_total")
        answers = pool.submit(together, two, JOBS)
        two.wait_until("tokens flow", lambda: two.metric("pelton_generated_tokens_total") > before + 200)
        os.kill(first, signal.SIGKILL)
        assert [done.tokens for done in answers.result()] == expected
    assert second in two.worker_pids()
    assert [done.tokens for done in together(two, JOBS)] == expected
    wait_for_both(two)
    assert two.metric("pelton_worker_restarts_total") == restarts + 1


def test_a_shared_prefix_goes_to_the_worker_that_has_it(two: Server) -> None:
    prefixes = [p[:PREFIX] for p in prompts(6, seed=42, shortest=PREFIX + 9, longest=PREFIX + 40)]

    def ask(index: int, tail: int) -> Done:
        return complete(two, [*prefixes[index], 50 + tail, 60 + index], max_tokens=2)

    with ThreadPoolExecutor(len(prefixes)) as pool:
        # While nothing is computed the load of each worker stays, so that both get some of the prefixes.
        with two.stopped_workers():
            first = [pool.submit(ask, index, 0) for index in range(len(prefixes))]
            two.wait_until("all are there", lambda: in_engine(two) == len(prefixes))
        for done in first:
            done.result()
    for tail in (1, 2):
        for index in range(len(prefixes)):
            assert ask(index, tail).cached >= WHOLE_BLOCKS, f"prefix {index}, time {tail}"

    os.kill(two.worker_pids()[0], signal.SIGKILL)
    two.wait_until("the loss is seen", lambda: two.metric("pelton_workers_ready") < 2)
    still_cached = [ask(index, 3).cached >= WHOLE_BLOCKS for index in range(len(prefixes))]
    assert 0 < sum(still_cached) < len(prefixes), still_cached
    wait_for_both(two)


def in_engine(server: Server) -> float:
    return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")
