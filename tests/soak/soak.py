"""A server under a load of all kinds for as long as one likes: what it takes must not grow, and all must come home.

    .venv/bin/python tests/soak/soak.py --minutes 10 --json bench/results/soak-DATE.json
    .venv/bin/python tests/soak/soak.py --kill-every 20 -- --kv-host-memory 64MiB --kv-disk /var/tmp/kv

Clients stream, read whole answers, leave in the middle, ask for several answers, for log-probabilities, for JSON of a schema, for
nonsense. Every few seconds each process's resident memory and descriptors are read. It fails if memory grows by more than its own
noise, if a descriptor is left, or if a block or a slot is still held when nobody asks for anything any more. With `--kill-every`
a worker is killed so often; no client may notice, and the router's memory alone is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.server import Server, open_files, rss_bytes, serving

MIB = 1 << 20
CLIENTS = 16
WARM_UP = 0.25  # of the time: caches, pools and connections reach their size
NOISE_LEAST = 4 * MIB  # what one allocation of a buffer may show at any time
STATUS_BAD = 400


@dataclass
class Counts:
    """What the clients have done."""

    whole: int = 0
    streamed: int = 0
    left: int = 0
    constrained: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """One reading of one process."""

    second: float
    rss: int
    files: int


@dataclass(frozen=True)
class Trend:
    """How a process's memory went, after the warm-up."""

    process: str
    first_mib: float
    last_mib: float
    growth_mib: float  # of the fitted line, over the whole time
    noise_mib: float  # what of that could be chance
    files_before: int
    files_after: int

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within what chance explains."""
        return self.growth_mib <= self.noise_mib


class Client(threading.Thread):
    """Asks for one thing after another until it is told to stop."""

    def __init__(self, server: Server, seed: int, counts: Counts, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.server, self.random, self.counts, self.over = server, random.Random(seed), counts, over
        self.client = httpx.Client(base_url=server.url, timeout=300)

    def run(self) -> None:
        acts = [self.whole, self.whole, self.stream, self.stream, self.constrained, self.leave, self.refused]
        while not self.over.is_set():
            try:
                self.random.choice(acts)()
            except Exception as error:
                self.counts.failed.append(f"{type(error).__name__}: {error}"[:300])
        self.client.close()

    def body(self) -> dict[str, Any]:
        """A chat; every other one begins like others do."""
        words = [f"word{self.random.randrange(10_000)}" for _ in range(self.random.choice([2, 20, 200]))]
        shared = "You answer questions about a shop. " * 30 if self.random.random() < 0.5 else ""
        return {
            "messages": [{"role": "system", "content": shared}, {"role": "user", "content": " ".join(words)}],
            "max_tokens": self.random.choice([1, 16, 64]),
            "temperature": self.random.choice([0, 1]),
            "n": self.random.choice([1, 1, 1, 3]),
            "logprobs": self.random.random() < 0.2,
            "presence_penalty": self.random.choice([0, 0, 0.5]),
            "user": f"user-{self.random.randrange(1000)}",
        }

    def whole(self) -> None:
        answer = self.client.post("/v1/chat/completions", json=self.body())
        answer.raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] > 0
        self.counts.whole += 1

    def stream(self) -> None:
        with self.client.stream("POST", "/v1/chat/completions", json={**self.body(), "stream": True}) as answer:
            answer.raise_for_status()
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]", lines[-1]
        self.counts.streamed += 1

    def constrained(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "size": {"enum": [self.random.randrange(50), 7]},
            },
            "required": ["name", "size"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        answer = self.client.post(
            "/v1/chat/completions", json={**self.body(), "n": 1, "max_tokens": 200, "response_format": form}
        )
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            assert set(json.loads(choice["message"]["content"])) == {"name", "size"}
        self.counts.constrained += 1

    def leave(self) -> None:
        body = {**self.body(), "stream": True, "max_tokens": 512}
        with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines(), None)
        self.counts.left += 1

    def refused(self) -> None:
        answer = self.client.post("/v1/chat/completions", json={**self.body(), "temperature": "hot"})
        assert answer.status_code == STATUS_BAD, answer.text
        self.counts.refused += 1


class Killer(threading.Thread):
    """Kills a worker, any one, as soon as all are ready again and so many seconds have passed."""

    def __init__(self, server: Server, every_s: float, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.server, self.every_s, self.over, self.killed = server, every_s, over, 0
        self.workers = len(server.worker_pids())

    def run(self) -> None:
        while not self.over.wait(self.every_s):
            if self.server.metric("pelton_workers_ready") == self.workers:
                os.kill(random.choice(self.server.worker_pids()), signal.SIGKILL)
                self.killed += 1


def trend(name: str, samples: list[Sample]) -> Trend:
    """The line through a process's memory. Chance: three standard errors of that line, and at least one buffer."""
    seconds, sizes = [s.second for s in samples], [s.rss / MIB for s in samples]
    slope, base = statistics.linear_regression(seconds, sizes)
    residuals = [size - (base + slope * second) for second, size in zip(seconds, sizes, strict=True)]
    spread = statistics.pstdev(seconds) * len(samples) ** 0.5
    error = statistics.pstdev(residuals) / spread if spread else 0.0
    span = seconds[-1] - seconds[0]
    noise = max(3 * error * span, NOISE_LEAST / MIB)
    return Trend(name, sizes[0], sizes[-1], slope * span, noise, samples[0].files, samples[-1].files)


