"""Inputs that never change, what each op makes of them, and golden.json: the sums of that by instruction set.

    .venv/bin/python kernels/tests/golden.py      writes the sums of this machine's instruction sets; keeps those of others

A sum that changed is another arithmetic: `VERSION` in `Cpu::numerics_id` has to be raised, so that KV that others kept is not taken for ours. Until
it is, no other sum is written; once it is, those of other machines are dropped. Before each sum stands the version that its numerics id ends with: some
quantised formats have one of their own in a class.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from pelton_kernels import admit, ops, reference
from pelton_kernels.ops import Scheme
from pelton_kernels.testing import isas
from torch import Tensor

WRITTEN: Final = Path(__file__).with_name("golden.json")
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS, WIDTH, ROTATED = 5, 72, 24
SCHEMES: Final = {
    "quantised int8": Scheme(8, 0, "int8"),
    "quantised int8-a16": Scheme(8, 0, "float"),
    "quantised int4": Scheme(4, 64, "int8"),
    "quantised int4-a16": Scheme(4, 64, "float"),
}
HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 6, 2, 40, 16, 40
Outputs = list[Tensor]


class Numbers:
    """Numbers from a generator that NumPy has frozen, exact in their format, -2 to 2, of sizes so different that the order of a
    sum tells."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._source = np.random.RandomState(20261125)

    def of(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Of the op's format, if no other is named."""
        dtype = dtype or self.dtype
        digits = 24 if dtype is torch.float32 else 8
        numbers, powers = self._source.randint(1 << digits - 1, 1 << digits, shape), self._source.randint(-7, 1, shape)
        signs = self._source.randint(0, 2, shape) * 2 - 1
        return torch.from_numpy(np.ldexp((signs * numbers).astype(np.float32), powers - digits + 1)).to(dtype)

    def ids(self, below: int, *shape: int) -> Tensor:
        """Indices."""
        return torch.from_numpy(self._source.randint(0, below, shape)).int()

    def order(self, count: int) -> Tensor:
        """A shuffle."""
        return torch.from_numpy(self._source.permutation(count)).int()


def norms(n: Numbers) -> Outputs:
    """All four."""
    x, residual, gain = n.of(TOKENS, WIDTH), n.of(TOKENS, WIDTH), n.of(WIDTH, dtype=torch.float32)
    outs = [torch.empty_like(x) for _ in range(5)]
    ops.rms_norm(outs[0], x, gain, 1e-6)
    ops.add_rms_norm(outs[1], residual, x, gain, 1e-6)
    bias = n.of(WIDTH, dtype=torch.float32)
    ops.layer_norm(outs[2], x, gain, bias, 1e-5)
    ops.layer_norm(outs[3], x, gain, None, 1e-5, 24)
    ops.add_layer_norm(outs[4], residual, x, gain, bias, 1e-5)
    return [*outs, residual]


def gates(n: Numbers) -> Outputs:
    """Gated activations."""
    gate_up = n.of(TOKENS, 2 * WIDTH) * 2
    outs = [torch.empty(TOKENS, WIDTH, dtype=n.dtype) for _ in range(3)]
    for out, op in zip(outs, (ops.silu_mul, ops.gelu_mul, ops.gelu_erf_mul), strict=True):
        op(out, gate_up)
    return outs


def elementwise(n: Numbers) -> Outputs:
    """Activations, sums, factors, caps."""
    outs = [n.of(TOKENS, WIDTH) * 3 for _ in ops.FUNCTIONS]
    for x, function in zip(outs, ops.FUNCTIONS, strict=True):
        ops.activate(x, function)
    total, scaled, capped = n.of(TOKENS, WIDTH), n.of(TOKENS, WIDTH), n.of(TOKENS, WIDTH, dtype=torch.float32) * 20
    ops.add(total, n.of(TOKENS, WIDTH))
    ops.scale(scaled, 0.3)
    ops.soft_cap(capped, 30.0)
    return [*outs, total, scaled, capped]


def pooled(n: Numbers) -> Outputs:
    """Rows as vectors."""
    x, offsets, at = n.of(9, WIDTH), torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([3, 8], dtype=torch.int32)
    outs = [torch.empty(2, WIDTH) for _ in ops.POOLINGS]
    for out, pooling in zip(outs, ops.POOLINGS, strict=True):
        ops.pool_rows(out, x, offsets, at, pooling)
    return outs


def products(n: Numbers, weight: ops.PackedWeight) -> Outputs:
    """Of few rows and of many with 50 columns of 2,500, a result of either format."""
    outs, bias = [], n.of(50)
    for rows in (1, 3, 40):
        x = n.of(rows, 2500)
        outs += [torch.empty(rows, 50, dtype=n.dtype), torch.empty(rows, 50)]
        ops.linear(outs[-2], x, weight, bias)
        ops.linear_f32(outs[-1], x, weight)
    return outs


def linear(n: Numbers) -> Outputs:
    """Deep enough for several pieces."""
    return products(n, ops.pack(n.of(50, 2500)))


def quantised(n: Numbers, scheme: Scheme) -> Outputs:
    """Weights that are rounded here; groups end within the last one."""
    return products(n, ops.quantize(n.of(50, 2500), n.dtype, scheme))


def rope(n: Numbers, is_interleaved: bool, cache: str) -> Outputs:
    """Turned queries, and keys and values as they come to lie in a cache."""
    q, k, v = n.of(TOKENS, HEADS, DIM), n.of(TOKENS, KV_HEADS, DIM), n.of(TOKENS, KV_HEADS, DIM)
    out = torch.empty_like(q)
    caches = [torch.zeros(2, KV_HEADS, BLOCK, DIM, dtype=n.dtype) for _ in range(2)]
    if cache == "codes":
        caches = [reference.codes_of(cache) for cache in caches]
    slots = n.order(2 * BLOCK)[:TOKENS].long()
    cos_sin, positions = n.of(30, ROTATED, dtype=torch.float32), n.ids(30, TOKENS)
    ops.rope_kv_write(out, q, k, v, cos_sin, positions, caches[0], caches[1], slots, is_interleaved)
    return [out, *caches]


def attention(n: Numbers, cache: str, sight: str) -> Outputs:
    """A row of one token behind 600, one of 70 behind 1, one of 4 without anything before."""
    rows = [(0, 75), (0, 4)] if sight == "whole" else [(600, 1), (1, 70), (0, 4)]
    counts = [count for _, count in rows]
    caches = [n.of(BLOCKS + 10, KV_HEADS, BLOCK, DIM) for _ in range(2)]
    if cache == "codes":
        caches = [reference.codes_of(cache) for cache in caches]
    table = n.order(BLOCKS + 10)[:BLOCKS].expand(len(rows), -1).contiguous()
    offsets = torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32)
    starts = torch.tensor([start for start, _ in rows], dtype=torch.int32)
    per_head = n.of(HEADS, dtype=torch.float32)
    given = {
        "plain": {},
        "window": {"window": 45},
        "capped": {"soft_cap": 3.0},
        "sinks": {"sinks": per_head},
        "slopes": {"slopes": per_head.abs() / 8},
        "whole": {"is_whole": True},
    }[sight]
    q = n.of(sum(counts), HEADS, DIM)
    out = torch.empty_like(q)
    ops.paged_attention(out, q, caches[0], caches[1], table, offsets, starts, 0.2, **given)
    return [out]


