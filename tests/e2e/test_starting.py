"""From the command to the first token: the port answers at once, readiness tells its reasons, refusals say what to change."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from support.server import PELTON, Server


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
