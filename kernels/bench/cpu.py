"""CPU kernels on the shapes of Qwen3-0.6B, beside what the machine gives in the same minutes.

    python kernels/bench/cpu.py [--tiny] [--threads 2] [--cpu-time] [--dtype bfloat16] [--isa NAME] [--only WORD] [--context N] [--json FILE]

Limits are taken right before each line: `read` is how fast all threads read memory together, `copy` how fast they read it where three
quarters as much are written, `gemm` what torch (oneDNN)
reaches on a large matrix product of the same format; of quantised weights `int8` is what multiplications of integers reach in
registers, and with activations as they are `gemm` is that of float32. With AMX, `int8` is that of its tiles, and products of
bfloat16 have a second line against `tiles`, what they reach in registers. A share above 1 means that the limit was disturbed,
that the bytes were still in a cache, or that bfloat16 is multiplied as floats (`avx512`, `avx512vnni`) where that is faster than
what oneDNN does. The checksum shows that two runs computed the same.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import attention
import blocks
import draws
import per_token
import products
import torch
from pelton import machine
from pelton_kernels import ops
from timing import FULL, TINY, Bench, Line


def main(arguments: list[str] | None = None) -> list[Line]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small shapes, once each: proves that the bench runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the time on a core, not the wait for one: for a machine that others use",
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--isa", choices=ops.available_isas(), help="another class than the best")
    parser.add_argument("--context", type=int, help="tokens before a step of attention; best with --only")
    parser.add_argument("--only", default="", help="lines whose name has this in it")
    parser.add_argument("--json", type=Path, help="write the lines to this file, too")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    ops.set_threads(options.threads)
    ops.force_isa(options.isa)
    dtype = getattr(torch, options.dtype)
    print(f"{ops.numerics_id('cpu', dtype)}, {options.threads} threads")
    if options.cpu_time and options.threads > 1:
        parser.error("--cpu-time is of all threads together: it needs --threads 1")
    clock = time.process_time if options.cpu_time else time.perf_counter
    sizes = TINY if options.tiny else FULL
    if options.context:
        sizes = replace(sizes, context=options.context)
    bench = Bench(sizes, dtype, options.only, clock)
    products.linear(bench)
    products.quantized(bench)
    products.packing(bench)
    attention.attention(bench)
    per_token.elementwise(bench)
    per_token.tokens(bench)
    per_token.pooling(bench)
    blocks.blocks(bench)
    draws.sample(bench)
    draws.score(bench)
    ops.force_isa(None)
    if options.json:
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine.description(),
            "class": ops.numerics_id("cpu", dtype),
            "threads": options.threads,
            "lines": [asdict(line) for line in bench.lines],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return bench.lines


if __name__ == "__main__":
    main()
