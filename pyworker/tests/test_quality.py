"""What quantised weights change, measured: `python -m pelton.quality`."""

from __future__ import annotations

import io
import json
import resource
from pathlib import Path

import pytest
import torch
from pelton import quality
from random_checkpoints import POSITIONS, VOCAB, write
from tensor_sizes import Largest

WINDOW = 150


def ids(count: int) -> io.StringIO:
    return io.StringIO(" ".join(str(at * 37 % VOCAB) for at in range(count)))


def test_quality_is_measured_and_better_with_more_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "model", "llama")
    results = {}
    for quantize in ("int8", "int8-a16", "int4", "int4-a16"):
        path = tmp_path / f"{quantize}.json"
        arguments = [str(folder), "--quantize", quantize, "--threads", "1", "--window", "64", "--json", str(path)]
        assert quality.main(arguments, ids(150)) == 0
        results[quantize] = json.loads(path.read_text())
        assert "KL divergence" in capsys.readouterr().out
    assert all(result["predictions"] == 147 for result in results.values()), (
        "64 + 64 + 22 tokens, each window's first is given"
    )
    kl = {quantize: result["kl_mean"] for quantize, result in results.items()}
    assert 0 < kl["int8-a16"] < kl["int8"] < kl["int4"]
    assert kl["int8"] < kl["int4-a16"]
    assert results["int8"]["agreement"] > results["int4"]["agreement"]
    assert quality.main([str(folder), "--quantize", "int8", "--quantize-skip", "none"], ids(150)) == 0
    assert quality.main([str(folder), "--quantize", "int4"], io.StringIO("7")) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--quantize", "int5"], "--quantize int5; supported: auto, int8"),
        (["--quantize", "int8", "--quantize-skip", "*.nothing"], "--quantize-skip *.nothing fits no layer"),
        (
            ["--quantize", "int8", "--window", "600"],
            f"--window 600 is more than the model's {POSITIONS}: set --window to at most",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    monkeypatch.setattr(quality, "load_whole", lambda _wish: pytest.fail("a model is read"))
    assert quality.main([str(write(tmp_path / "model", "llama")), *arguments], ids(700)) == 1
    assert capsys.readouterr().out.startswith(f"pelton bench quality: {why}")


def test_a_disk_without_room_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "model", "llama")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (149 * VOCAB * 4 - 1, hard))
    try:
        assert quality.main([str(folder), "--quantize", "int8"], ids(WINDOW)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "a temporary file for 0.1 MB of log-probabilities: File too large; set TMPDIR to" in capsys.readouterr().out


def test_few_rows_are_wide_at_a_time(tmp_path: Path) -> None:
    """A window of 512 tokens and a vocabulary of 256,000 would take 1 GB for each tensor of float64."""
    with Largest(torch.float64) as largest:
        assert quality.main([str(write(tmp_path / "model", "llama")), "--quantize", "int8"], ids(WINDOW)) == 0
    assert largest.bytes == 8 * quality.ROWS * VOCAB
