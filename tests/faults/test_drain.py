"""A signal to end while requests run: they finish, or are cut at the deadline and told so; the exit code is 0 and nobody is left."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, is_alive, serving

COMPLETIONS = "/v1/completions"


def when_running(server: Server, count: int) -> None:
    server.wait_until("they run", lambda: server.metric("vllm:num_requests_running") >= count)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_what_runs_is_finished_within_the_deadline(checkpoints: Path, how: signal.Signals) -> None:
    body = {"prompt": "The wheel", "max_tokens": 400, "ignore_eos": True, "n": 64}
    answers: list[Any] = []

    def heed() -> None:  # whoever runs the tests may have been started by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    flags = ["--max-model-len", "512", "--drain-timeout", "300s"]
    with serving(checkpoints / "llama-gqa", *flags, before=heed) as server:
        client = threading.Thread(target=lambda: answers.append(server.post(COMPLETIONS, body)))
        client.start()
        when_running(server, 64)
        server.process.send_signal(how)
        client.join(timeout=300)
        assert server.process.wait(timeout=60) == 0
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].json()["usage"]["completion_tokens"] == 64 * 400


def test_a_signal_to_all_processes_at_once_is_heeded_by_the_router_alone(checkpoints: Path) -> None:
    """As systemd and Slurm end what they run: the worker serves until the drain is over."""
    body = {"prompt": "The wheel", "max_tokens": 400, "ignore_eos": True, "n": 64}
    answers: list[Any] = []
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--drain-timeout", "300s") as server:
        client = threading.Thread(target=lambda: answers.append(server.post(COMPLETIONS, body)))
        client.start()
        when_running(server, 64)
        workers = server.worker_pids()
        for pid in [*workers, server.process.pid]:
            os.kill(pid, signal.SIGTERM)
        assert server.metric("pelton_worker_restarts_total") == 0
        client.join(timeout=300)
        assert server.process.wait(timeout=60) == 0
        assert not any("worker lost" in line for line in server.log), "\n".join(server.log)
    assert answers[0].json()["usage"]["completion_tokens"] == 64 * 400
    assert not any(is_alive(pid) for pid in workers)


def test_what_runs_longer_is_cut_and_told(checkpoints: Path) -> None:
    body = {"prompt": "The wheel", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 8}
    lines: list[str] = []

    def read(server: Server) -> None:
        with server.stream(COMPLETIONS, body) as response:
            lines.extend(line for line in response.iter_lines() if line)

    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--drain-timeout", "2s") as server:
        client = threading.Thread(target=read, args=[server])
        client.start()
        when_running(server, 8)
        workers = server.worker_pids()
        for pid in workers:  # so that it is not done in time
            os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        client.join(timeout=60)
        assert server.process.wait(timeout=60) == 0
    *_, error, done = lines
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code_name"] == "shutting_down"
    assert not any(is_alive(pid) for pid in workers)


def test_one_that_was_started_to_outlive_its_terminal_does(checkpoints: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with serving(checkpoints / "llama-gqa", before=ignore) as server:
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)  # in which one that heeds it would have stopped listening
        assert server.post(COMPLETIONS, {"prompt": "The wheel", "max_tokens": 3}).status_code == 200
        assert server.get("/readyz").status_code == 200
        assert server.stop() == 0
