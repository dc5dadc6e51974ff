"""The servers that are compared: how each is started, and what it must have to be there."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

READY_WITHIN_S: Final = 600.0  # the first start of a model compiles, on some
TRY_EVERY_S = 0.05
# For vLLM and Pelton: 128 requests of 576 tokens of the largest model fit (beside its weights, in some 12 GiB of free memory). llama.cpp
# plans by slots, transformers by itself.
KV_GIB: Final = 9
PELTON: Final = Path(sys.executable).with_name("pelton")


class NotStartedError(Exception):
    """A server that ended, or was not ready in time."""


@dataclass(frozen=True)
class Start:
    """What a server is started for."""

    checkpoint: Path
    port: int
    threads: int
    environments: Path

    @property
    def name(self) -> str:
        """How requests ask for the model."""
        return self.checkpoint.name


@dataclass(frozen=True)
class Peer:
    """One server in one precision."""

    name: str
    command: Callable[[Start], list[str]]
    """What it runs, relative to the folder of environments; of Pelton, and of nobody else, empty."""
    program: str
    """A GGUF file's quantisation, if it reads one."""
    gguf: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    """Which kind of weights it is compared in: peers of one kind do the same work."""
    weights: str = "bf16"
    """The path that answers 200 once it serves."""
    ready: str = "/health"
    """Whether prompts may be token ids."""
    takes_ids: bool = True

    def is_installed(self, environments: Path) -> bool:
        """Whether it can be started."""
        return self.is_pelton or (environments / self.program).exists()

    @property
    def is_pelton(self) -> bool:
        """Whether it is what the others are compared with."""
        return not self.program


def _pelton(*flags: str) -> Callable[[Start], list[str]]:
    def command(start: Start) -> list[str]:
        server = [
            str(PELTON),
            "serve",
            str(start.checkpoint),
            "--port",
            str(start.port),
            "--threads",
            str(start.threads),
            "--kv-memory",
            f"{KV_GIB}GiB",
        ]
        return [*server, "--served-model-name", start.name, *flags]

    return command


def _vllm(start: Start) -> list[str]:
    return [
        str(start.environments / "vllm/bin/vllm"), "serve", str(start.checkpoint), "--served-model-name", start.name,
        "--host", "127.0.0.1", "--port", str(start.port), "--dtype", "bfloat16", "--max-model-len", "2048",
    ]  # fmt: skip


# Slots, and room for as many tokens: what fits beside the weights, and the longest scenario (1,088 tokens) in each.
SLOTS: Final = {"tiny": 128, "qwen06b": 32, "llama1b": 8}
TOKENS_PER_SLOT: Final = 1280


def _llama(quantisation: str) -> Callable[[Start], list[str]]:
    def command(start: Start) -> list[str]:
        slots = SLOTS[start.name]
        return [
            str(start.environments / "llama/bin/llama-server"), "-m", str(start.checkpoint / f"weights-{quantisation}.gguf"),
            "-a", start.name, "--host", "127.0.0.1", "--port", str(start.port), "-t", str(start.threads),
            "-np", str(slots), "-c", str(slots * TOKENS_PER_SLOT), "-no-kvu", "--cache-ram", "0", "--no-webui",
        ]  # fmt: skip

    return command


def _transformers(start: Start) -> list[str]:
    return [
        str(start.environments / "transformers/bin/transformers"), "serve", str(start.checkpoint), "--host", "127.0.0.1",
        "--port", str(start.port), "--device", "cpu", "--dtype", "bfloat16", "--continuous-batching",
    ]  # fmt: skip


OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
LLAMA: Final = "llama/bin/llama-server"
PEERS: Final = [
    Peer("pelton", _pelton(), "", ready="/readyz"),
    Peer("vllm", _vllm, "vllm/bin/vllm", env={**OFFLINE, "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB)}),
    Peer("llama-bf16", _llama("bf16"), LLAMA, gguf="bf16"),
    Peer("transformers", _transformers, "transformers/bin/transformers", env=OFFLINE, takes_ids=False),
    Peer("pelton-int8", _pelton("--quantize", "int8"), "", weights="8 bits", ready="/readyz"),
    Peer("llama-q8_0", _llama("q8_0"), LLAMA, gguf="q8_0", weights="8 bits"),
    Peer("pelton-int4", _pelton("--quantize", "int4"), "", weights="4 bits", ready="/readyz"),
    Peer("llama-q4_0", _llama("q4_0"), LLAMA, gguf="q4_0", weights="4 bits"),
]


@dataclass(frozen=True)
class Server:
    """One that is ready."""

    url: str
    session: int
    """Of it and all that it has started."""
    ready_s: float
    """Since it was started."""


@dataclass(frozen=True)
class WorkerTime:
    """What Pelton's worker did so far with the time in which it had requests."""

    computing_s: float
    occupied_s: float

    @classmethod
    def now(cls, url: str) -> WorkerTime | None:
        """As its metrics say; None: it does not answer."""
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
                text = response.read().decode()
        except OSError:
            return None
        computing, occupied = (
            re.findall(rf"^pelton_worker_{what}_seconds_total{{.*}} (.*)$", text, re.MULTILINE)
            for what in ("computing", "occupied")
        )
        return cls(float(computing[0]), float(occupied[0]))

    def idle_since(self, before: WorkerTime) -> float:
        """The share in which it waited for a step."""
        return 1 - (self.computing_s - before.computing_s) / max(self.occupied_s - before.occupied_s, 1e-9)


@contextlib.contextmanager
def running(peer: Peer, start: Start, log: Path) -> Iterator[Server]:
    """A server that is ready; it is ended at the end. What it prints goes to `log`."""
    threads = {"OMP_NUM_THREADS": str(start.threads), "VLLM_CPU_OMP_THREADS_BIND": f"0-{start.threads - 1}"}
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            peer.command(start), stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **threads, **peer.env},
            start_new_session=True,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{start.port}"
            _wait_ready(process, url + peer.ready, log)
            yield Server(url, process.pid, time.monotonic() - began)
        finally:
            _end(process)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until it says that it is."""
    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise NotStartedError(f"it ended with {process.returncode} while it started; its last words are in {log}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
            if response.status == 200:
                return
        time.sleep(TRY_EVERY_S)
    raise NotStartedError(f"it was not ready within {READY_WITHIN_S:.0f} s; its last words are in {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and what it has started, which has a session of its own."""
    for number, patience_s in ((signal.SIGTERM, 60), (signal.SIGKILL, 60)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience_s)
            return
