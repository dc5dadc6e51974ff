"""`python -m pelton.inspect FOLDER`: a model's program, and what each of its calls takes of the machine. Called by `pelton inspect program`.

Calls that are alike but for their layer are one line, unless all are wanted. Bytes are what a call reads and writes, weights as they are packed, and
operations the least that it needs; its bound is the longer of moving the bytes at the rate at which all threads read memory, and of computing at the
rate of a large matrix product, both taken right before. Of products of codes (int8 and int4 without -a16) it is the rate at
which the processor multiplies codes in registers. What lies in a cache is read faster than its bound.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from pelton_kernels import _native
from pelton_kernels.recording import span

from pelton.command_line import Parser
from pelton.kv import DTYPES
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load_whole
from pelton.loading.wish import Wish
from pelton.models.decoder import Decoder
from pelton.models.pooled import PooledModel
from pelton.program import Rows, result_width, run_program
from pelton.step import Step

RUNS = 7
PROBE_BYTES = 256 << 20
PROBE_SIDE = 2048
PROBE_ROUNDS = 200_000


@dataclass
class Line:
    """One call, or several that are alike."""

    text: str
    reads: str
    writes: str
    calls: int
    nbytes: float
    flops: float
    us: float

    @property
    def is_of_codes(self) -> bool:
        """Whether it multiplies codes by codes."""
        return re.match(r"\w*linear int\d(?!\S*-a16)", self.text) is not None

    def key(self) -> str:
        """Equal for calls that differ in their layer alone. Weights of one shape may differ in bytes, by their exceptions."""
        return re.sub(r"layer \d+, ", "", self.text) + f"|{self.flops or self.nbytes}"


@dataclass(frozen=True)
class Machine:
    """Bytes and operations per second, and operations with codes."""

    read: float
    gemm: float
    codes: float

    def bound_us(self, line: Line) -> float:
        """What it takes at the least."""
        return max(line.nbytes / self.read, line.flops / (self.codes if line.is_of_codes else self.gemm)) * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Prints; 1 if the model is no program."""
    parser = Parser("pelton inspect program", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1, help="requests in the step")
    parser.add_argument("--tokens", type=int, default=1, help="new tokens of each")
    parser.add_argument("--context", type=int, default=64, help="tokens of each that are computed already")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--quantize-skip", default="head")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--task", default="auto")
    parser.add_argument("--pooling", default="")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--all", action="store_true", help="every call, in order")
    options = parser.read(arguments)
    try:
        loaded = _load(options)
    except LoadError as error:
        print(f"pelton inspect: {error}")
        return 1
    if loaded.program is None:
        print("the model is run eagerly; the lines above say why")
        return 1
    if loaded.pooling is not None and loaded.pooling.is_bidirectional:
        options.context = 0  # a row is a whole text
    if options.context + options.tokens > loaded.budget.max_model_len:
        most, got = loaded.budget.max_model_len, f"`context` and `tokens` are {options.context} and {options.tokens}"
        print(f"pelton inspect: {got}; allowed: {most} together, the longest text of this model here")
        return 1
    rows = decode_rows(loaded, options.rows, options.tokens, options.context)
    _running = loaded.kv.step(())  # as in a server: the arena takes no more memory from the machine meanwhile
    machine = _probe(loaded)
    for line in report(loaded, rows, machine, is_folded=not options.all):
        print(line)
    return 0


def report(loaded: Loaded, rows: Rows, machine: Machine, is_folded: bool) -> Iterable[str]:
    """The table, line by line."""
    program = loaded.program
    assert program is not None
    counts, buffers = rows.counts, program.buffers
    lines, whole = _measure(loaded, rows)
    used = [place for _, _, place in buffers if place is not None]
    yield f"{loaded.family}, {loaded.dtype}, {loaded.numerics_id}; call-backs: {program.call_backs}"
    yield f"{len(lines)} calls; {len(used)} buffers in {len(set(used))} places, {_size(program.arena_bytes(counts.tokens, counts.draws))}"
    yield (
        f"a step of {counts.tokens} tokens and {counts.draws} draws: {whole:.0f} us; "
        f"limits: {machine.read / 1e9:.1f} GB/s, {machine.gemm / 1e9:.0f} GFLOP/s, {machine.codes / 1e9:.0f} GOP/s with codes"
    )
    yield ""
    shown = _folded(lines) if is_folded else lines
    wide = max(len(line.text) for line in shown)
    yield f"{'calls':>5}  {'':<{wide}} {'read -> written':<34} {'bytes':>9} {'FLOP':>8} {'us':>9} {'share':>6} {'bound':>9} {'of it':>6}"
    for line in shown:
        bound = machine.bound_us(line)
        yield (
            f"{line.calls:>5}  {line.text:<{wide}} {line.reads + ' -> ' + line.writes:<34}"
            f" {_size(line.nbytes):>9} {_count(line.flops):>8} {line.us:>9.1f} {line.us / whole:>6.1%}"
            f" {bound:>9.1f} {bound / line.us if line.us else 0:>6.2f}"
        )


