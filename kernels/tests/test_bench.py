"""The bench runs, so that it cannot rot; what it measures at this size means nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from pelton_kernels import ops
from pelton_kernels.ops.dispatch import Kernels

BENCH = Path(__file__).parents[1] / "bench"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bench_of_the_cpu_kernels_runs(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    bench = importlib.import_module("cpu")
    lines = bench.main(["--tiny", "--dtype", dtype])
    norms = {"rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"}
    gates = {"silu_mul", "gelu_mul", "gelu_erf_mul"}
    embeddings = {"embed", "embed_packed", "embed_segments", "rope_kv_write,", "pool_rows,"}
    blocks = {"copy_blocks", "save_blocks", "load_blocks"}
    others = {"linear", "pack", "pack_codes", "attention", "add", "scale", "soft_cap", "sample", "score"}
    kinds = norms | gates | set(ops.FUNCTIONS) | embeddings | blocks | others
    schemes = {"int8", "int8-a16", "int4-g32", "int4-g64", "int4-g128", "int4-g64-a16"}
    assert {line.name.split()[0] for line in lines} == kinds | schemes
    measured_by_other_names = {"quantize", "activate", "paged_attention", "numerics_id"}
    every_op = {name for name in vars(Kernels) if not name.startswith("_")} - measured_by_other_names
    assert every_op <= {kind.rstrip(",") for kind in kinds}
    assert all(line.us > 0 and line.rate > 0 and line.checksum == line.checksum for line in lines)
