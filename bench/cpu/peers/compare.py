"""Pelton beside vLLM, llama.cpp and transformers on this machine's processor: tokens per second, and times to the first token.

    bench/cpu/peers/install.sh FOLDER                                      once: the peers
    .venv/bin/python bench/cpu/peers/compare.py FOLDER --json RESULT.json  [--models tiny qwen06b] [--scenarios S1 S2 S3]
                       [--concurrency 1 8 32 128] [--rounds 5] [--peers NAME ...] [--plot RESULT.svg] [--note TEXT]

In each round every server is started in its turn, asked all cells, and ended, so that the rounds interleave them. Beside each cell stand two
probes, taken before and after it while the server idles: how fast all threads read memory, and what a large matrix product reaches. A cell
whose probes moved by more than a tenth is measured once more; if they moved again, it is marked `disturbed`. Cells whose answers have other
lengths than asked for, or errors, do not count. What is compared are medians over the rounds. A peer that FOLDER does not have is left out,
and a line says so.

S1: 32 prompt tokens, 64 of output. S2: 512, 64. S3: 1,024 that all prompts share and 32 of their own, 32. Models are made on the spot, of
random weights (models.py). The load generator shares the cores with the server, as with all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from pelton_kernels import _native, ops
from servers import PEERS, PELTON, Peer, Start, running
from text_load import Cell, measure, words_of

HERE: Final = Path(__file__).parent
SCENARIOS: Final = {"S1": (0, 32, 64), "S2": (0, 512, 64), "S3": (1024, 32, 32)}
TOKEN_RANGE: Final = "300..8000"
MOVED: Final = 0.1
PROBE_BYTES: Final = 256 << 20
PROBE_SIDE: Final = 1024


class Probes:
    """What the machine gives at the moment."""

    def __init__(self, threads: int) -> None:
        ops.set_threads(threads)
        torch.set_num_threads(threads)
        self.memory = _native.ReadProbe(PROBE_BYTES)
        self.square = torch.randn(PROBE_SIDE, PROBE_SIDE).bfloat16()

    def take(self) -> dict[str, float]:
        """Gigabytes and GFLOP per second."""
        read = self.memory.nbytes / _seconds(self.memory.read)
        gemm = 2 * PROBE_SIDE**3 / _seconds(lambda: self.square @ self.square)
        return {"read_gbs": round(read / 1e9, 2), "gemm_gflops": round(gemm / 1e9, 1)}


def _seconds(call: Any) -> float:
    call()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


@dataclass
class Compared:
    """One run of this program."""

    options: argparse.Namespace
    probes: Probes
    cells: list[dict[str, Any]]

    def round(self, number: int) -> None:
        """Every model on every server once."""
        for model in self.options.models:
            for peer in self.options.used:
                log = self.options.logs / f"{peer.name}-{model}.log"
                start = Start(self.options.checkpoints / model, free_port(), self.options.threads, self.options.folder)
                with running(peer, start, log) as url:
                    for scenario in self.options.scenarios:
                        for concurrency in self.options.concurrency:
                            self.cell(peer, start, url, scenario, concurrency, number)

    def cell(self, peer: Peer, start: Start, url: str, scenario: str, concurrency: int, number: int) -> None:
        """Measures it, once more if the machine was disturbed."""
        for attempt in range(2):
            before = self.probes.take()
            # Prompts of its own each time: none finds another's prefix.
            seed = 1 + attempt + 2 * (number + 1000 * (concurrency + 1000 * list(SCENARIOS).index(scenario)))
            report = self.load(peer, start, url, scenario, concurrency, seed)
            after = self.probes.take()
            is_disturbed = any(abs(after[name] / before[name] - 1) > MOVED for name in before)
            if not is_disturbed:
                break
        cell = {
            "peer": peer.name, "weights": peer.weights, "model": start.name, "scenario": scenario, "concurrency": concurrency,
            "round": number, "disturbed": is_disturbed, "before": before, "after": after, "report": report,
        }  # fmt: skip
        self.cells.append(cell)
        trouble = f"  {report['errors']} errors: {report['first_error']}" if report["errors"] else ""
        trouble += f"  {report['wrong_lengths']} of another length" if report["wrong_lengths"] else ""
        print(
            f"{number}  {start.name:<8} {scenario} c={concurrency:<4} {peer.name:<13}"
            f" {report['output_tokens_per_s']:>8.1f} tok/s   TTFT {report['ttft_ms']['p50'] or 0:>8.1f} ms"
            f"   {before['read_gbs']:>5.1f} GB/s {before['gemm_gflops']:>6.1f} GFLOP/s{'  disturbed' * is_disturbed}{trouble}",
            flush=True,
        )

    def load(self, peer: Peer, start: Start, url: str, scenario: str, concurrency: int, seed: int) -> dict[str, Any]:
        """Twice as many requests as are under way at once."""
        shared, own, output = SCENARIOS[scenario]
        if not peer.takes_ids:
            cell = Cell(str(start.checkpoint), shared, own, output, concurrency, seed)
            # It goes by its path there; results name it as all others do.
            return {**measure(url, cell, words_of(start.checkpoint)), "model": start.name}
        sizes = f"{shared}+{own}/{output}" if shared else f"{own}/{output}"
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            command = [
                str(PELTON),
                "bench",
                "serve",
                "--url",
                url,
                "--model",
                start.name,
                "--scenario",
                sizes,
                "--fresh",
            ]
            command += ["--concurrency", str(concurrency), "--seed", str(seed), "--token-range", TOKEN_RANGE]
            subprocess.run([*command, "--json", file.name], stdout=subprocess.DEVNULL, check=False)
            report: dict[str, Any] = json.loads(Path(file.name).read_text())
            return report


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each cell and kind of weights: each peer's median, and Pelton's over it."""
    good: dict[tuple[str, str, int, str], dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        report = cell["report"]
        if not report["errors"] and not report["wrong_lengths"]:
            key = (cell["model"], cell["scenario"], cell["concurrency"], cell["weights"])
            good.setdefault(key, {}).setdefault(cell["peer"], []).append(report)
    lines = []
    for (model, scenario, concurrency, weights), peers in good.items():
        rates = {peer: median(report["output_tokens_per_s"] for report in reports) for peer, reports in peers.items()}
        first = {peer: median(report["ttft_ms"]["p50"] for report in reports) for peer, reports in peers.items()}
        ours = next((rate for peer, rate in rates.items() if peer.startswith("pelton")), None)
        lines.append({
            "model": model, "scenario": scenario, "concurrency": concurrency, "weights": weights,
            "tokens_per_s": {peer: round(rate, 1) for peer, rate in rates.items()},
            "ttft_ms": {peer: round(ms, 1) for peer, ms in first.items()},
            "pelton_over": {
                peer: round(ours / rate, 2) for peer, rate in rates.items() if ours and not peer.startswith("pelton")
            },
        })  # fmt: skip
    return lines


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Tokens per second by concurrency, a picture for each model and scenario."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pictures = sorted({(line["model"], line["scenario"]) for line in lines})
    figure, axes = pyplot.subplots(len(pictures), 1, figsize=(8, 3.2 * len(pictures)), squeeze=False)
    names = [peer.name for peer in PEERS]
    for (model, scenario), axis in zip(pictures, axes[:, 0], strict=True):
        curves: dict[str, list[tuple[int, float]]] = {}
        for line in lines:
            if (line["model"], line["scenario"]) == (model, scenario):
                for peer, rate in line["tokens_per_s"].items():
                    curves.setdefault(peer, []).append((line["concurrency"], rate))
        for peer in sorted(curves, key=names.index):
            points = sorted(curves[peer])
            axis.plot(*zip(*points, strict=True), marker="o", label=peer, color=f"C{names.index(peer)}")
        axis.set(title=f"{model}, {scenario}", xscale="log", yscale="log", xlabel="requests at once", ylabel="tokens/s")
        axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_models(options: argparse.Namespace) -> None:
    """Those that are not there yet, in the environment of `transformers`."""
    formats = [peer.gguf for peer in options.used if peer.gguf]
    for model in options.models:
        folder = options.checkpoints / model
        wanted = ["model.safetensors", "tokenizer.json", *(f"weights-{name}.gguf" for name in formats)]
        if not all((folder / name).exists() for name in wanted):
            python = options.folder / "transformers/bin/python"
            if not python.exists():
                sys.exit(f"{python} is needed to make models: {HERE / 'install.sh'} {options.folder} transformers")
            subprocess.run(
                [python, HERE / "models.py", model, "--out", options.checkpoints, "--gguf", *formats], check=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where install.sh has put the peers; models are made there too")
    parser.add_argument("--models", nargs="+", default=["tiny", "qwen06b"], choices=["tiny", "qwen06b", "llama1b"])
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--concurrency", "-c", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument(
        "--peers", nargs="+", default=[peer.name for peer in PEERS], choices=[peer.name for peer in PEERS]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--note", default="", help="what to know about the machine, kept with the results")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # servers are ended on the way out
    options.folder = options.folder.resolve()
    options.checkpoints, options.logs = options.folder / "models", options.folder / "logs"
    options.logs.mkdir(parents=True, exist_ok=True)
    wanted = [peer for peer in PEERS if peer.name in options.peers]
    options.used = [peer for peer in wanted if peer.is_installed(options.folder)]
    left_out = [peer.name for peer in wanted if peer not in options.used]
    for name in left_out:
        print(f"{name} is left out: it is not in {options.folder} ({HERE / 'install.sh'} {options.folder} installs it)")
    make_models(options)

    run = Compared(options, Probes(options.threads), [])
    for number in range(options.rounds):
        run.round(number)
        lines = summary(run.cells)  # kept after each round: a run that is cut loses only the one under way
        if options.json:
            result = {
                "summary": lines, "left_out": left_out, "rounds": number + 1, "threads": options.threads,
                "numerics": ops.numerics_id("cpu", torch.bfloat16), "date": time.strftime("%Y-%m-%d"),
                "machine": f"{platform.machine()}, {options.threads} threads", "note": options.note, "cells": run.cells,
            }  # fmt: skip
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    for line in lines:
        over = ", ".join(f"{ratio:.2f} x {peer}" for peer, ratio in line["pelton_over"].items())
        print(f"{line['model']:<8} {line['scenario']} c={line['concurrency']:<4} {line['weights']:<7} {over}")
    if options.plot:
        plot(lines, options.plot)


if __name__ == "__main__":
    main()
