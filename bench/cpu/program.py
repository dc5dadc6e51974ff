"""What a decode step costs a CPU worker, run as a program and run eagerly, and how long it idles between steps.

    python bench/cpu/program.py [--tiny] [--threads 2] [--shapes demo tiny qwen06b] [--rows 1 8 32] [--repeat 5] [--json FILE]

Both serve the same frames, in turn, in one process: a step that prefills, then as many decode steps as a memory has frames,
all submitted beforehand, so that nothing but the worker is measured. `step` is the worker's own figure (the median of
`duration_us`); `idle` is the share of the decode steps' time that lies between steps. Weights are random.
On a machine that others use, ratios count: the two take turns, and medians are shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pelton import demo_dir
from pelton.kv import KvArena
from pelton.kv_shape import KvShape
from pelton.loading import weights
from pelton.loading.budget import Budget
from pelton.loading.load import Loaded, load_whole
from pelton.loading.wish import Wish
from pelton.models import resolve
from pelton.models.decoder import Decoder
from pelton.program import record_model
from pelton.quantization import quantization_of
from pelton.worker.eager import EagerSteps
from pelton.worker.steps import Steps, steps_for
from pelton_kernels import ops
from pelton_kernels._native import WorkerEnd

sys.path.insert(0, str(Path(__file__).parents[2] / "pyworker" / "tests"))
from plans import Admit, Plan, Row

FRAMES = 64
CONTEXT = 64  # tokens of each request's prompt
BLOCK = 32
POSITIONS = 512

# As in a config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 8192, "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 688,
        "max_position_embeddings": POSITIONS,
    },
    "qwen06b": {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 32768, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "max_position_embeddings": POSITIONS, "tie_word_embeddings": True, "rope_theta": 1e6,
    },
}  # fmt: skip


@dataclass
class Line:
    """One shape at one number of rows: medians over all repetitions."""

    shape: str
    rows: int
    program_us: float
    eager_us: float
    faster: float
    program_idle: float
    eager_idle: float


@torch.inference_mode()
def random_model(shape: str, slots: int) -> Loaded:
    """A model of this shape in bfloat16, without a checkpoint."""
    family, config = resolve(SHAPES[shape])
    kv = KvShape(config.layers, config.kv_heads, config.head_dim, BLOCK, "bfloat16")
    model = Decoder(config, POSITIONS, config.is_tied)
    cpu = torch.device("cpu")
    names = family.names | ({"head": family.names["embedding"]} if config.is_tied else {})
    for holding in weights.holdings(model, names, quantization_of({}, "auto", "")):
        tensors = [torch.randn(want.shape) * 0.02 for _, want in holding.wanted]
        holding.leaf.take(tensors, torch.bfloat16, cpu)
    arena = KvArena(kv, slots * -(-(CONTEXT + FRAMES) // BLOCK), cpu)
    budget = Budget(0, 0, 0, kv.block_bytes, arena.blocks, BLOCK, POSITIONS, 0, POSITIONS // BLOCK)
    numerics = ops.numerics_id(cpu, torch.bfloat16)
    return Loaded(
        family.name,
        model,
        arena,
        budget,
        cpu,
        "bfloat16",
        numerics,
        slots,
        slots * CONTEXT,
        record_model(model, arena, POSITIONS),
    )


def demo_model(threads: int) -> Loaded:
    """The model that comes with Pelton."""
    return load_whole(Wish(demo_dir(), kv_bytes=64 << 20, block_size=BLOCK, threads=threads, device="cpu"))


def plans(rows: int) -> Iterable[Plan]:
    """A prefill of `rows` requests, and decode steps one after the other, each token unknown to the router."""
    blocks = -(-(CONTEXT + FRAMES) // BLOCK)
    slots = range(rows)
    yield Plan(
        1,
        admits=[Admit(slot, CONTEXT) for slot in slots],
        appends=[(slot, 0, at, slot * blocks + at) for slot in slots for at in range(blocks)],
        rows=[Row(slot, 0, CONTEXT, [(slot * 31 + at * 7) % 4000 for at in range(CONTEXT)], True) for slot in slots],
    )
    for step in range(FRAMES - 1):
        yield Plan(step + 2, rows=[Row(slot, CONTEXT + step, 1, [], True) for slot in slots])


def serve(steps: Steps, rows: int) -> tuple[list[float], float, list[int]]:
    """Microseconds of each decode step, the share of time between them, and what the last step drew."""
    capacities = {
        "frames": FRAMES, "slots": rows, "tokens": rows * CONTEXT, "appends": rows * 8, "copies": 0, "biases": 0,
        "suppressed": 0, "history": 0, "top_logprobs": 0, "saves": 0, "loads": 0, "pooled_width": 0, "scores": 0,
        "embeds": 0, "embed_width": 0,
    }  # fmt: skip
    end = WorkerEnd.inline(capacities, 1)
    for plan in plans(rows):
        end.accept_plan(plan.to_bytes())
    steps.drain()
    began = time.perf_counter()
    steps.serve(end, None, failed)
    whole = (time.perf_counter() - began) * 1e6
    results = [struct.unpack_from(f"<16I{rows}I", end.result_bytes(frame)) for frame in range(FRAMES)]
    prefill, *took = (float(result[5]) for result in results)
    decoding = whole - prefill
    return took, max(0.0, 1 - sum(took) / decoding), list(results[-1][16:])


def failed(step: int, epoch: int, why: str) -> None:
    raise RuntimeError(f"step {step} of epoch {epoch}: {why}")


def measure(shape: str, loaded: Loaded, rows: int, repeat: int) -> Line:
    """Program and eager in turn."""
    times: dict[str, list[float]] = {"program": [], "eager": []}
    idle: dict[str, list[float]] = {"program": [], "eager": []}
    drawn = []
    for _ in range(repeat):
        for path, steps in (
            ("program", steps_for(loaded, rows, 0)),
            ("eager", EagerSteps(dataclasses.replace(loaded, built=None), rows, 0)),
        ):
            took, share, tokens = serve(steps, rows)
            times[path] += took
            idle[path].append(share)
            drawn.append(tokens)
    assert all(tokens == drawn[0] for tokens in drawn), "both draw the same tokens"
    program, eager = median(times["program"]), median(times["eager"])
    line = Line(shape, rows, program, eager, eager / program, median(idle["program"]), median(idle["eager"]))
    print(
        f"{shape:<10} {rows:>3} rows   program {line.program_us:>9.0f} us  eager {line.eager_us:>9.0f} us"
        f"   {line.faster:>5.2f}x   idle {line.program_idle:>7.2%} / {line.eager_idle:>7.2%}",
        flush=True,
    )
    return line


def main(arguments: list[str] | None = None) -> list[Line]:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one small shape, once: proves that the bench runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=["demo", *SHAPES], default=["demo", *SHAPES])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the lines to this file, too")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.shapes, options.rows, options.repeat = ["tiny"], [2], 1
    ops.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{ops.numerics_id('cpu', torch.bfloat16)}, {options.threads} threads")
    lines = []
    for shape in options.shapes:
        slots = max(options.rows)
        loaded = demo_model(options.threads) if shape == "demo" else random_model(shape, slots)
        lines += [measure(shape, loaded, rows, options.repeat) for rows in options.rows]
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return lines


if __name__ == "__main__":
    main()
