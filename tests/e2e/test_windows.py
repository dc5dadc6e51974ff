"""A model whose layers see a window, or all: blocks come home as the window passes, and nothing else is seen of it."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.checkpoints import SPECIALS, VOCAB, WINDOWED, greedy, make_checkpoint
from support.load import complete
from support.server import Server, serving

BLOCK = 8
WINDOW = 48
CONTEXT = 512
ANSWER = 420
# 7 kinds of one layer each: keys and values, 2 heads of 16 float32 are 2 KiB a block. The longest request holds 64 blocks of
# the full layer and 7 for each of 6 windows; without a word of windows it would be 448.
BLOCKS = 64 + 6 * 7 + 4
FLAGS = (
    "--max-model-len",
    str(CONTEXT),
    "--block-size",
    str(BLOCK),
    "--kv-memory",
    str(BLOCKS * 2048),
    "--device",
    "cpu",
)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(SPECIALS), VOCAB) for _ in range(length)]


def test_windows_pass_prefixes_are_found_behind_them_and_a_death_goes_unnoticed(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "gemma3", WINDOWED)
    short, long = prompt(1, 30), prompt(2, 200)
    expected, expected_long = greedy(folder, short, ANSWER), greedy(folder, long, 8)
    with serving(folder, *FLAGS, "--kv-host-memory", "4MiB", "--token-budget", "64") as server:
        assert server.metric("pelton_blocks") == BLOCKS
        assert complete(server, short, max_tokens=ANSWER).tokens == expected, "much longer than the window"
        assert server.metric("pelton_preempted_tokens_total") == 0
        assert server.metric("pelton_blocks_held") == 0

        first, again = (complete(server, long, max_tokens=8) for _ in range(2))
        assert (first.tokens, first.cached) == (expected_long, 0)
        assert again.tokens == expected_long
        assert len(long) > again.cached >= len(long) - 2 * BLOCK > WINDOW, "a prefix longer than the window"

        for seed in range(3, 7):
            complete(server, prompt(seed, 200), max_tokens=1)
        back = complete(server, long, max_tokens=8)
        assert back.tokens == expected_long, "from host memory, block by block of each kind"
        assert server.metric("pelton_kv_loads_total") > 0

        assert disturbed(server, short) == expected, "replayed from the tokens that were known"
        assert server.metric("pelton_worker_restarts_total") == 1


def disturbed(server: Server, asked: list[int]) -> list[int]:
    """Kills the worker in the midst of an answer, behind several windows of it."""
    before = server.metric("pelton_generated_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, server, asked, max_tokens=ANSWER)
        server.wait_until("tokens flow", lambda: server.metric("pelton_generated_tokens_total") > before + 3 * WINDOW)
        os.kill(server.worker_pid(), signal.SIGKILL)
        return answer.result().tokens
