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
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from pelton import machine
from pelton_kernels import _native, admit, ops, reference
from torch import Tensor


@dataclass
class Line:
    name: str
    shape: str
    us: float
    rate: float
    unit: str
    share: float
    against: str
    checksum: float


@dataclass(frozen=True)
class Sizes:
    """One model's shapes, and how much is measured."""

    width: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    vocabulary: int
    context: int
    prefill: int
    weight_bytes: int  # a linear layer's weights are repeated up to this size, so that no cache holds them
    gemm: int
    repetitions: int


LAYERS: Final = 28  # of Qwen3-0.6B
FULL: Final = Sizes(1024, 16, 8, 128, 3072, 151_936, 2048, 512, 256 << 20, 2048, 7)
SCHEMES: Final = [
    ops.Scheme(8, 0, "int8"),
    ops.Scheme(8, 0, "float"),
    ops.Scheme(4, 32, "int8"),
    ops.Scheme(4, 64, "int8"),
    ops.Scheme(4, 128, "int8"),
    ops.Scheme(4, 64, "float"),
]
TINY: Final = Sizes(64, 4, 2, 16, 96, 500, 70, 20, 1 << 16, 64, 1)


class Bench:
    """Measures one call at a time, its limit right before it."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, only: str, clock: Callable[[], float]) -> None:
        self.sizes, self.dtype, self.only, self.clock = sizes, dtype, only, clock
        self.probe = _native.ReadProbe(sizes.weight_bytes)
        self.square = torch.randn(sizes.gemm, sizes.gemm).to(dtype)
        self.lines: list[Line] = []

    def seconds(self, call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        before()
        call()
        times = []
        for _ in range(self.sizes.repetitions):
            before()
            begin = self.clock()
            call()
            times.append(self.clock() - begin)
        return median(times)

    def measure(
        self,
        name: str,
        shape: str,
        call: Callable[[], Tensor],
        *,
        nbytes: int = 0,
        flops: int = 0,
        calls: int = 1,
        against: str = "gemm",
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """`call` does the op `calls` times, `before` what is not timed, and returns an output; the rate is that of bytes, whose limit is
        that of reading or copying, or else of operations, whose limit is that of products in `against`."""
        if self.only not in name:
            return
        if nbytes:
            against = "copy" if against == "copy" else "read"
            copy = _native.CopyProbe(self.sizes.weight_bytes) if against == "copy" else None
            probe, act = (copy, copy.copy) if copy else (self.probe, self.probe.read)
            limit, unit = probe.nbytes / self.seconds(act), "GB/s"
        elif against in ("int8", "tiles"):
            limit, unit = self.in_registers(of_codes=against == "int8"), "GOP/s" if against == "int8" else "GFLOP/s"
        else:
            square = self.square.float() if against == "float32" else self.square
            limit, unit = 2 * self.sizes.gemm**3 / self.seconds(lambda: square @ square), "GFLOP/s"
        seconds = self.seconds(call, before) / calls
        rate = (nbytes or flops) / seconds
        checksum = float(call().double().abs().sum())
        line = Line(name, shape, seconds * 1e6, rate / 1e9, unit, rate / limit, against, checksum)
        self.lines.append(line)
        print(
            f"{name:<22} {shape:<32} {line.us:>10.1f} us {line.rate:>8.1f} {unit:<8} {line.share:>5.2f} of"
            f" {against} {limit / 1e9:>6.1f}   {checksum:.6g}",
            flush=True,
        )  # fmt: skip

    def in_registers(self, *, of_codes: bool) -> float:
        """Operations per second with nothing to load: in tiles, or of codes in vectors where the class has none."""
        rounds = self.sizes.gemm**2 // 20
        count = _native.multiply_tiles(of_codes, rounds)
        if count is not None:
            return count / self.seconds(lambda: _native.multiply_tiles(of_codes, rounds))
        return _native.multiply_codes(rounds) / self.seconds(lambda: _native.multiply_codes(rounds))

    def linear(self) -> None:
        s = self.sizes
        has_tiles = self.dtype == torch.bfloat16 and _native.multiply_tiles(False, 1) is not None
        shapes = {
            "qkv": ((s.heads + 2 * s.kv_heads) * s.dim, s.width),
            "o": (s.width, s.heads * s.dim),
            "gate_up": (2 * s.inner, s.width),
            "down": (s.width, s.inner),
        }
        for name, (columns, depth) in shapes.items():
            if self.only not in f"linear {name}":
                continue
            copies = max(1, s.weight_bytes // (columns * depth * self.dtype.itemsize))
            packed = [ops.pack(torch.randn(columns, depth).to(self.dtype)) for _ in range(copies)]
            size = packed[0].nbytes  # as they lie in memory
            for tokens in (1, 8, 16, 32, s.prefill):
                x, out = torch.randn(tokens, depth).to(self.dtype), torch.empty(tokens, columns, dtype=self.dtype)
                used = packed if tokens <= 16 else packed[: max(1, copies // 8)]

                def call(out: Tensor = out, x: Tensor = x, used: list[ops.PackedWeight] = used) -> Tensor:
                    for weight in used:
                        ops.linear(out, x, weight)
                    return out

                shape = f"[{tokens}, {depth}] x [{columns}, {depth}]"
                if tokens <= 16:
                    self.measure(f"linear {name}", shape, call, nbytes=size, calls=len(used))
                else:
                    for against in ("gemm", "tiles") if has_tiles else ("gemm",):
                        flops = 2 * tokens * columns * depth
                        self.measure(f"linear {name}", shape, call, flops=flops, calls=len(used), against=against)

    def quantized(self) -> None:
        """Qwen3's widest and narrowest product in each scheme; weights are repeated as in `linear`."""
        s = self.sizes
        for scheme in SCHEMES:
            for name, columns, depth in (("gate_up", 2 * s.inner, s.width), ("o", s.width, s.heads * s.dim)):
                title = f"int{scheme.bits}" + (f"-g{scheme.group}" if scheme.group else "")
                title += "" if scheme.activations == "int8" else "-a16"
                if self.only not in f"{title} {name}":
                    continue
                weight = torch.randn(columns, depth)
                first = ops.quantize(weight, self.dtype, scheme)
                packed = [
                    first,
                    *(ops.quantize(weight, self.dtype, scheme) for _ in range(s.weight_bytes // first.nbytes - 1)),
                ]
                for tokens in (1, 8, 16, 32, s.prefill):
                    x, out = torch.randn(tokens, depth).to(self.dtype), torch.empty(tokens, columns, dtype=self.dtype)
                    used = packed if tokens <= 16 else packed[: max(1, len(packed) // 16)]

                    def call(out: Tensor = out, x: Tensor = x, used: list[ops.PackedWeight] = used) -> Tensor:
                        for weight in used:
                            ops.linear(out, x, weight)
                        return out

                    shape = f"[{tokens}, {depth}] -> {columns}"
                    if tokens <= 16:
                        self.measure(f"{title} {name}", shape, call, nbytes=first.nbytes, calls=len(used))
                    else:
                        against = "int8" if scheme.activations == "int8" else "float32"
                        flops = 2 * tokens * columns * depth
                        self.measure(f"{title} {name}", shape, call, flops=flops, calls=len(used), against=against)

    def packing(self) -> None:
        """What loading does with Qwen3's widest weight and with Llama 8B's deepest, into memory that is there: bytes are those that are
        read, the limit is that of copying as many, three quarters of which are written, and the checksum is the weight's own."""
        s = self.sizes
        for columns, depth in ((2 * s.inner, s.width), (4 * s.width, 14 * s.width)):
            count = max(1, (s.weight_bytes // 2) // (2 * columns * depth))
            weights = [torch.randn(columns, depth).to(self.dtype) for _ in range(count)]
            ways: dict[str, Callable[[Tensor], object]] = {"pack": ops.pack}
            for scheme in (ops.Scheme(8, 0, "int8"), ops.Scheme(4, 64, "int8")):
                ways[f"pack int{scheme.bits}"] = partial(ops.quantize, dtype=self.dtype, scheme=scheme)
            nbytes = weights[0].nbytes
            held: list[object] = []

            def hold(held: list[object] = held, nbytes: int = nbytes * count) -> None:
                held.clear()
                memory = _native.ForeseenMemory(2 * nbytes)
                memory.wait()
                held.append(memory)

            for name, way in ways.items():

                def call(
                    way: Callable[[Tensor], object] = way, held: list[object] = held, weights: list[Tensor] = weights
                ) -> Tensor:
                    held.extend(way(weight) for weight in weights)
                    return weights[0]

                shape = f"{[columns, depth]}"
                self.measure(name, shape, call, nbytes=nbytes, calls=count, against="copy", before=hold)
            held.clear()

    def attention(self) -> None:
        s = self.sizes
        shapes = [
            (s.heads, s.kv_heads, s.dim),
            (s.heads, s.kv_heads, s.dim // 2),
            (s.heads, s.kv_heads // 2, s.dim // 4),  # 4 queries for each key
        ]
        for heads, kv_heads, dim in shapes:
            for name, rows, count, before in (
                ("attention decode", 1, 1, s.context),
                ("attention decode", 8, 1, s.context),
                ("attention decode, int8", 1, 1, s.context),
                ("attention decode, int8", 8, 1, s.context),
                ("attention warm", 1, 32, s.context),
                ("attention prefill", 1, s.prefill, 0),
                ("attention prefill, int8", 1, s.prefill, 0),
                ("attention prefill", 1, s.context, 0),
            ):
                self.attend(name, (heads, kv_heads, dim), rows, count, before)
        sights: dict[str, dict[str, Any]] = {
            "window": {"window": s.prefill // 4},
            "soft cap": {"soft_cap": 50.0},
            "sinks": {"sinks": torch.randn(s.heads)},
            "slopes": {"slopes": torch.rand(s.heads)},
            "both sides": {"is_whole": True},
        }
        for word, sight in sights.items():
            if not sight.get("is_whole"):
                self.attend(f"attention decode, {word}", shapes[0], 8, 1, s.context, sight)
            self.attend(f"attention prefill, {word}", shapes[0], 1, s.prefill, 0, sight)

    def attend(
        self,
        name: str,
        shape: tuple[int, int, int],
        rows: int,
        count: int,
        before: int,
        sight: dict[str, Any] | None = None,
    ) -> None:
        if self.only not in name:
            return
        sight = sight or {}
        heads, kv_heads, dim = shape
        known = before + count
        used = -(-known // 32)
        k_cache, v_cache = (torch.randn(rows * used, kv_heads, 32, dim).to(self.dtype) for _ in range(2))
        if "int8" in name:
            k_cache, v_cache = reference.codes_of(k_cache), reference.codes_of(v_cache)
        table = torch.randperm(rows * used).int().view(rows, used)
        offsets = torch.arange(0, rows * count + 1, count, dtype=torch.int32)
        starts = torch.full((rows,), before, dtype=torch.int32)
        q = torch.randn(rows * count, heads, dim).to(self.dtype)
        out = torch.empty_like(q)

        # A step of decode meets each layer's keys once, from memory: by the next turn others have taken their place in the caches.
        count_of_layers = LAYERS if count == 1 else 1
        layers = itertools.cycle([(k_cache.clone(), v_cache.clone()) for _ in range(count_of_layers)])

        def call() -> Tensor:
            k, v = next(layers)
            ops.paged_attention(out, q, k, v, table, offsets, starts, dim**-0.5, **sight)
            return out

        text = f"{rows} x {count} after {before}, {heads}/{kv_heads} x {dim}"
        window = sight.get("window", known)
        if count == 1:
            seen = min(known, window)
            self.measure(name, text, call, nbytes=2 * rows * seen * kv_heads * k_cache.shape[3] * k_cache.itemsize)
        else:
            pairs = rows * sum(min(at, window) for at in range(before + 1, known + 1))
            if sight.get("is_whole"):
                pairs = rows * known**2
            self.measure(name, text, call, flops=4 * heads * dim * pairs)

    def small(self) -> None:
        s = self.sizes
        for tokens in (1, 16, s.prefill):
            x, residual, gate_up = (
                torch.randn(tokens, width).to(self.dtype) for width in (s.width, s.width, 2 * s.inner)
            )
            gain, size = torch.ones(s.width), self.dtype.itemsize
            out, gated = torch.empty_like(x), torch.empty(tokens, s.inner, dtype=self.dtype)

            def norm(out: Tensor = out, residual: Tensor = residual, x: Tensor = x, gain: Tensor = gain) -> Tensor:
                for _ in range(20):
                    ops.add_rms_norm(out, residual, x, gain, 1e-6)
                return out

            def gate(gated: Tensor = gated, gate_up: Tensor = gate_up) -> Tensor:
                for _ in range(20):
                    ops.silu_mul(gated, gate_up)
                return gated

            bias, first = torch.zeros(s.width), torch.randn(tokens, s.inner).to(self.dtype)
            plain = first.clone()

            def layer(
                out: Tensor = out, residual: Tensor = residual, x: Tensor = x, gain: Tensor = gain, bias: Tensor = bias
            ) -> Tensor:
                for _ in range(20):
                    ops.add_layer_norm(out, residual, x, gain, bias, 1e-5)
                return out

            def activate(plain: Tensor = plain) -> Tensor:
                for _ in range(20):
                    ops.activate(plain, "gelu_erf")
                return plain

            nbytes = 4 * tokens * s.width * size
            self.measure("add_rms_norm", f"[{tokens}, {s.width}]", norm, nbytes=nbytes, calls=20)
            self.measure("add_layer_norm", f"[{tokens}, {s.width}]", layer, nbytes=nbytes, calls=20)
            self.measure("gelu_erf", f"[{tokens}, {s.inner}]", activate, nbytes=2 * tokens * s.inner * size, calls=20,
                before=partial(plain.copy_, first),  # in place again and again it becomes less than a normal number, which computes slowly
            )  # fmt: skip
            self.measure("silu_mul", f"[{tokens}, {s.inner}]", gate, nbytes=3 * tokens * s.inner * size, calls=20)

    def tokens(self) -> None:
        """What a step does to each token outside of products and attention."""
        s, size = self.sizes, self.dtype.itemsize
        table, gain = torch.randn(s.vocabulary // 4, s.width).to(self.dtype), torch.ones(s.width)
        angles = torch.rand(s.context, s.dim // 2)
        cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
        norm = ops.HeadNorm(torch.ones(s.dim), torch.ones(s.dim), 1e-6)
        for tokens in (1, 16, s.prefill):
            positions = torch.arange(tokens, dtype=torch.int32)
            ids = torch.randint(0, len(table), (tokens,), dtype=torch.int32)
            x, out = torch.randn(tokens, s.width).to(self.dtype), torch.empty(tokens, s.width, dtype=self.dtype)
            q, k, v = (
                torch.randn(tokens, s.heads + 2 * s.kv_heads, s.dim)
                .to(self.dtype)
                .split([s.heads, s.kv_heads, s.kv_heads], dim=1)
            )
            turned, at = torch.empty(tokens, s.heads, s.dim, dtype=self.dtype), torch.arange(tokens)
            caches = [torch.zeros(-(-tokens // 32), s.kv_heads, 32, s.dim, dtype=self.dtype) for _ in range(2)]

            def embed(out: Tensor = out, ids: Tensor = ids) -> Tensor:
                for _ in range(20):
                    ops.embed(out, table, ids)
                return out

            def rms_norm(out: Tensor = out, x: Tensor = x) -> Tensor:
                for _ in range(20):
                    ops.rms_norm(out, x, gain, 1e-6)
                return out

            def turn(
                turned: Tensor = turned, q: Tensor = q, k: Tensor = k, v: Tensor = v, at: Tensor = at, caches: list[Tensor] = caches,
                positions: Tensor = positions,
            ) -> Tensor:  # fmt: skip
                for _ in range(20):
                    ops.rope_kv_write(turned, q, k, v, cos_sin, positions, *caches, at, norm=norm)
                return turned

            row = tokens * s.width * size
            self.measure("embed", f"[{tokens}, {s.width}]", embed, nbytes=2 * row, calls=20)
            self.measure("rms_norm", f"[{tokens}, {s.width}]", rms_norm, nbytes=2 * row, calls=20)
            nbytes = 2 * tokens * (s.heads + 2 * s.kv_heads) * s.dim * size
            heads = f"[{tokens}, {s.heads} + 2 x {s.kv_heads}, {s.dim}]"
            self.measure("rope_kv_write, normed", heads, turn, nbytes=nbytes, calls=20)

    def sample(self) -> None:
        s = self.sizes
        for name, words in (
            ("greedy", (0.0, 0, 1.0)),
            ("temperature", (1.0, 0, 1.0)),
            ("top-k", (1.0, 50, 1.0)),
            ("top-p", (1.0, 0, 0.9)),
            ("top-k, top-p", (1.0, 50, 0.9)),
            ("penalties", (1.0, 50, 0.9)),
            ("mask", (1.0, 50, 0.9)),
            ("5 log-probabilities", (1.0, 50, 0.9)),
        ):
            rows, shown = 8, 5 if "log" in name else 0
            params = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
            values = params.view(torch.float32)
            values[:, admit.TEMPERATURE], params[:, admit.TOP_K], values[:, admit.TOP_P] = words
            params[:, admit.SEED_LO] = torch.arange(rows)
            logits = 3 * torch.randn(rows, s.vocabulary)
            tokens, flags, slots = (torch.arange(rows, dtype=torch.int32) for _ in range(3))
            empty = torch.zeros(rows, 0)
            counts = masks = mask_of = None
            if name == "penalties":
                params[:, admit.FLAGS], values[:, admit.REPETITION] = admit.PENALTIES, 1.1
                counts = torch.zeros(rows, s.vocabulary, dtype=torch.int32)
                counts[:, torch.randint(0, s.vocabulary, (500,))] = 1
            if name == "mask":
                masks, mask_of = torch.randint(-(1 << 31), 1 << 31, (rows, -(-s.vocabulary // 32))).int(), slots.clone()
            if shown:
                params[:, admit.FLAGS], params[:, admit.TOP_LOGPROBS] = admit.LOGPROBS, shown
            top = torch.zeros(rows, shown)
            nbytes = sum(tensor.nbytes for tensor in (logits, counts, masks) if tensor is not None)

            def call(
                tokens: Tensor = tokens, flags: Tensor = flags, slots: Tensor = slots, params: Tensor = params,
                logits: Tensor = logits, empty: Tensor = empty, counts: Tensor | None = counts, masks: Tensor | None = masks,
                mask_of: Tensor | None = mask_of, top: Tensor = top,
            ) -> Tensor:  # fmt: skip
                none = empty.int()
                chosen = torch.empty(len(slots))
                ops.sample(
                    tokens,
                    flags,
                    chosen,
                    top.int(),
                    top.clone(),
                    logits,
                    params,
                    slots,
                    slots.clone(),
                    counts,
                    none,
                    empty,
                    none,
                    masks,
                    mask_of,
                )
                return tokens

            self.measure(f"sample {name}", f"[{rows}, {s.vocabulary}]", call, nbytes=nbytes)


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
    bench.linear()
    bench.quantized()
    bench.packing()
    bench.attention()
    bench.small()
    bench.tokens()
    bench.sample()
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
