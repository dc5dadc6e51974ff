"""C:B8: every bench starts and comes to its end, at sizes that say nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from support.server import PELTON, Server

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ["bench/gpu/check.py", "--dry", "--without-kernels"],  # whose tests are among those of kernels/
        ["kernels/bench/cpu.py", "--tiny"],
        ["bench/cpu/program.py", "--tiny"],
        ["bench/cpu/shared.py", "--tiny"],
        ["bench/cpu/start.py", "--tiny"],
        ["bench/cpu/speculation.py", "--repeat", "1", "--tokens", "16", "--together", "2"],
    ],
    ids=lambda command: command[0],
)
def test_it_comes_to_its_end(command: list[str]) -> None:
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


def test_the_quality_of_quantised_weights_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "quality.json"
    command = [PELTON, "bench", "quality", "--quantize", "int4", "--tokens", "200", "--window", "100", "--json", out]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "KL divergence" in ran.stdout
    assert json.loads(out.read_text())["predictions"] == 198


def test_the_wire_is_compared_with_its_peers(tmp_path: Path) -> None:
    out = tmp_path / "wire.json"
    command = [sys.executable, "bench/wire/wire.py", "--rounds", "20", "--repeat", "1", "--json", str(out)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(out.read_text())
    for mode in ("back to back", "asleep"):
        assert set(report[mode]["p50_us"]) == {"frame", "grpcio unary", "pyzmq"}


def test_the_front_end_is_measured_beside_an_engine_that_computes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "frontend.json"
    command = [sys.executable, "bench/frontend/frontend.py", str(tmp_path), "--tiny", "--json", str(out)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    report = json.loads(out.read_text())
    assert report["left_out"] == ["vllm", "vllm-rs"]
    assert [line["trouble"] for line in report["w2"]] == [[]] * 4
    assert report["w1_ms"]["pelton"]["p50_ms"] > 0
    assert set(report["w6"]) == {"prose", "code", "json", "languages"}


def test_peers_are_compared_and_one_that_does_not_start_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "vllm/bin/vllm"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    out, picture = tmp_path / "peers.json", tmp_path / "peers.svg"
    command: list[str | Path] = [
        "bench/cpu/peers/compare.py",
        tmp_path,
        "--models",
        "tiny",
        "--scenarios",
        "S1",
        "--concurrency",
        "2",
    ]
    command += ["--rounds", "1", "--patience", "0", "--peers", "vllm", "pelton", "pelton-int8", "llama-q8_0"]
    command += ["--json", out, "--plot", picture]
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    report = json.loads(out.read_text())
    absent, failed = report["left_out"]
    assert absent == "llama-q8_0"
    assert failed.startswith("vllm with tiny: it ended with 3 while it started")
    assert [line["weights"] for line in report["summary"]] == ["bf16", "8 bits"]
    for line in report["summary"]:
        assert all(rate > 0 for rate in line["tokens_per_s"].values())
        assert all(share > 0 for share in line["of_limit"].values())  # a small model stays in caches, and may pass it
    assert picture.stat().st_size > 0


def test_a_result_that_cannot_be_written_is_known_before_anything_is_measured(tmp_path: Path) -> None:
    for flag in ("--json", "--plot"):
        command = [PELTON, "bench", "serve", flag, str(tmp_path / "none" / "x")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1
        assert ran.stderr.startswith(f"pelton: `{flag}` is {tmp_path}/none/x: No such file"), ran.stderr


def test_a_measured_server_has_date_and_machine_beside_it(demo: Server, tmp_path: Path) -> None:
    out, picture = tmp_path / "result.jsonl", tmp_path / "result.svg"
    command = [PELTON, "bench", "serve", "--url", demo.url, "--scenario", "8/4", "--concurrency", "1,2", "--json", out]
    ran = subprocess.run([*command, "--plot", picture], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    for cell in cells:
        assert abs(date.fromisoformat(cell["date"]) - datetime.now(UTC).date()) <= timedelta(days=1)
        assert cell["machine"].endswith(" cores"), cell
        assert cell["output_tokens"] == 4 * cell["answered"] > 0
    assert picture.read_text().startswith("<svg")