def decode_rows(loaded: Loaded, rows: int, tokens: int, context: int) -> Rows:
    """Each of `rows` requests computes `tokens` after `context`, and draws. Blocks are shared if there are too few."""
    size, kinds = loaded.kv.shape.block_size, len(loaded.kv.shape.kinds)
    width = -(-(context + tokens) // size)
    blocks = torch.arange(rows * width).view(rows, width) % loaded.kv.blocks
    row = torch.arange(rows).repeat_interleave(tokens)
    positions = context + torch.arange(tokens).repeat(rows)
    step = Step(
        ids=(torch.arange(rows * tokens, dtype=torch.int32) * 7) % loaded.model.config.vocab,
        positions=positions.int(),
        kv_slots=(blocks[row, positions // size] * size + positions % size).repeat(kinds, 1),
        block_table=blocks.int().repeat(kinds, 1, 1),
        row_offsets=torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32),
        row_starts=torch.full((rows,), context, dtype=torch.int32),
        kv=loaded.kv,
    )
    return Rows(step, torch.arange(tokens - 1, rows * tokens, tokens, dtype=torch.int32))


def _load(options: argparse.Namespace) -> Loaded:
    needed = options.rows * options.tokens
    wish = Wish(
        options.folder,
        dtype=options.dtype,
        threads=options.threads,
        slots=options.rows,
        token_budget=needed,
        device="cpu",
        quantize=options.quantize,
        quantize_skip=options.quantize_skip,
        kv_dtype=options.kv_dtype,
        task=options.task,
        pooling=options.pooling,
        trust_remote_code=options.trust_remote_code,
    )
    return load_whole(wish)


@torch.inference_mode()
def _measure(loaded: Loaded, rows: Rows) -> tuple[list[Line], float]:
    """Medians over runs: each call, and the whole step, taken without a look at the clock between calls."""
    program, model = loaded.program, loaded.model
    assert program is not None
    assert isinstance(model, Decoder | PooledModel), "what has a program is native"
    width = result_width(model)
    for cache in (cache for pair in loaded.kv.layers for cache in pair):
        cache[: int(rows.step.block_table.max()) + 1] = 0  # what was never written may be NaN, which computes slowly
    wholes = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run_program(program, rows, width)
        wholes.append((time.perf_counter() - began) * 1e6)
    program.note_times()
    step = rows.step
    given = span(step.ids), span(step.row_offsets), span(step.row_starts), span(rows.drawn_at)
    runs = []
    for _ in range(RUNS):
        run_program(program, rows, width)
        runs.append(program.lines(*given))
    buffers = program.buffers

    def named(numbers: list[int]) -> str:
        return " ".join(f"b{number}@{buffers[number][2]}" for number in numbers) or "-"

    lines = [
        Line(text, named(reads), named(writes), 1, nbytes, flops, median(run[at][5] for run in runs))
        for at, (text, reads, writes, nbytes, flops, _) in enumerate(runs[0])
    ]
    return lines, median(wholes)


def _folded(lines: list[Line]) -> list[Line]:
    folded: dict[str, Line] = {}
    for line in lines:
        seen = folded.get(line.key())
        if seen is None:
            text = re.sub(r"layer \d+, ", "", line.text)
            folded[line.key()] = Line(text, line.reads, line.writes, 1, line.nbytes, line.flops, line.us)
        else:
            seen.calls += 1
            seen.nbytes += line.nbytes
            seen.flops += line.flops
            seen.us += line.us
    return list(folded.values())


def _probe(loaded: Loaded) -> Machine:
    """What all threads reach now."""
    probe = _native.ReadProbe(PROBE_BYTES)
    # First: torch's threads look for more work for a while, and would take processors from those that read.
    read_s = _least_s(probe.read)
    multiply = (
        _native.multiply_codes if _native.multiply_tiles(True, 1) is None else partial(_native.multiply_tiles, True)
    )
    codes = multiply(PROBE_ROUNDS)
    assert codes is not None, "tiles are there or not"
    codes_s = _least_s(partial(multiply, PROBE_ROUNDS))
    square = torch.randn(PROBE_SIDE, PROBE_SIDE)
    # Some processors multiply floats faster than bfloat16, and whose products are of bfloat16 may multiply them as floats.
    squares = [square, square.to(DTYPES[loaded.kv.shape.dtype])]
    product_s = min(_least_s(partial(torch.mm, square, square)) for square in squares)
    return Machine(probe.nbytes / read_s, 2 * PROBE_SIDE**3 / product_s, codes / codes_s)


def _least_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _count(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f}"


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except BrokenPipeError:  # whoever reads has seen enough
        os._exit(0)
