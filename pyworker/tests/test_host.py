"""Blocks that went to host memory and came back read as if they had been computed there."""

from __future__ import annotations

import fcntl
import os
import random
import struct
from pathlib import Path

import pytest
from pelton.frames import Counts, FrameViews
from pelton.host import HostBlocks
from pelton.loading.load import Loaded
from pelton.runner import Runner
from pelton_kernels._native import HostMemory, WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row
from random_checkpoints import VOCAB, greedy
from tiny_router import load_whole

HOST_BLOCKS = 4


def host_memory(block_bytes: int) -> HostMemory:
    """As the router makes it."""
    stride = -(-block_bytes // 64) * 64
    fd = os.memfd_create("host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, struct.pack("<4sIIIQ", b"PLTH", 1, HOST_BLOCKS, 0, block_bytes))
    os.truncate(fd, 4096 + HOST_BLOCKS * stride)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    memory = HostMemory.from_fd(fd)
    os.close(fd)
    return memory


class Worker:
    """A runner with an inline frame memory; steps count themselves."""

    def __init__(self, loaded: Loaded, host: HostMemory | None) -> None:
        self._end = WorkerEnd.inline(CAPACITIES, 1)
        self._end.set_bounds(
            blocks=loaded.kv.blocks,
            host_blocks=0 if host is None else host.blocks,
            block_size=loaded.kv.shape.block_size,
            vocab=VOCAB,
            positions=loaded.budget.max_model_len,
        )
        blocks = None if host is None else HostBlocks(host, loaded.device)
        self._views = FrameViews(self._end)
        self._runner = Runner(loaded, CAPACITIES["slots"], CAPACITIES["top_logprobs"], blocks)
        self._step = 0

    def run(self, plan: Plan) -> list[int]:
        self._step += 1
        plan.step = self._step
        self._end.accept_plan(plan.to_bytes())
        frame = self._end.wait(0.0)
        assert frame is not None
        cut = self._views.cut(frame, Counts(*self._end.header(frame)))
        self._runner.run(cut)
        sampled: list[int] = cut.results.sampled.tolist()
        self._end.publish(frame, 0, 0)
        return sampled


def test_a_prefix_that_went_to_host_memory_serves_the_next_worker(checkpoints: Path) -> None:
    loaded = load_whole(checkpoints / "qwen3")
    assert loaded.kv.shape.block_size == 8
    host = host_memory(loaded.kv.shape.block_bytes)
    prompt = [random.Random(3).randrange(VOCAB) for _ in range(19)]
    expected = greedy(checkpoints / "qwen3", prompt, 1)

    first = Worker(loaded, host)
    row = Row(0, 0, 19, prompt, True)
    assert first.run(Plan(0, admits=[Admit(0)], appends=[(0, 40), (0, 41), (0, 42)], rows=[row])) == expected
    # A step may only move blocks. The second save takes what the load of the same step overwrites.
    assert first.run(Plan(0, saves=[(40, 3)])) == []
    assert first.run(Plan(0, saves=[(41, 1)], loads=[(3, 41)])) == []
    for keys, values in loaded.kv.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))

    second = Worker(loaded, host)  # after a loss: fresh state, the same host memory
    row = Row(2, 16, 3, prompt[16:], True)
    plan = Plan(0, admits=[Admit(2)], appends=[(2, 7), (2, 9), (2, 8)], loads=[(1, 9), (3, 7)], rows=[row])
    assert second.run(plan) == expected
    # Brought back and copied in one step: the copy finds what the load has brought.
    plan = Plan(
        0,
        admits=[Admit(1)],
        appends=[(1, 20), (1, 21), (1, 22)],
        loads=[(3, 20), (1, 30)],
        copies=[(30, 21, 8)],
        rows=[Row(1, 16, 3, prompt[16:], True)],
    )
    assert second.run(plan) == expected


def test_a_worker_without_host_memory_takes_no_plan_that_names_it(checkpoints: Path) -> None:
    worker = Worker(load_whole(checkpoints / "qwen3"), None)
    with pytest.raises(RuntimeError, match="host_block is 0; allowed: none"):
        worker.run(Plan(0, saves=[(0, 0)]))
