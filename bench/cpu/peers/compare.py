"""Pelton beside vLLM, llama.cpp and transformers on this machine's processor: tokens per second, and times to the first token.

    bench/cpu/peers/install.sh FOLDER                                      once: the peers
    .venv/bin/python bench/cpu/peers/compare.py FOLDER --json RESULT.json  [--models tiny qwen06b] [--scenarios S1 S2 S3]
                       [--concurrency 1 8 32 128] [--rounds 5] [--peers NAME ...] [--plot RESULT.svg] [--note TEXT]
                       [--threads 2] [--patience 60] [--earlier RESULT.json ...]

In each round every server is started in its turn, asked all cells, and ended, so that the rounds interleave them. Beside each cell stand
two probes, taken before and after it while the server idles (each cell begins once it does: some prepare memory for a while after they say
that they are ready): how fast all threads read memory, and what a large matrix product reaches, of bfloat16 or of float32, whichever
is faster; and the share of the processors that other
processes took meanwhile, and the processor time that the server took (on a machine that is not quiet, tokens per second of that say more
than tokens per second), and, of Pelton, the share in which its worker waited for a step while it had requests. Where others took more
than a tenth, or a probe moved by more than a tenth, the cell is measured once more; if it happened again, it is marked `disturbed`. Cells whose answers have other lengths than asked for, or errors, do not count. What is compared
are medians over the rounds, with each other and with what the machine allows by the probes (limit.py). A peer that FOLDER does not have, or
that does not start, is left out, and a line says so. A run may be continued: cells and notes of earlier results of the same machine count like
its own (`--rounds 0` only puts them together).

S1: 32 prompt tokens, 64 of output. S2: 512, 64. S3: 1,024 that all prompts share and 32 of their own, 32. Models are made on the spot, of
random weights (models.py). The load generator shares the cores with the server, as with all of them.
"""

from __future__ import annotations

import argparse
import json
import os
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
from limit import tokens_per_s
from others import QUIET, Usage, wait_for_quiet
from pelton import machine
from pelton_kernels import _native, ops
from servers import PEERS, PELTON, NotStartedError, Peer, Server, Start, WorkerTime, running
from text_load import Cell, measure, words_of

HERE: Final = Path(__file__).parent
SCENARIOS: Final = {"S1": (0, 32, 64), "S2": (0, 512, 64), "S3": (1024, 32, 32)}
TOKEN_RANGE: Final = "300..8000"
MOVED: Final = 0.1
AFTER_S: Final = 10.0  # some look for more work for a while after their last request
PROBE_BYTES: Final = 256 << 20
PROBE_SIDE: Final = 2048  # oneDNN's tiles reach three fifths of that rate with 1,024