def drawn(n: Numbers) -> Outputs:
    """Tokens and log-probabilities of requests that ask for different things."""
    rows, vocabulary, top = 40, 1000, 4
    at = torch.arange(rows)
    params = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
    values = params.view(torch.float32)
    params[:, admit.FLAGS] = (at % 4).int()
    values[:, admit.TEMPERATURE] = torch.tensor([0.0, 0.5, 1.0, 2.0])[at % 4]
    params[:, admit.TOP_K] = torch.tensor([0, 40, 5])[at % 3].int()
    values[:, admit.TOP_P] = torch.tensor([1.0, 0.9])[at % 2]
    values[:, admit.MIN_P] = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.1])[at % 5]
    values[:, admit.REPETITION] = torch.tensor([1.0, 1.25])[at % 2]
    values[:, admit.PRESENCE] = torch.tensor([0.0, 0.0, 0.5])[at % 3]
    values[:, admit.FREQUENCY] = torch.tensor([0.0, 0.25])[at % 2]
    params[:, admit.SEED_LO] = at.int() * 7919
    params[:, admit.TOP_LOGPROBS] = top
    outs = [torch.empty(rows, dtype=torch.int32) for _ in range(2)]
    outs += [torch.empty(rows), torch.empty(rows, top, dtype=torch.int32), torch.empty(rows, top)]
    logits, empty = n.of(rows, vocabulary, dtype=torch.float32) * 4, torch.zeros(rows, 0)
    ops.sample(
        *outs, logits, params, at.int(), n.ids(100, rows), n.ids(3, rows, vocabulary), empty.int(), empty, empty.int()
    )
    scores = [torch.empty(rows, dtype=torch.int32) for _ in range(2)]
    scores += [torch.empty(rows), torch.empty(rows, top, dtype=torch.int32), torch.empty(rows, top)]
    ops.score(*scores, logits, n.ids(vocabulary, rows), torch.full((rows,), top, dtype=torch.int32))
    return outs + scores


