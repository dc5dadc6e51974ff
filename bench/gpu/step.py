"""A decoding step of a whole model against what the card could do: bytes of weights and KV over its copy bandwidth, FLOPs over its matmul.

Random weights, made on the card, in the shapes of Llama 3.1 8B and Qwen3 0.6B. A step is what the worker computes between two draws: all
layers and the head, as a replayed graph and as Python launches it, in turn; medians count. `--profile` names the kernels of one shape's step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pelton.kv import KvArena
from pelton.kv_shape import KvShape
from pelton.layers.leaf import Leaf
from pelton.models import resolve
from pelton.models.decoder import Decoder
from pelton.replay import Replay
from pelton.step import Step
from pelton_kernels import cuda
from pelton_kernels.ops import dispatch

from kernels import copy_and_matmul, micros

ROUNDS, BLOCK = 5, 16
SHAPES: dict[str, dict[str, Any]] = {
    "8B": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128_256, "tie_word_embeddings": False,
    },
    "0.6B": {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936, "tie_word_embeddings": True,
    },
    "tiny": {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 96, "vocab_size": 199, "tie_word_embeddings": True,
    },
}  # fmt: skip
COMMON = {"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 1e6}
CELLS = [
    ("0.6B", 1, 1024),
    ("0.6B", 32, 1024),
    ("0.6B", 256, 1024),
    ("8B", 1, 1024),
    ("8B", 32, 1024),
    ("8B", 256, 1024),
]


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    model: str
    rows: int
    context: int
    micros: float
    share: float
    launched_micros: float
    """The same without a graph."""


class Bench:
    """A model of random weights, and KV for so many rows of such a context."""

    def __init__(self, name: str, rows: int, context: int, device: torch.device) -> None:
        _, config = resolve(COMMON | SHAPES[name])
        # PyTorch multiplies bfloat16 into float32 on cards alone.
        dtype, dtype_name = (torch.float32, "float32") if device.type == "cpu" else (torch.bfloat16, "bfloat16")
        self.model = Decoder(config, context, config.is_tied).to(device)
        for leaf in self.model.modules():
            if isinstance(leaf, Leaf):
                tensors = [torch.randn(w.shape, dtype=dtype, device=device) * 0.02 for w in leaf.wants()]
                leaf.take(tensors, dtype, device)
        each = -(-context // BLOCK)
        division = config.division
        shape = KvShape(division.per_kind, config.kv_heads, config.head_dim, BLOCK, dtype_name, division.kinds)
        kv = KvArena(shape, rows * each, device)
        for keys, values in kv.layers:
            keys.normal_()
            values.normal_()
        table = torch.randperm(rows * each).view(1, rows, each).int()
        last = context - 1
        self.step = Step(
            ids=torch.randint(config.vocab, (rows,), device=device).int(),
            positions=torch.full((rows,), last, dtype=torch.int32, device=device),
            kv_slots=(table[:, :, -1].long() * BLOCK + last % BLOCK).to(device),
            block_table=table.to(device),
            row_offsets=torch.arange(rows + 1, device=device).int(),
            row_starts=torch.full((rows,), last, dtype=torch.int32, device=device),
            kv=kv,
        )
        self.drawn_at = torch.arange(rows, device=device)
        self.replay = Replay(self.model, kv, rows, each, device)
        weights = (
            config.layers
            * (
                config.width * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
                + 3 * config.width * config.mlp_width
            )
            + config.width * config.vocab
        )
        pairs = config.layers * config.heads * config.head_dim * rows * context
        self.bytes = 2.0 * weights + 4.0 * config.layers * config.kv_heads * config.head_dim * rows * context
        self.flops = 2.0 * weights * rows + 4.0 * pairs

    def replayed(self) -> None:
        self.replay.logits(self.step, self.drawn_at)

    def launched(self) -> None:
        self.model.logits(self.step, self.drawn_at)


def seconds(run: Callable[[], None], device: torch.device, times: int) -> float:
    """Of one call among so many in a row, by the clock, until the card is done."""
    begin = time.perf_counter()
    for _ in range(times):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / times


def profile(bench: Bench) -> None:
    """Which kernels a step's time goes to."""
    for _ in range(3):
        bench.replayed()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            bench.replayed()
        torch.cuda.synchronize()
    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=60), flush=True)


def measured(name: str, rows: int, context: int, device: torch.device) -> Result:
    """One cell."""
    is_dry = device.type == "cpu"
    copy, copied, multiply, multiplied = copy_and_matmul(str(device), is_dry)
    bench = Bench(name, rows, context, device)
    for _ in range(1 if is_dry else 3):
        bench.replayed()
        bench.launched()
    replayed, launched, copies, products = [], [], [], []
    times = 1 if is_dry else 20
    for _ in range(1 if is_dry else ROUNDS):
        replayed.append(1e6 * seconds(bench.replayed, device, times))
        launched.append(1e6 * seconds(bench.launched, device, times))
        copies.append(copied / micros(copy, not is_dry))
        products.append(multiplied / micros(multiply, not is_dry))
    took = statistics.median(replayed)
    bound = max(bench.bytes / statistics.median(copies), bench.flops / statistics.median(products))
    return Result(name, rows, context, took, bound / took, statistics.median(launched))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--profile", choices=SHAPES, help="of one row of this shape")
    parser.add_argument("--json", type=Path, help="of `kernels.py`: results are put beside its own")
    args = parser.parse_args()
    device = torch.device("cpu" if args.dry else "cuda")
    on_card: AbstractContextManager[None] = dispatch.watched(cuda) if args.dry else nullcontext()
    results = []
    with on_card, torch.inference_mode():
        if args.profile:
            profile(Bench(args.profile, 1, 1024, device))
        for cell in [("tiny", 3, 20)] if args.dry else [] if args.profile else CELLS:
            result = measured(*cell, device)
            results.append(result)
            print(
                f"step {result.model:<5}{result.rows:>4} rows of {result.context:<6}{result.micros:10.0f} us "
                f"{1e6 * result.rows / result.micros:9.0f} tokens/s {result.share:6.2f} of the limit, "
                f"without a graph {result.launched_micros:8.0f} us",
                flush=True,
            )
    if args.json:
        found = json.loads(args.json.read_text())
        args.json.write_text(json.dumps(found | {"steps": [asdict(result) for result in results]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
