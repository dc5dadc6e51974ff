"""Decode attention of rows that begin alike: on the same blocks, and on copies of them, in turns.

    .venv/bin/python bench/cpu/shared.py [--tiny] [--threads 1] [--cpu-time] [--repeat 7] [--dtype bfloat16] [--json FILE]

Each row has one query, behind the shared tokens and 32 of its own. A cell's times are medians of rounds; a round reads memory once (`read`), then
attends on shared blocks, then on copies. The outputs of both must be equal, bit for bit. `gain` is copies / shared. `GB/s` counts
the bytes of all copies, so of shared blocks it says how fast memory would have to be to do the same without sharing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import torch
from pelton import machine
from pelton_kernels import _native, ops
from torch import Tensor

BLOCK: Final = 32
HEADS: Final = 8
OWN: Final = 32  # tokens of a row's own, the one of this step among them


@dataclass
class Cell:
    rows: int
    shared: int
    dim: int
    group: int  # query heads of a KV head
    shared_us: float
    copies_us: float
    gain: float
    copies_gbps: float
    read_gbps: float


def blocks_of(count: int, kv_heads: int, dim: int, dtype: torch.dtype) -> Tensor:
    """So many different blocks, soon made."""
    some = torch.randn(min(count, 61), kv_heads, BLOCK, dim).to(dtype)  # 61: a prime, so that no row looks like another
    return some[torch.arange(count) % len(some)]


def measure(
    rows: int,
    shared: int,
    dim: int,
    group: int,
    dtype: torch.dtype,
    repeat: int,
    clock: Callable[[], float],
    probe: _native.ReadProbe,
) -> Cell:
    kv_heads, used, alike = HEADS // group, (shared + OWN) // BLOCK, shared // BLOCK
    place = torch.randperm(rows * used).view(rows, used)  # blocks lie anywhere
    caches = []
    for _ in range(2):
        blocks = blocks_of(rows * used, kv_heads, dim, dtype)
        blocks[place[1:, :alike]] = blocks[place[0, :alike]]
        caches.append(blocks)
    copies = place.int()
    same = copies.clone()
    same[:, :alike] = copies[0, :alike]
    offsets = torch.arange(rows + 1, dtype=torch.int32)
    starts = torch.full((rows,), shared + OWN - 1, dtype=torch.int32)
    q = torch.randn(rows, HEADS, dim).to(dtype)
    outs = {"shared": torch.empty_like(q), "copies": torch.empty_like(q)}
    times: dict[str, list[float]] = {"read": [], "shared": [], "copies": []}
    for _ in range(repeat + 1):
        for name, table in (("read", None), ("shared", same), ("copies", copies)):
            begin = clock()
            if table is None:
                probe.read()
            else:
                ops.paged_attention(outs[name], q, *caches, table, offsets, starts, dim**-0.5)
            times[name].append(clock() - begin)
    assert torch.equal(outs["shared"], outs["copies"]), "rows differ with whom they share blocks with"
    read, together, apart = (median(took[1:]) for took in times.values())  # the first round warms up
    nbytes = 2 * rows * (shared + OWN) * kv_heads * dim * dtype.itemsize
    rates = nbytes / apart / 1e9, probe.nbytes / read / 1e9
    return Cell(rows, shared, dim, group, together * 1e6, apart * 1e6, apart / together, *rates)


def main(arguments: list[str] | None = None) -> list[Cell]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small shapes, once each: proves that the bench runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the time on a core, not the wait for one: for a machine that others use",
    )
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.cpu_time and options.threads > 1:
        parser.error("--cpu-time is of all threads together: it needs --threads 1")
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    ops.set_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    clock = time.process_time if options.cpu_time else time.perf_counter
    probe = _native.ReadProbe((1 << 16) if options.tiny else (256 << 20))
    sizes = ([3], [64], [16], [1, 4]) if options.tiny else ([8, 32, 64], [256, 1024, 4096], [32, 64, 128], [1, 4, 8])
    print(f"{ops.numerics_id('cpu', dtype)}, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    cells = []
    for rows, shared, dim, group in itertools.product(*sizes):
        cell = measure(rows, shared, dim, group, dtype, 1 if options.tiny else options.repeat, clock, probe)
        cells.append(cell)
        print(
            f"{rows:>3} rows, {shared:>5} shared, {HEADS}/{HEADS // group} x {dim:<4} shared {cell.shared_us:>9.1f} us"
            f"  copies {cell.copies_us:>9.1f} us  gain {cell.gain:>5.2f}"
            f"  copies at {cell.copies_gbps:>5.1f} GB/s of read {cell.read_gbps:>5.1f}",
            flush=True,
        )
    if options.json:
        facts = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{machine.description()}, {ops.numerics_id('cpu', dtype)}",
            "load": os.getloadavg(),
            "threads": options.threads,
            "clock": "cpu time" if options.cpu_time else "wall",
            "repeat": options.repeat,
        }
        options.json.write_text(json.dumps({**facts, "cells": [asdict(cell) for cell in cells]}, indent=1) + "\n")
    return cells


if __name__ == "__main__":
    main()