class Probes:
    """What the machine gives at the moment."""

    def __init__(self, threads: int) -> None:
        ops.set_threads(threads)
        torch.set_num_threads(threads)
        self.memory = _native.ReadProbe(PROBE_BYTES)
        floats = torch.randn(PROBE_SIDE, PROBE_SIDE)
        self.squares = (floats.bfloat16(), floats)  # Intel's processors without tiles multiply floats twice as fast

    def take(self) -> dict[str, float]:
        """Gigabytes and GFLOP per second."""
        read = self.memory.nbytes / _seconds(self.memory.read)
        pairs, floats = (2 * PROBE_SIDE**3 / _seconds(lambda of=of: of @ of) for of in self.squares)
        # A vector has room for twice as many integers of 8 bits as bfloat16, and four times as many as float32.
        gain = max(2 * pairs, 4 * floats) / max(pairs, floats)
        return {
            "read_gbs": round(read / 1e9, 2),
            "gemm_gflops": round(max(pairs, floats) / 1e9, 1),
            "int8_gain": round(gain, 1),
        }


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
    left_out: list[str]
    cells: list[dict[str, Any]]

    def round(self, number: int) -> None:
        """Every model on every server once."""
        for model in self.options.models:
            for peer in self.options.used:
                start = Start(self.options.checkpoints / model, free_port(), self.options.threads, self.options.folder)
                try:
                    self.serve(peer, start, number)
                except NotStartedError as error:
                    self.left_out.append(f"{peer.name} with {start.name}: {error}")
                    print(f"{number}  {start.name:<8} {peer.name} is left out: {error}", flush=True)
                self.keep(number)

    def serve(self, peer: Peer, start: Start, number: int) -> None:
        """One server from its start to its end, and all cells between."""
        with running(peer, start, self.options.logs / f"{peer.name}-{start.name}.log") as server:
            print(f"{number}  {start.name:<8} {peer.name} is ready after {server.ready_s:.1f} s", flush=True)
            if not peer.takes_ids:  # `transformers serve` loads its model when it is first asked
                measure(server.url, Cell(str(start.checkpoint), 0, 8, 1, 1, 0), words_of(start.checkpoint))
            for scenario in self.options.scenarios:
                for concurrency in self.options.concurrency:
                    self.cell(peer, start, server, scenario, concurrency, number)

    def keep(self, number: int) -> None:
        """What there is so far: a run that is cut loses only the server under way."""
        if self.options.json:
            result = {
                "summary": summary(self.cells), "left_out": self.left_out, "rounds": number + 1, "threads": self.options.threads,
                "numerics": ops.numerics_id("cpu", torch.bfloat16), "date": time.strftime("%Y-%m-%d"),
                "machine": f"{machine.description()}, {self.options.threads} threads", "note": self.options.note,
                "cells": self.cells,
            }  # fmt: skip
            self.options.json.write_text(json.dumps(result, indent=1) + "\n")

    def cell(self, peer: Peer, start: Start, server: Server, scenario: str, concurrency: int, number: int) -> None:
        """Measures it, once more if the machine was disturbed; the quieter time of the two counts."""
        attempts = []
        for attempt in range(2 if self.options.patience else 1):
            wait_for_quiet(server.session, self.options.patience)
            before, usage = self.probes.take(), Usage.now(server.session)
            # Prompts of its own each time: none finds another's prefix.
            seed = 1 + attempt + 2 * (number + 1000 * (concurrency + 1000 * list(SCENARIOS).index(scenario)))
            worked = WorkerTime.now(server.url) if peer.is_pelton else None
            report = self.load(peer, start, server.url, scenario, concurrency, seed)
            works = WorkerTime.now(server.url) if worked else None
            worker = {"worker_idle": round(works.idle_since(worked), 4)} if worked and works else {}
            used = Usage.now(server.session)
            others = used.others_since(usage)
            wait_for_quiet(server.session, min(self.options.patience, AFTER_S))
            after = self.probes.take()
            has_moved = any(abs(after[name] / before[name] - 1) > MOVED for name in before)
            attempts.append({
                "others": round(others, 3), "disturbed": has_moved or others > QUIET,
                "server_cpu_s": round(used.server_s - usage.server_s, 3),
                "before": before, "after": after, "report": report, **worker,
            })  # fmt: skip
            if not attempts[-1]["disturbed"]:
                break
        cell = {
            "peer": peer.name, "weights": peer.weights, "model": start.name, "scenario": scenario,
            "concurrency": concurrency, "round": number, "ready_s": round(server.ready_s, 2),
            **min(attempts, key=lambda attempt: (attempt["disturbed"], attempt["others"])),
        }  # fmt: skip
        self.cells.append(cell)
        report, before = cell["report"], cell["before"]
        trouble = f"  {report['errors']} errors: {report['first_error']}" if report["errors"] else ""
        trouble += f"  {report['wrong_lengths']} of another length" if report["wrong_lengths"] else ""
        print(
            f"{number}  {start.name:<8} {scenario} c={concurrency:<4} {peer.name:<13}"
            f" {report['output_tokens_per_s']:>8.1f} tok/s   TTFT {report['ttft_ms']['p50'] or 0:>8.1f} ms"
            f"   {before['read_gbs']:>5.1f} GB/s {before['gemm_gflops']:>6.1f} GFLOP/s  others {cell['others']:>4.0%}"
            f"{'  disturbed' * cell['disturbed']}{trouble}",
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
    """For each cell and kind of weights: each peer's median, and Pelton's over it. Disturbed ones count where a peer has no others."""
    good: dict[tuple[str, str, int, str], dict[str, list[dict[str, Any]]]] = {}
    for cell in cells:
        report = cell["report"]
        if not report["errors"] and not report["wrong_lengths"]:
            key = (cell["model"], cell["scenario"], cell["concurrency"], cell["weights"])
            good.setdefault(key, {}).setdefault(cell["peer"], []).append(cell)
    lines = []
    for (model, scenario, concurrency, weights), peers in good.items():
        counted = {peer: [cell for cell in cells if not cell["disturbed"]] or cells for peer, cells in peers.items()}
        reports = {peer: [cell["report"] for cell in cells] for peer, cells in counted.items()}
        rates = {peer: median(report["output_tokens_per_s"] for report in of_it) for peer, of_it in reports.items()}
        first = {peer: median(report["ttft_ms"]["p50"] for report in of_it) for peer, of_it in reports.items()}
        ours = next((rate for peer, rate in rates.items() if peer.startswith("pelton")), None)
        lines.append({
            "model": model, "scenario": scenario, "concurrency": concurrency, "weights": weights,
            "tokens_per_s": {peer: round(rate, 1) for peer, rate in rates.items()},
            "tokens_per_cpu_s": {
                peer: round(median(cell["report"]["output_tokens"] / max(cell["server_cpu_s"], 0.01) for cell in cells), 1)
                for peer, cells in counted.items()
            },
            "ttft_ms": {peer: round(ms, 1) for peer, ms in first.items()},
            "disturbed": [peer for peer, cells in counted.items() if cells[0]["disturbed"]],
            "of_limit": {
                peer: round(median(map(share_of_limit, cells)), 2)
                for peer, cells in counted.items() if weights == "bf16" or peer.startswith("pelton")
            },
            "worker_idle": {
                peer: round(median(cell["worker_idle"] for cell in cells if "worker_idle" in cell), 4)
                for peer, cells in counted.items() if any("worker_idle" in cell for cell in cells)
            },
            "pelton_over": {
                peer: round(ours / rate, 2) for peer, rate in rates.items() if ours and not peer.startswith("pelton")
            },
        })  # fmt: skip
    return lines


def share_of_limit(cell: dict[str, Any]) -> float:
    """What a cell reached of what the machine allowed just then (`limit.py`)."""
    read, gemm = (max(cell["before"][name], cell["after"][name]) for name in ("read_gbs", "gemm_gflops"))
    gain = max(cell[when]["int8_gain"] for when in ("before", "after"))
    waves = cell["report"]["answered"] / cell["concurrency"]
    most = tokens_per_s(
        cell["model"], cell["weights"], SCENARIOS[cell["scenario"]], cell["concurrency"], waves, read, gemm, gain
    )
    return float(cell["report"]["output_tokens_per_s"]) / most


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
    """Those that are not there yet: in the environment of `transformers`, or, without files for llama.cpp, in this one."""
    formats = [peer.gguf for peer in options.used if peer.gguf]
    for model in options.models:
        folder = options.checkpoints / model
        wanted = ["model.safetensors", "tokenizer.json", *(f"weights-{name}.gguf" for name in formats)]
        if not all((folder / name).exists() for name in wanted):
            python = options.folder / "transformers/bin/python" if formats else Path(sys.executable)
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
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds until others are quiet, at most, before each cell; 0: none, and each once",
    )
    parser.add_argument("--note", default="", help="what to know about the machine, kept with the results")
    parser.add_argument("--earlier", nargs="+", type=Path, default=[], help="results of this machine that are added to")
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

    earlier = [json.loads(path.read_text()) for path in options.earlier]
    for path, result in zip(options.earlier, earlier, strict=True):
        if "cells" not in result:
            parser.error(f"--earlier {path}: it has no `cells`; give what --json of this program wrote")
        left_out += [line for line in result["left_out"] if line not in left_out]
    options.note = "; ".join(filter(None, [*(result["note"] for result in earlier), options.note]))
    run = Compared(options, Probes(options.threads), left_out, [cell for result in earlier for cell in result["cells"]])
    first = 1 + max((cell["round"] for cell in run.cells), default=-1)
    for number in range(first, first + options.rounds):
        run.round(number)
    run.keep(first + options.rounds - 1)
    lines = summary(run.cells)
    for line in lines:
        over = ", ".join(f"{ratio:.2f} x {peer}" for peer, ratio in line["pelton_over"].items())
        over += "".join(
            f"   {share:.2f} of the limit" for peer, share in line["of_limit"].items() if peer.startswith("pelton")
        )
        print(f"{line['model']:<8} {line['scenario']} c={line['concurrency']:<4} {line['weights']:<7} {over}")
    if options.plot:
        plot(lines, options.plot)


if __name__ == "__main__":
    main()
