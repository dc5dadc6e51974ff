"""A real `pelton serve` process for a test: started on a free port, watched, ended."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PELTON = Path(sys.executable).with_name("pelton")
READY_WITHIN_S = 120.0
PORTS = itertools.count(20_000 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


def client() -> httpx.Client:
    """A client for one request. httpx's own would make a TLS context each time: 30 ms for what is not used."""
    return httpx.Client(verify=False, trust_env=False, timeout=300)


def free_port() -> int:
    """A port that nobody listens on and that no connection is given: below those, each test process its own thousand."""
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def children(pid: int) -> list[int]:
    """All living descendants of a process."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        for task in Path(f"/proc/{parent}/task").glob("*"):
            with contextlib.suppress(OSError):
                kids = [int(kid) for kid in (task / "children").read_text().split()]
                found += kids
                todo += kids
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def rss_bytes(pid: int) -> int:
    """Resident set of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """File descriptors that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Server:
    """A running server. `url` is its root, `model_name` what it serves."""

    def __init__(
        self,
        model: Path | str | None,
        *flags: str,
        env: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before` runs in the new process, before it becomes the server."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [str(PELTON), "serve", "--port", str(self.port)]
        command += [str(model)] if model is not None else []
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=before,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip())

    @functools.cached_property
    def model_name(self) -> str:
        """The name of the served model."""
        return str(self.get("/v1/models").json()["data"][0]["id"])

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        """One GET."""
        with client() as one:
            return one.get(self.url + path, timeout=60, **kwargs)

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """One POST with a JSON body."""
        with client() as one:
            return one.post(self.url + path, json=body, **kwargs)

    @contextlib.contextmanager
    def stream(self, path: str, body: Any, **kwargs: Any) -> Iterator[httpx.Response]:
        """One POST with a JSON body whose answer is read as it comes."""
        with client() as one, one.stream("POST", self.url + path, json=body, **kwargs) as response:
            yield response

    def wait_ready(self) -> Server:
        """Returns once `/readyz` says 200; fails with the log if the process ends before."""
        give_up = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < give_up:
            if self.process.poll() is not None:
                raise AssertionError("the server ended while starting:\n" + "\n".join(self.log))
            with contextlib.suppress(httpx.TransportError):
                if self.get("/readyz").status_code == 200:
                    return self
            time.sleep(0.02)
        raise AssertionError("the server was not ready in time:\n" + "\n".join(self.log))

    def wait_until(self, what: str, holds: Any, within_s: float = 60.0) -> None:
        """Polls until `holds()` is true."""
        give_up = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < give_up, f"{what}: not within {within_s} s\n" + "\n".join(self.log[-40:])
            time.sleep(0.02)

    def worker_pids(self) -> list[int]:
        """The worker processes, in the order of their start."""
        found = []
        for pid in children(self.process.pid):
            with contextlib.suppress(OSError):
                if b"pelton.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return sorted(found)

    def worker_pid(self) -> int:
        """The worker process."""
        workers = self.worker_pids()
        assert len(workers) == 1, workers
        return workers[0]

    @contextlib.contextmanager
    def stopped_workers(self) -> Iterator[None]:
        """Within the block nothing is computed: what is submitted stays where it is."""
        workers = self.worker_pids()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):  # one that stood still for so long was replaced
                    os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def within_memory(self, most: int) -> Iterator[None]:
        """Within the block the router's resident memory never exceeds what it is now by more bytes than this."""
        folder = Path(f"/proc/{self.process.pid}")

        def said(name: str) -> int:
            lines = (folder / "status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

        try:
            (folder / "clear_refs").write_text("5")  # the highest value begins anew
        except OSError as error:
            pytest.skip(f"this kernel does not tell the highest value of a while: {error}")
        before = said("VmRSS")
        yield
        grown = said("VmHWM") - before
        assert grown <= most, f"resident memory grew by {grown / 2**20:.1f} MiB; allowed: {most / 2**20:.1f}"

    def metric(self, name: str) -> float:
        """The sum of one metric's series."""
        text = self.get("/metrics").text
        values = [float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]
        assert values, f"no metric {name} in:\n{text}"
        return sum(values)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends the server and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return code


@contextlib.contextmanager
def serving(
    model: Path | str | None,
    *flags: str,
    env: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Iterator[Server]:
    """A ready server for a `with` block."""
    server = Server(model, *flags, env=env, before=before)
    try:
        yield server.wait_ready()
    finally:
        server.stop(signal.SIGKILL)


def sse_lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream. httpx's own end at what ends a line in Unicode, too, of which JSON's texts may be full."""
    rest = ""
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    yield rest


def sse(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream, which must end with `[DONE]`."""
    is_done = False
    for line in sse_lines(response):
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            is_done = True
            continue
        yield json.loads(line.removeprefix("data: "))
    assert is_done, "the stream ended without [DONE]"
