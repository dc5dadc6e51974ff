"""One op at a time, its limit right before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch
from pelton_kernels import _native
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


FULL: Final = Sizes(1024, 16, 8, 128, 3072, 151_936, 2048, 512, 256 << 20, 2048, 7)
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
