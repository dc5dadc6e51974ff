"""From the command to the first token: the port answers at once, readiness tells its reasons, refusals say what to change."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.load import complete
from support.server import PELTON, Server, children, serving


def test_the_port_answers_while_the_model_loads(checkpoints: Path) -> None:
    server = Server(checkpoints / "llama-gqa")
    try:
        seen: list[int] = []
        while 200 not in seen:
            assert server.process.poll() is None, "\n".join(server.log)
            with contextlib.suppress(httpx.TransportError):
                assert server.get("/livez").status_code == 200
                ready = server.get("/readyz")
                seen.append(ready.status_code)
                if ready.status_code == 503:
                    assert ready.json()["reason"], "a 503 says why"
                    refused = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
                    assert refused.status_code in (200, 503), refused.text
                    if refused.status_code == 503:
                        assert int(refused.headers["retry-after"]) >= 1
        assert 503 in seen
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prot", "80"], "--port"),
        (["--port", "99999"], "65535"),
        (["--max-model-len", "lots"], "max-model-len"),
        (["--dtype", "float8"], "bfloat16"),
        (["/no/such/folder"], "/no/such/folder"),
    ],
)
def test_a_wrong_flag_is_refused_with_advice(flags: list[str], says: str) -> None:
    ended = subprocess.run([PELTON, "serve", *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode in (1, 2)
    assert says in ended.stderr, ended.stderr
    assert "panicked" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unknown_variable_is_refused(checkpoints: Path) -> None:
    ended = subprocess.run(
        [PELTON, "serve", str(checkpoints / "llama-gqa")],
        env={"PELTON_PROT": "80", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "PELTON_PORT" in ended.stderr


def test_nothing_in_the_folder_that_a_command_is_given_in_is_run(checkpoints: Path, tmp_path: Path) -> None:
    """B:A7: it may be a model's, from a repository, with modules by the names of those that Pelton imports."""
    for file in (checkpoints / "llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("grpc", "argparse", "torch", "pelton", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    with serving(Path(), "--model-cache-size", "0", before=lambda: os.chdir(tmp_path)) as server:
        assert len(complete(server, [5], max_tokens=3).tokens) == 3
    for words in (["doctor"], ["prepare", ".", "--model-cache", "kept"], ["worker", "--help"]):
        ended = subprocess.run([PELTON, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "was-run").exists()


def test_folders_for_sockets_that_cannot_be_written_are_passed_over(checkpoints: Path, tmp_path: Path) -> None:
    """As behind `su`, which leaves the run-time folder of whoever was there before."""
    if os.geteuid() == 0:  # root writes everywhere but here
        another = Path("/proc/self/fdinfo")
    else:
        (another := tmp_path / "another's").mkdir(mode=0o500)
    with serving(checkpoints / "llama-gqa", env={"XDG_RUNTIME_DIR": str(another)}) as server:
        assert len(complete(server, [5], max_tokens=3).tokens) == 3


def test_doctor_looks_with_the_flags_that_it_is_given() -> None:
    flags = ["--threads", "1", "--memory-limit", "3GiB", "--workers", "2"]
    doctor = subprocess.run([PELTON, "doctor", *flags], capture_output=True, text=True, timeout=120)
    assert "2 workers, each with 1 threads" in doctor.stdout, doctor.stdout
    assert "up to 3.00 GiB of memory" in doctor.stdout, doctor.stdout


def test_doctor_says_what_serve_would_refuse() -> None:
    line = [PELTON, "doctor", "--kv-host-memory", "1000TiB"]
    doctor = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert doctor.returncode == 1
    assert "WRONG: `kv-host-memory` is 1000 TiB" in doctor.stdout, doctor.stdout


def test_doctor_and_config_explain_speak(tmp_path: Path) -> None:
    doctor = subprocess.run([PELTON, "doctor"], capture_output=True, text=True, timeout=120)
    assert doctor.returncode == 0, doctor.stderr
    assert "cores" in doctor.stdout
    file = tmp_path / "pelton.toml"
    file.write_text("[server]\nport = 8123\n")
    explained = subprocess.run(
        [PELTON, "config", "explain", "--config", str(file), "--api-key", "sk-secret"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert explained.returncode == 0, explained.stderr
    line = next(line for line in explained.stdout.splitlines() if "8123" in line)
    assert "pelton.toml" in line
    assert "sk-secret" not in explained.stdout


def test_a_damaged_checkpoint_names_the_tensor(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (checkpoints / "llama-gqa").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["model.layers.0.no_such.weight"] = header.pop("model.layers.1.mlp.up_proj.weight")
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    ended = subprocess.run([PELTON, "serve", str(folder), "--port", "0"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "model.layers.1.mlp.up_proj.weight" in ended.stderr
    assert "model.layers.0.no_such.weight" in ended.stderr


def test_a_vocabulary_that_cannot_be_read_ends_the_start_and_its_worker(checkpoints: Path, tmp_path: Path) -> None:
    """The worker starts while the vocabulary is read."""
    for file in (checkpoints / "llama-gqa").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "no such"}}')
    with started(tmp_path) as (process, sockets):
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert "the tokenizer" in errors, errors
        assert left_by(sockets) == []


@pytest.mark.parametrize("delay_ms", [60, 90, 120, 160, 200, 300])
def test_a_start_that_is_stopped_leaves_nothing(checkpoints: Path, delay_ms: int) -> None:
    """Whether it opens its port, reads the vocabulary or loads the model."""
    with started(checkpoints / "llama-gqa") as (process, sockets):
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode in (0, -signal.SIGTERM), errors  # the latter: it listened to no signal yet
        assert "panicked" not in errors
        assert left_by(sockets) == []


@contextlib.contextmanager
def started(model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """And where it has its sockets."""
    with tempfile.TemporaryDirectory(prefix="start") as sockets:  # a short path: sockets allow no other
        command = [PELTON, "serve", str(model), "--port", "0", "--model-cache-size", "0"]
        folders = {"TMPDIR": sockets, "XDG_RUNTIME_DIR": sockets}
        process = subprocess.Popen(command, env={**os.environ, **folders}, stderr=subprocess.PIPE, text=True)
        try:
            yield process, sockets
        finally:
            process.kill()
            process.communicate()


def left_by(sockets: str) -> list[str]:
    """Sockets and processes of a server that has ended."""
    processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if sockets in command_line(path)]
    return processes + [path.name for path in Path(sockets).iterdir()]


def command_line(path: Path) -> str:
    """Empty: the process has ended."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def maps_torch(pid: int) -> bool:
    """Whether a process has PyTorch in its memory."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_the_second_start_reads_what_the_first_has_kept_and_says_the_same(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--model-cache", str(tmp_path), "--max-model-len", "256")
    answers = []
    for is_kept in (False, True):
        with serving(checkpoints / "llama-gqa", *flags) as server:
            assert maps_torch(server.worker_pid()) != is_kept
            answers.append(complete(server, [5, 9, 77], max_tokens=12).tokens)
            server.wait_until("the model is kept", lambda: list(tmp_path.glob("*.kept")))
    assert answers[0] == answers[1]
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_a_worker_that_died_comes_back_from_what_was_kept(checkpoints: Path, tmp_path: Path) -> None:
    with serving(checkpoints / "llama-gqa", "--model-cache", str(tmp_path), "--max-model-len", "256") as server:
        server.wait_until("the model is kept", lambda: list(tmp_path.glob("*.kept")))
        before = complete(server, [5, 9, 77], max_tokens=12).tokens
        first = server.worker_pid()
        os.kill(first, signal.SIGKILL)
        assert complete(server, [5, 9, 77], max_tokens=12).tokens == before
        assert server.worker_pid() != first
        assert not maps_torch(server.worker_pid())


def test_without_room_nothing_is_kept_and_the_model_runs(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--model-cache", str(tmp_path / "models"), "--model-cache-size", "0")
    with serving(checkpoints / "llama-gqa", *flags) as server:
        assert len(complete(server, [5], max_tokens=3).tokens) == 3
    assert not (tmp_path / "models").exists()


def test_whoever_ends_prepare_ends_all_of_it(checkpoints: Path, tmp_path: Path) -> None:
    line = [PELTON, "prepare", str(checkpoints / "llama-gqa"), "--model-cache", str(tmp_path)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        time.sleep(0.5)  # PyTorch is imported for longer
        assert children(process.pid) == [], "it has become what loads the model"
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
    finally:
        process.kill()


def test_a_prepared_model_starts_as_one_that_was_kept(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--model-cache", str(tmp_path), "--max-model-len", "256")

    def prepare(*more: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        line = [PELTON, "prepare", str(checkpoints / "llama-gqa"), *flags, *more]
        around = {**os.environ, **(env or {})}
        return subprocess.run(line, capture_output=True, text=True, timeout=120, env=around)

    first, second = prepare(), prepare()
    assert (first.returncode, first.stdout[:6]) == (0, "kept: "), first.stderr
    assert (second.returncode, second.stdout[:6]) == (0, "kept a"), second.stderr
    assert first.stdout.split()[1] == second.stdout.split()[2]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        assert not maps_torch(server.worker_pid())
        assert len(complete(server, [5], max_tokens=3).tokens) == 3
    assert len(list(tmp_path.iterdir())) == 1, "the server used it"
    damaged = next(tmp_path.iterdir())
    damaged.write_bytes(b"x" * 64)
    again = prepare()
    assert (again.returncode, again.stdout[:6]) == (0, "kept: "), again.stderr
    elsewhere = prepare(env={"PELTON_WORKER": "unix:///no/such.sock"})
    assert elsewhere.returncode == 2
    assert "run `pelton prepare` there" in elsewhere.stderr
