"""The front ends that are compared: how each is started beside an engine that computes nothing, and which of its processes is which."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from made_up import FOLDER_VARIABLE

HERE: Final = Path(__file__).parent
PELTON: Final = Path(sys.executable).with_name("pelton")
MODEL: Final = "bench"
READY_WITHIN_S: Final = 300.0
# Both get the same bounds: as many requests at once, as many tokens in a step, as much room for KV.
RUNNING: Final = 64
STEP_TOKENS: Final = 4096
KV_GIB: Final = 2
VLLM: Final = "vllm/bin/vllm"
VLLM_RUST: Final = "vllm-rs/vllm-rs"
NAMES: Final = ["pelton", "vllm", "vllm-rs"]


def is_there(name: str, peers: Path) -> bool:
    """Whether it can be started."""
    needed = {"pelton": [], "vllm": [VLLM], "vllm-rs": [VLLM, VLLM_RUST]}[name]
    return all((peers / path).exists() for path in needed)


@dataclass(frozen=True)
class Usage:
    """Seconds of processor time that have been used, by kind of process."""

    front_end: float
    engine: float
    rest: float
    """Processes that start and watch the others; no token passes them."""

    def since(self, before: Usage) -> Usage:
        """What was used between two looks."""
        return Usage(self.front_end - before.front_end, self.engine - before.engine, self.rest - before.rest)


@dataclass(frozen=True)
class Server:
    """One that is ready."""

    name: str
    port: int
    front_end: int
    engine: int
    all: frozenset[int]

    def usage(self) -> Usage:
        """Up to now."""
        rest = sum(_cpu_s(pid) for pid in self.all - {self.front_end, self.engine})
        return Usage(_cpu_s(self.front_end), _cpu_s(self.engine), rest)


@contextlib.contextmanager
def running(name: str, peers: Path, model: Path, folder: Path, port: int) -> Iterator[Server]:
    """A server that is ready, with its engine; all of it is ended at the end. `folder` is its own: the engine's board, the logs."""
    with contextlib.ExitStack() as ending:
        start = _start_pelton if name == "pelton" else _start_vllm
        processes = start(name, peers, model, folder, port, ending)
        _wait_ready(processes, f"http://127.0.0.1:{port}{'/readyz' if name == 'pelton' else '/health'}", folder)
        yield _server(name, port, [process.pid for process in processes])


def _start_pelton(
    _name: str, _peers: Path, model: Path, folder: Path, port: int, ending: contextlib.ExitStack
) -> list[subprocess.Popen[bytes]]:
    address = f"unix://{folder}/worker.sock"
    command = [sys.executable, str(HERE / "pelton_worker.py"), "--listen", address]
    worker = _started(command, {}, folder, "worker.log", ending)
    flags = [
        "--served-model-name",
        MODEL,
        "--worker",
        address,
        "--max-running",
        str(RUNNING),
        "--model-cache-size",
        "0",
    ]
    flags += ["--token-budget", str(STEP_TOKENS), "--kv-memory", f"{KV_GIB}GiB", "--port", str(port)]
    router = _started([str(PELTON), "serve", str(model), *flags], {}, folder, "server.log", ending)
    return [router, worker]


def _start_vllm(
    name: str, peers: Path, model: Path, folder: Path, port: int, ending: contextlib.ExitStack
) -> list[subprocess.Popen[bytes]]:
    command = [
        str(peers / VLLM), "serve", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1",
        "--port", str(port), "--enforce-eager", "--max-num-seqs", str(RUNNING),
        "--max-num-batched-tokens", str(STEP_TOKENS),
        "--distributed-executor-backend", "vllm_executor.MadeUpExecutor",
    ]  # fmt: skip
    env = {
        "PYTHONPATH": str(HERE), "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    if name == "vllm-rs":
        env |= {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(peers / VLLM_RUST)}
    return [_started(command, env, folder, "server.log", ending)]


def _started(
    command: list[str], env: dict[str, str], folder: Path, log: str, ending: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    with (folder / log).open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", FOLDER_VARIABLE: str(folder), **env},
        )  # fmt: skip
    ending.callback(_end, process)
    return process


def _server(name: str, port: int, started: list[int]) -> Server:
    """Finds who is who: Pelton's router and worker were started so; vLLM names its processes."""
    if name == "pelton":
        router, worker = started
        return Server(name, port, router, worker, frozenset(started))
    of_session = [pid for pid in _pids() if _session(pid) == started[0]]
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in of_session}
    engines = [pid for pid, title in titles.items() if "EngineCore" in title]
    fronts = [pid for pid, title in titles.items() if f"/{VLLM_RUST} " in title]
    if name == "vllm":
        fronts = started
    assert len(engines) == len(fronts) == 1, titles
    return Server(name, port, fronts[0], engines[0], frozenset(of_session))


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _cpu_s(pid: int) -> float:
    """User and system time of all its threads, in nanoseconds' steps: the clock that clock_getcpuclockid(3) names."""
    CPUCLOCK_SCHED = 2
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def _wait_ready(processes: list[subprocess.Popen[bytes]], url: str, folder: Path) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        for process in processes:
            if process.poll() is not None:
                raise SystemExit(f"{process.args!r} ended while it started; its last words are in {folder}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
            if response.status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"{url} was not ready within {READY_WITHIN_S:.0f} s; logs are in {folder}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and what it has started, which have a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
            return
