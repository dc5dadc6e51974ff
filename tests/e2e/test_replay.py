"""A server records what its scheduler was told; `pelton replay` runs it again and explains every request."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support import server as support
from support.load import prompts, together
from support.server import Server, serving, sse

STREAMS = 24
TOKENS = 256
FLAGS = ["--max-model-len", "512", "--max-running", "8"]


def test_an_incident_replays_bit_for_bit_and_every_request_is_explained(checkpoints: Path, tmp_path: Path) -> None:
    recording = tmp_path / "incident"
    jobs = [{"prompt": p, "max_tokens": TOKENS} for p in prompts(STREAMS, seed=5)]
    with serving(checkpoints / "llama-gqa", *FLAGS, "--record", str(recording)) as server:
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(together, server, jobs)
            server.wait_until("tokens flow", lambda: server.metric("pelton_generated_tokens_total") > 100)
            os.kill(server.worker_pid(), signal.SIGKILL)
            leave_early(server)
            assert len(answers.result()) == STREAMS
        assert server.stop() == 0

    files = sorted(tmp_path.glob("incident.*"))
    assert files
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)

    report = replay(recording)
    assert report["is_exact"], report["notes"]
    assert report["plans"] > TOKENS
    requests = report["requests"]
    assert len(requests) == STREAMS + 1, "each has its story"
    ends = [request["end"] for request in requests]
    assert ends.count("aborted") == 1
    assert all(end == "aborted" or end.startswith("finished") for end in ends), ends
    assert any(request["waited_for_ms"].get("worker", 0) > 0 for request in requests), "a worker was lost"
    assert sum(request["workers_lost"] for request in requests) >= 1, "it took requests with it"
    assert sum(request["waited_for_ms"].get("slot", 0) for request in requests) > 0, "24 wait for 8 slots"
    assert sum(request["completion_tokens"] for request in requests) > STREAMS

    one = pelton_replay(str(recording), "--request", str(requests[0]["request"]))
    assert one.returncode == 0, one
    assert f"request {requests[0]['request']}, at" in one.stdout, one
    unknown = pelton_replay(str(recording), "--request", "999999")
    assert unknown.returncode == 1
    assert "999999 is not in the recording" in unknown.stderr


def test_a_damaged_recording_says_so_and_tells_what_it_can(checkpoints: Path, tmp_path: Path) -> None:
    recording = tmp_path / "incident"
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--record", str(recording)) as server:
        together(server, [{"prompt": p, "max_tokens": 8} for p in prompts(1, seed=6)])
        assert server.stop() == 0
    (file,) = tmp_path.glob("incident.*")
    bytes_ = bytearray(file.read_bytes())
    bytes_[-40] ^= 1  # among the last calls
    file.write_bytes(bytes_)
    report = pelton_replay(str(recording), "--json")
    assert report.returncode == 1
    assert "Traceback" not in report.stderr
    assert "panicked" not in report.stderr
    told = json.loads(report.stdout)
    assert not told["is_exact"]
    assert any("DAMAGED" in note["note"] for note in told["notes"])
    assert len(told["requests"]) == 1, "what came before the damage is told"


def test_a_recording_that_cannot_be_made_or_is_not_there_is_told_at_once(checkpoints: Path, tmp_path: Path) -> None:
    server = Server(checkpoints / "llama-gqa", "--record", str(tmp_path / "missing" / "incident"))
    assert server.process.wait(timeout=60) == 1
    server.stop()
    assert any("cannot record to" in line for line in server.log), server.log
    assert pelton_replay(str(tmp_path / "nothing")).returncode == 1


def test_an_answer_is_explained_if_it_was_asked_for(server: Server) -> None:
    body: dict[str, Any] = {"model": server.model_name, "prompt": [9] * 40, "max_tokens": 5, "ignore_eos": True}
    assert "pelton" not in server.post("/v1/completions", body).json()
    whole = server.post("/v1/completions", body, headers={"x-explain": "1"}).json()
    (told,) = whole["pelton"]["explanations"]
    assert told["completion_tokens"] == whole["usage"]["completion_tokens"] == 5
    assert told["cached_tokens"] == whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert told["prompt_tokens"] == 40
    assert told["steps"] >= 5
    assert told["lasted_ms"] >= told["first_token_after_ms"] > 0

    salted = {**body, "cache_salt": "other", "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    with server.stream("/v1/completions", salted, headers={"x-explain": "1"}) as response:
        chunks = list(sse(response))
    explained, last = chunks[-2:]
    assert last["usage"]
    assert explained["choices"] == []
    assert len(explained["pelton"]["explanations"]) == 2
    assert not any("salt" in name for name in explained["pelton"]["explanations"][0]["not_cached"])
    assert server.post("/v1/completions", body, headers={"x-explain": "yes"}).status_code == 400


def test_an_answer_that_a_stop_string_ends_is_explained_too(server: Server) -> None:
    body: dict[str, Any] = {"model": server.model_name, "prompt": [9] * 40, "max_tokens": 30, "temperature": 0}
    text = server.post("/v1/completions", body).json()["choices"][0]["text"]
    stop = next(character for character in text[len(text) // 2 :] if character.isascii() and character.isprintable())
    stopped = server.post("/v1/completions", {**body, "stop": stop}, headers={"x-explain": "1"}).json()
    assert stopped["choices"][0]["stop_reason"] == stop
    assert stopped["choices"][0]["text"] == text[: text.find(stop)]
    (told,) = stopped["pelton"]["explanations"]
    assert 0 < stopped["usage"]["completion_tokens"] <= told["completion_tokens"] <= 30


def leave_early(server: Server) -> None:
    """Begins a long answer and goes away when its first token has come."""
    body = {"model": server.model_name, "prompt": "leaving", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.stream("/v1/completions", body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                break


def replay(recording: Path) -> dict[str, Any]:
    """What `pelton replay --json` says of a recording that is whole."""
    done = pelton_replay(str(recording), "--json")
    assert done.returncode == 0, done
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def pelton_replay(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    return subprocess.run(
        [str(support.PELTON), "replay", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
