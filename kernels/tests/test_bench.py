"""The bench runs, so that it cannot rot; what it measures at this size means nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bench_of_the_cpu_kernels_runs(dtype: str) -> None:
    path = Path(__file__).parent.parent / "bench" / "cpu.py"
    spec = importlib.util.spec_from_file_location("bench_cpu", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench  # dataclasses look their module up
    spec.loader.exec_module(bench)
    lines = bench.main(["--tiny", "--dtype", dtype])
    assert {line.name.split()[0] for line in lines} == {"linear", "attention", "add_rms_norm", "silu_mul", "sample"}
    assert all(line.us > 0 and line.rate > 0 and line.checksum == line.checksum for line in lines)
