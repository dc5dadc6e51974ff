"""Front ends beside an engine that computes nothing: Pelton's router, vLLM's Python front end and vLLM's Rust front end (goals W1, W2, W6).

    bench/cpu/peers/install.sh FOLDER vllm vllm-rs                         once: the peers
    .venv/bin/python bench/frontend/frontend.py FOLDER --json RESULT.json  [--rounds 5] [--servers pelton vllm vllm-rs] [--note TEXT]
                       [--streams 64] [--w1-requests 40] [--only servers|tokeniser] [--tiny]

All servers are started once, idle beside each other (what the others took meanwhile stands with each cell), and asked in turns, the same
prompts in a round. Their engines draw the tokens of a text, and a step takes as long as the bench says: 10 ms, so that every token is a write
of its own everywhere, as with a model; or no time at all, so that a front end that falls behind puts several tokens into an event.

W2: processor seconds of the front end per streamed token (prompts among them), of vLLM's over Pelton's. Of Pelton that is the router, which
plans and commits steps too; vLLM does that in its engine's process, so `all`, front end and engine together, stands beside it.
W1: from the first byte of a request to the engine's hearing of the first step with it, by the machine's monotonic clock, one request at a time.
W6: `tokenise.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import checkpoint
import tokenise
from front_ends import MODEL, NAMES, RUNNING, Server, is_there, running
from load import message
from made_up import Board
from pelton.machine import description
from tokenizers import Tokenizer

HERE: Final = Path(__file__).parent
SHAPES: Final = {"1024/256": (1024, 256), "32/256": (32, 256)}
PACES_MS: Final = (10.0, 0.0)
TINY_PACES_MS: Final = (1.0, 0.0)
W1_PROMPT: Final = 1024
REQUESTS: Final = 2  # of each stream
TINY_CODE_BYTES: Final = 100_000


class Prompts:
    """Pieces of the documents. Each begins with a number of its own, so that none finds another's prefix."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids = tokenizer.encode(checkpoint.prose()).ids
        self._numbers = itertools.count(random.SystemRandom().randrange(1 << 32))
        self._draw = random.Random(7)

    def fresh(self, tokens: int) -> str:
        """Of about so many tokens."""
        at = self._draw.randrange(len(self._ids) - tokens)
        text: str = self._tokenizer.decode(self._ids[at : at + tokens - 8])
        return f"{next(self._numbers):x} {text}"