def soak(minutes: float, every_s: float, flags: list[str], kill_every_s: float = 0) -> dict[str, Any]:
    """Runs the load and says what was found."""
    counts, over = Counts(), threading.Event()
    with serving(None, *flags) as server:
        names = {server.process.pid: "router"}
        killer = Killer(server, kill_every_s, over)
        if kill_every_s:
            killer.start()
        else:
            names |= {pid: f"worker {i}" for i, pid in enumerate(server.worker_pids())}
        files_before = {pid: open_files(pid) for pid in names}
        clients = [Client(server, seed, counts, over) for seed in range(CLIENTS)]
        for client in clients:
            client.start()
        samples: dict[int, list[Sample]] = {pid: [] for pid in names}
        start = time.monotonic()
        while (second := time.monotonic() - start) < minutes * 60:
            for pid in names:
                samples[pid].append(Sample(second, rss_bytes(pid), open_files(pid)))
            say(second, minutes, counts, server)
            time.sleep(every_s)
        over.set()
        for client in clients:
            client.join()
        if kill_every_s:
            killer.join()
            server.wait_until("workers are back", lambda: server.metric("pelton_workers_ready") == killer.workers, 120)
        server.wait_until("all blocks come home", lambda: server.metric("pelton_blocks_held") == 0, 60)
        server.wait_until("connections are closed", lambda: all(open_files(p) <= files_before[p] for p in names), 60)
        left = {name: server.metric(name) for name in ("vllm:num_requests_running", "vllm:num_requests_waiting")}
        restarts = server.metric("pelton_worker_restarts_total")
        tokens = server.metric("pelton_generated_tokens_total")
    warm = {pid: [s for s in all_ if s.second >= minutes * 60 * WARM_UP] for pid, all_ in samples.items()}
    trends = [trend(names[pid], warm[pid]) for pid in names]
    is_sound = (
        all(t.is_flat for t in trends) and not counts.failed and not any(left.values()) and restarts == killer.killed
    )
    return {
        "machine": f"{platform.machine()}, {platform.system()}",
        "date": time.strftime("%Y-%m-%d"),
        "minutes": minutes,
        "flags": flags,
        "clients": CLIENTS,
        "did": asdict(counts),
        "generated_tokens": tokens,
        "processes": [{**asdict(t), "is_flat": t.is_flat} for t in trends],
        "left": left,
        "workers_killed": killer.killed,
        "worker_restarts": restarts,
        "is_sound": is_sound,
    }


def say(second: float, minutes: float, counts: Counts, server: Server) -> None:
    """A line of progress."""
    rss = [rss_bytes(pid) / MIB for pid in (server.process.pid, *server.worker_pids())]
    done = counts.whole + counts.streamed + counts.left + counts.constrained + counts.refused
    sizes = " + ".join(f"{size:.1f}" for size in rss)
    print(
        f"{second:7.0f} of {minutes * 60:.0f} s: {done} requests, {len(counts.failed)} failed, {sizes} MiB", flush=True
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, help="seconds between readings")
    parser.add_argument("--kill-every", type=float, default=0, help="seconds between a worker's deaths; 0: none dies")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("flags", nargs="*", help="of `pelton serve`, after --")
    arguments = parser.parse_args()
    found = soak(arguments.minutes, arguments.every, arguments.flags, arguments.kill_every)
    text = json.dumps(found, indent=1)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text)
    return 0 if found["is_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