CASES: Final[dict[str, Callable[[Numbers], Outputs]]] = {
    "norms": norms,
    "gates": gates,
    "elementwise": elementwise,
    "pooled": pooled,
    "linear": linear,
    **{name: partial(quantised, scheme=scheme) for name, scheme in SCHEMES.items()},
    **{
        f"rope {'neighbours' if is_interleaved else 'halves'} {cache}": partial(
            rope, is_interleaved=is_interleaved, cache=cache
        )
        for is_interleaved in (False, True)
        for cache in ("plain", "codes")
    },
    **{
        f"attention {cache} {sight}": partial(attention, cache=cache, sight=sight)
        for cache in ("plain", "codes")
        for sight in ("plain", "window", "capped", "sinks", "slopes", "whole")
    },
    "drawn": drawn,
}


def sum_of(case: str, dtype: torch.dtype) -> str:
    """Of the bits of all outputs, on the instruction set that is in use; before it the version of that arithmetic."""
    digest = hashlib.sha256()
    for out in CASES[case](Numbers(dtype)):
        digest.update(out.contiguous().view(torch.uint8).numpy().tobytes())
    return f"{version(dtype, SCHEMES.get(case))}:{digest.hexdigest()[:16]}"


def version(dtype: torch.dtype = torch.float32, scheme: Scheme | None = None) -> str:
    """Of the arithmetic, as numerics ids end."""
    return ops.numerics_id("cpu", dtype, scheme).rpartition("-")[2]


def written() -> tuple[str, dict[str, dict[str, str]]]:
    """Of which version the sums are; by case and format those of each instruction set."""
    sums: dict[str, dict[str, str]] = json.loads(WRITTEN.read_text()) if WRITTEN.exists() else {}
    return sums.pop("version", {}).get("of", version()), sums


def main() -> None:
    """Writes what this machine's instruction sets make."""
    of, known = written()
    sums = {
        f"{case}, {name}": {} if of != version() else known.get(f"{case}, {name}", {})
        for case in CASES
        for name in DTYPES
    }
    for isa in isas():
        ops.force_isa(isa)
        for case in CASES:
            for name, dtype in DTYPES.items():
                key, made = f"{case}, {name}", sum_of(case, dtype)
                before = sums[key].get(isa)
                if before and before != made and before.partition(":")[0] == made.partition(":")[0]:
                    sys.exit(f"{key} on {isa} has changed: raise VERSION in Cpu::numerics_id first; nothing is written")
                sums[key][isa] = made
    lines = (f"{json.dumps(key)}: {json.dumps(dict(sorted(of_it.items())))}" for key, of_it in sums.items())
    WRITTEN.write_text("{\n" + ",\n".join([f'"version": {{"of": "{version()}"}}', *lines]) + "\n}\n")


if __name__ == "__main__":
    main()
