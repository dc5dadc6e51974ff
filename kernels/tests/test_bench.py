"""The bench runs, so that it cannot rot; what it measures at this size means nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bench_of_the_cpu_kernels_runs(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    bench = importlib.import_module("cpu")
    lines = bench.main(["--tiny", "--dtype", dtype])
    kinds = {
        "linear",
        "pack",
        "attention",
        "add_rms_norm",
        "add_layer_norm",
        "silu_mul",
        "gelu_erf",
        "sample",
        "embed",
        "rms_norm",
        "rope_kv_write,",
    }
    schemes = {"int8", "int8-a16", "int4-g32", "int4-g64", "int4-g128", "int4-g64-a16"}
    assert {line.name.split()[0] for line in lines} == kinds | schemes
    assert all(line.us > 0 and line.rate > 0 and line.checksum == line.checksum for line in lines)
