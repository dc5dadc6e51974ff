"""Linear layers: plain, quantised, and the packing of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from pelton_kernels import _native, ops
from timing import Bench
from torch import Tensor

SCHEMES: Final = [
    ops.Scheme(8, 0, "int8"),
    ops.Scheme(8, 0, "float"),
    ops.Scheme(4, 32, "int8"),
    ops.Scheme(4, 64, "int8"),
    ops.Scheme(4, 128, "int8"),
    ops.Scheme(4, 64, "float"),
]


def linear(bench: Bench) -> None:
    s = bench.sizes
    has_tiles = bench.dtype == torch.bfloat16 and _native.multiply_tiles(False, 1) is not None
    shapes = {
        "qkv": ((s.heads + 2 * s.kv_heads) * s.dim, s.width),
        "o": (s.width, s.heads * s.dim),
        "gate_up": (2 * s.inner, s.width),
        "down": (s.width, s.inner),
    }
    for name, (columns, depth) in shapes.items():
        if bench.only not in f"linear {name}":
            continue
        copies = max(1, s.weight_bytes // (columns * depth * bench.dtype.itemsize))
        packed = [ops.pack(torch.randn(columns, depth).to(bench.dtype)) for _ in range(copies)]
        size = packed[0].nbytes  # as they lie in memory
        for tokens, used, call in multiplied(bench, packed, columns, depth, copies // 8):
            shape = f"[{tokens}, {depth}] x [{columns}, {depth}]"
            if tokens <= 16:
                bench.measure(f"linear {name}", shape, call, nbytes=size, calls=used)
            else:
                for against in ("gemm", "tiles") if has_tiles else ("gemm",):
                    flops = 2 * tokens * columns * depth
                    bench.measure(f"linear {name}", shape, call, flops=flops, calls=used, against=against)


def multiplied(
    bench: Bench, packed: list[ops.PackedWeight], columns: int, depth: int, few: int
) -> Iterator[tuple[int, int, Callable[[], Tensor]]]:
    """For some numbers of tokens: how many, how many weights they meet, one after the other, and what does that. Many tokens meet a few."""
    for tokens in (1, 8, 16, 32, bench.sizes.prefill):
        x, out = torch.randn(tokens, depth).to(bench.dtype), torch.empty(tokens, columns, dtype=bench.dtype)
        used = packed if tokens <= 16 else packed[: max(1, few)]

        def call(out: Tensor = out, x: Tensor = x, used: list[ops.PackedWeight] = used) -> Tensor:
            for weight in used:
                ops.linear(out, x, weight)
            return out

        yield tokens, len(used), call


def quantized(bench: Bench) -> None:
    """Qwen3's widest and narrowest product in each scheme; weights are repeated as in `linear`."""
    s = bench.sizes
    for scheme in SCHEMES:
        for name, columns, depth in (("gate_up", 2 * s.inner, s.width), ("o", s.width, s.heads * s.dim)):
            title = f"int{scheme.bits}" + (f"-g{scheme.group}" if scheme.group else "")
            title += "" if scheme.activations == "int8" else "-a16"
            if bench.only not in f"{title} {name}":
                continue
            weight = torch.randn(columns, depth)
            first = ops.quantize(weight, bench.dtype, scheme)
            packed = [
                first,
                *(ops.quantize(weight, bench.dtype, scheme) for _ in range(s.weight_bytes // first.nbytes - 1)),
            ]
            for tokens, used, call in multiplied(bench, packed, columns, depth, len(packed) // 16):
                shape = f"[{tokens}, {depth}] -> {columns}"
                if tokens <= 16:
                    bench.measure(f"{title} {name}", shape, call, nbytes=first.nbytes, calls=used)
                else:
                    against = "int8" if scheme.activations == "int8" else "float32"
                    flops = 2 * tokens * columns * depth
                    bench.measure(f"{title} {name}", shape, call, flops=flops, calls=used, against=against)


def packing(bench: Bench) -> None:
    """What loading does with Qwen3's widest weight and with Llama 8B's deepest, into memory that is there: bytes are those that are
    read, the limit is that of copying as many, three quarters of which are written, and the checksum is the weight's own."""
    s = bench.sizes
    for columns, depth in ((2 * s.inner, s.width), (4 * s.width, 14 * s.width)):
        count = max(1, (s.weight_bytes // 2) // (2 * columns * depth))
        weights = [torch.randn(columns, depth).to(bench.dtype) for _ in range(count)]
        ways: dict[str, tuple[Callable[[Tensor], object], list[Tensor]]] = {"pack": (ops.pack, weights)}
        byte, nibble = ops.Scheme(8, 0, "int8"), ops.Scheme(4, 64, "int8")
        for scheme in (byte, nibble):
            ways[f"pack int{scheme.bits}"] = partial(ops.quantize, dtype=bench.dtype, scheme=scheme), weights
        codes = [torch.randint(0, 16, (columns, depth), dtype=torch.uint8) for _ in range(count)]
        scales = torch.rand(columns, -(-depth // nibble.group))
        as_they_are = partial(ops.pack_codes, scales=scales, zeros=None, order=None, dtype=bench.dtype, scheme=nibble)
        ways["pack_codes int4"] = as_they_are, codes
        nbytes = weights[0].nbytes
        held: list[object] = []

        def hold(held: list[object] = held, nbytes: int = nbytes * count) -> None:
            held.clear()
            memory = _native.ForeseenMemory(2 * nbytes)
            memory.wait()
            held.append(memory)

        for name, (way, given) in ways.items():

            def call(
                way: Callable[[Tensor], object] = way, held: list[object] = held, given: list[Tensor] = given
            ) -> Tensor:
                held.extend(way(weight) for weight in given)
                return given[0]

            shape = f"{[columns, depth]}"
            bench.measure(name, shape, call, nbytes=given[0].nbytes, calls=count, against="copy", before=hold)
        held.clear()