@dataclass
class Run:
    """One run of this program."""

    options: argparse.Namespace
    prompts: Prompts
    servers: list[tuple[Server, Board]]
    cells: list[dict[str, Any]] = field(default_factory=list)
    firsts: list[dict[str, Any]] = field(default_factory=list)

    def round(self, number: int) -> None:
        """Every cell on every server once; who is first changes."""
        turn = number % len(self.servers)
        order = self.servers[turn:] + self.servers[:turn]
        for (shape, (prompt, output)), pace in itertools.product(SHAPES.items(), self.options.paces_ms):
            asked = [[self.prompts.fresh(prompt) for _ in range(REQUESTS)] for _ in range(self.options.streams)]
            for server, board in order:
                self.cell(server, board, {"shape": shape, "step_ms": pace, "round": number}, asked, output)
        asked_alone = [self.prompts.fresh(W1_PROMPT) for _ in range(self.options.w1_requests)]
        for server, board in order:
            board.set_pace(0)
            self.firsts.append({"server": server.name, "round": number, **first_bells(server, board, asked_alone)})
            print(f"{number}  W1        {server.name:<8} {self.firsts[-1]}", flush=True)

    def cell(self, server: Server, board: Board, what: dict[str, Any], asked: list[list[str]], output: int) -> None:
        """The same load for all."""
        board.set_pace(what["step_ms"])
        others = [other for other, _ in self.servers if other is not server]
        job = json.dumps({"port": server.port, "model": MODEL, "output": output, "prompts": asked})
        before, idle = server.usage(), [other.usage() for other in others]
        ran = subprocess.run([sys.executable, HERE / "load.py"], input=job, capture_output=True, text=True, check=True)
        used = server.usage().since(before)
        idle_s = sum(sum(asdict(one.usage().since(then)).values()) for one, then in zip(others, idle, strict=True))
        report = json.loads(ran.stdout)
        tokens = max(report["tokens"], 1)
        cell = {
            "server": server.name, **what, **{name: round(value, 4) if isinstance(value, float) else value for name, value in report.items()},
            "front_end_us": round(used.front_end / tokens * 1e6, 3), "engine_us": round(used.engine / tokens * 1e6, 3),
            "all_us": round((used.front_end + used.engine + used.rest) / tokens * 1e6, 3),
            "idle_servers_s": round(idle_s, 3), "load_average": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        self.cells.append(cell)
        trouble = f"  {report['errors']}" if report["errors"] else ""
        print(
            f"{what['round']}  {what['shape']:<9} step {what['step_ms']:>4.0f} ms  {server.name:<8} {cell['front_end_us']:>7.1f} us a token"
            f"  engine {cell['engine_us']:>6.1f}  {tokens / report['wall_s']:>8.0f} tok/s  {tokens / max(report['events'], 1):>5.1f} tokens an event"
            f"  TTFT {report['ttft_p50_ms'] or 0:>6.1f} ms{trouble}",
            flush=True,
        )


def first_bells(server: Server, board: Board, asked: list[str]) -> dict[str, float]:
    """W1, one request after the other on one connection."""
    took: list[float] = []
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, prompt in enumerate(asked):
            request, noted = message(server.port, MODEL, prompt, 1), board.arrivals
            began = time.monotonic_ns()
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                piece = connection.recv(1 << 16)
                assert piece, answer
                answer += piece
            assert board.arrivals == noted + 1, "one step is the first of one request"
            if number > 0:  # the first one warms the connection
                took.append((board.arrival_ns(noted) - began) / 1e6)
    took.sort()
    return {"p50_ms": round(median(took), 3), "p10_ms": round(took[len(took) // 10], 3), "p90_ms": round(took[len(took) * 9 // 10], 3)}  # fmt: skip


def summary(run: Run) -> dict[str, Any]:
    """Medians over the rounds, and the peers' over Pelton's: the median of the rounds' own ratios."""
    result: dict[str, Any] = {"w1_ms": {}, "w2": []}
    names = [server.name for server, _ in run.servers]
    for name in names:
        of_it = [first for first in run.firsts if first["server"] == name]
        result["w1_ms"][name] = {key: median(first[key] for first in of_it) for key in ("p50_ms", "p10_ms", "p90_ms")}
    for shape, pace in itertools.product(SHAPES, run.options.paces_ms):
        cells = {
            name: [c for c in run.cells if (c["server"], c["shape"], c["step_ms"]) == (name, shape, pace)]
            for name in names
        }
        line: dict[str, Any] = {"shape": shape, "step_ms": pace, "trouble": trouble_of(cells)}
        for key in ("front_end_us", "engine_us", "all_us"):
            line[key] = {name: round(median(cell[key] for cell in of_it), 2) for name, of_it in cells.items()}
        line["tokens_per_s"] = {n: round(median(c["tokens"] / c["wall_s"] for c in of)) for n, of in cells.items()}
        line["tokens_per_event"] = {n: round(median(c["tokens"] / c["events"] for c in of), 2) for n, of in cells.items()}  # fmt: skip
        if "pelton" in cells:
            for key in ("front_end_us", "all_us"):
                line[f"{key}_over_pelton"] = {
                    name: round(median(peer[key] / ours[key] for ours, peer in zip(cells["pelton"], of_it, strict=True)), 2)
                    for name, of_it in cells.items() if name != "pelton"
                }  # fmt: skip
        result["w2"].append(line)
    return result


def trouble_of(cells: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Why a comparison would not be one."""
    found = [f"{name}: {cell['errors']}" for name, of_it in cells.items() for cell in of_it if cell["errors"]]
    found += [f"{name}: other lengths" for name, of_it in cells.items() if any(cell["wrong_lengths"] for cell in of_it)]
    for rounds in zip(*cells.values(), strict=True):
        if len({(cell["tokens"], cell["prompt_tokens"]) for cell in rounds}) > 1:
            found.append(f"round {rounds[0]['round']}: other counts of tokens")
    return found


def machine() -> dict[str, Any]:
    """What this ran on."""
    return {"processor": description(), "python": platform.python_version()}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(options: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """W1 and W2."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = json.dumps(tokenizer.encode(checkpoint.prose()).ids)
    names = [name for name in options.servers if is_there(name, options.peers)]
    for name in sorted(set(options.servers) - set(names)):
        print(f"{name} is left out: it is not in {options.peers}", flush=True)
    with contextlib.ExitStack() as ending:
        servers = []
        for name in names:
            own = folder / name
            own.mkdir()
            (own / "tokens.json").write_text(tokens)
            board = Board(own)
            servers.append((ending.enter_context(running(name, options.peers, model, own, free_port())), board))
            print(f"{name} is ready", flush=True)
        run = Run(options, Prompts(tokenizer), servers)
        if not options.tiny:
            run.round(-1)  # warms everything; not kept
            run.cells.clear()
            run.firsts.clear()
        for number in range(options.rounds):
            run.round(number)
        return {**summary(run), "left_out": sorted(set(options.servers) - set(names)), "cells": run.cells, "w1_rounds": run.firsts}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path, help="where bench/cpu/peers/install.sh has put vllm and vllm-rs")
    parser.add_argument("--servers", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=RUNNING)
    parser.add_argument("--w1-requests", type=int, default=40)
    parser.add_argument("--only", choices=["servers", "tokeniser"], help="W1 and W2, or W6; both if it is not given")
    parser.add_argument("--tiny", action="store_true", help="proves that it runs, and measures nothing")
    parser.add_argument("--note", default="", help="what to know about the machine, kept with the results")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # servers are ended on the way out
    options.peers, options.paces_ms = options.peers.resolve(), PACES_MS
    if options.tiny:
        options.rounds, options.streams, options.w1_requests, options.paces_ms = 1, 2, 3, TINY_PACES_MS
    report: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "note": options.note,
                              "rounds": options.rounds, "streams": options.streams}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="pelton-frontend-") as text:
        folder = Path(text)
        model = folder / "model"
        checkpoint.make(model, *([TINY_CODE_BYTES] if options.tiny else []))
        if options.only != "tokeniser":
            report |= measure(options, model, folder)
        if options.only != "servers":
            report["w6"] = tokenise.compare(model, folder, options.rounds, 4 if options.tiny else None)
    shown = {key: report[key] for key in ("w1_ms", "w2", "w6") if key in report}
    print(json.dumps(shown, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
