"""Blocks that went to host memory and came back read as if they had been computed there."""

from __future__ import annotations

import fcntl
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from pelton_kernels._native import HostMemory
from plans import Admit, Plan, Row, table
from random_checkpoints import VOCAB, greedy
from tiny_router import OneByOne, eagerly, load_whole

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


class Worker(OneByOne):
    """Steps count themselves."""

    _step = 0

    def run(self, plan: Plan) -> list[int]:
        self._step += 1
        plan.step = self._step
        self.end.accept_plan(plan.to_bytes())
        sampled: list[int] = self.compute().sampled.tolist()
        return sampled


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("is_eager", [False, True], ids=["program", "eager"])
def test_a_prefix_that_went_to_host_memory_serves_the_next_worker(
    checkpoints: Path, is_eager: bool, kv_dtype: str
) -> None:
    loaded = load_whole(checkpoints / "qwen3", kv_dtype=kv_dtype)
    loaded = eagerly(loaded) if is_eager else loaded
    assert loaded.kv.shape.block_size == 8
    host = host_memory(loaded.kv.shape.block_bytes)
    prompt = [random.Random(3).randrange(VOCAB) for _ in range(19)]

    first = Worker(loaded, host)
    row = Row(0, 0, 19, prompt, True)
    expected = first.run(Plan(0, admits=[Admit(0)], appends=table(0, [40, 41, 42]), rows=[row]))
    assert kv_dtype == "int8" or expected == greedy(checkpoints / "qwen3", prompt, 1)
    # A step may only move blocks. The second save takes what the load of the same step overwrites.
    assert first.run(Plan(0, saves=[(40, 3)])) == []
    assert first.run(Plan(0, saves=[(41, 1)], loads=[(3, 41)])) == []
    with torch.inference_mode():
        for cache in (cache for pair in loaded.kv.layers for cache in pair):
            cache.fill_(torch.nan if cache.dtype.is_floating_point else -1)  # as a scale -1 is NaN, too

    second = Worker(loaded, host)  # after a loss: fresh state, the same host memory
    row = Row(2, 16, 3, prompt[16:], True)
    plan = Plan(0, admits=[Admit(2)], appends=table(2, [7, 9, 8]), loads=[(1, 9), (3, 7)], rows=[row])
    assert second.run(plan) == expected
    # Brought back and copied in one step: the copy finds what the load has brought.
    plan = Plan(
        0,
        admits=[Admit(1)],
        appends=table(1, [20, 21, 22]),
        loads=[(3, 20), (1, 30)],
        copies=[(30, 21, 8)],
        rows=[Row(1, 16, 3, prompt[16:], True)],
    )
    assert second.run(plan) == expected


def test_a_worker_without_host_memory_takes_no_plan_that_names_it(checkpoints: Path) -> None:
    worker = Worker(load_whole(checkpoints / "qwen3"), None)
    with pytest.raises(RuntimeError, match="host_block is 0; allowed: none"):
        worker.run(Plan(0, saves=[(0, 0)]))
