"""Connections that other servers stumble over: silent ones, broken ones, those that a shutdown finds in mid-answer."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Server, serving

COMPLETIONS = "/v1/completions"


def test_silent_connections_keep_nobody_out(checkpoints: Path) -> None:
    with (
        serving(checkpoints / "llama-gqa", "--max-connections", "8") as server,
        contextlib.ExitStack() as open_sockets,
    ):
        silent = [
            open_sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            for _ in range(24)
        ]
        for client, said in zip(silent, [b"", b"P", b"PRI * HT"] * 8, strict=True):
            with contextlib.suppress(ConnectionError):  # it may have made room already
                client.sendall(said)
        assert server.get("/livez").status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest one made room"
        # One that speaks is not silent any more.
        with httpx.Client(base_url=server.url, timeout=60) as client:
            before = client.get("/livez")
            for _ in range(24):
                open_sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            assert client.get("/livez").status_code == before.status_code == 200


@pytest.mark.parametrize(
    ("request_bytes", "status", "code_name"),
    [
        (b"GARBAGE\r\n\r\n", 400, "bad_request_head"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400, "bad_request_head"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414, "uri_too_long"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431, "headers_too_large"),
        (b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n", 400, "missing_host"),
    ],
)
def test_a_request_that_cannot_be_parsed_gets_the_error_body(
    server: Server, request_bytes: bytes, status: int, code_name: str
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(request_bytes)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
    error = json.loads(body)["error"]
    assert (error["code"], error["code_name"]) == (status, code_name)


def test_a_packed_body_is_refused(server: Server) -> None:
    response = httpx.post(
        server.url + COMPLETIONS, content=b"\x1f\x8b", headers={"content-encoding": "gzip"}, timeout=60
    )
    assert response.status_code == 415
    assert response.json()["error"]["code_name"] == "wrong_content_encoding"
    assert "gzip" in response.json()["error"]["message"]


def test_a_text_beyond_the_context_can_be_counted(server: Server) -> None:
    counted = server.post("/tokenize", {"prompt": "wheel " * 50_000})
    assert counted.status_code == 200, counted.text
    assert counted.json()["count"] > counted.json()["max_model_len"]


def test_a_drain_answers_and_what_it_cuts_is_told(checkpoints: Path) -> None:
    body = {"prompt": "The wheel", "max_tokens": 500, "ignore_eos": True, "n": 128}
    ends: dict[str, Any] = {}

    def stream() -> None:
        with server.stream(COMPLETIONS, {**body, "stream": True}) as response:
            ends["stream"] = [line for line in response.iter_lines() if line]

    def whole() -> None:
        ends["whole"] = server.post(COMPLETIONS, body)

    def again() -> bool:
        """Says it once more; a second signal soon after the first is the same wish."""
        server.process.send_signal(signal.SIGTERM)
        return server.process.poll() is not None

    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--drain-timeout", "300s") as server:
        clients = [threading.Thread(target=target) for target in (stream, stream, whole, whole)]
        for client in clients:
            client.start()
        server.wait_until("they run", lambda: server.metric("vllm:num_requests_running") > 128)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until("it drains", lambda: server.get("/readyz").status_code == 503)
        assert server.get("/livez").status_code == 200
        assert server.get("/readyz").json()["status"] == "draining"
        refused = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})
        assert refused.status_code == 503
        assert refused.json()["error"]["code_name"] == "shutting_down"
        assert int(refused.headers["retry-after"]) >= 1
        server.wait_until("it ends", again)
        for client in clients:
            client.join(timeout=60)
    *_, error, done = ends["stream"]
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["code_name"] == "shutting_down"
    assert ends["whole"].status_code == 503
    assert ends["whole"].json()["error"]["code_name"] == "shutting_down"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST /nowhere", 404),
        ("DELETE /v1/models", 405),
        ("POST /v1/completions", 415),
        ("GET /livez", 200),
    ],
)
def test_a_connection_goes_on_behind_a_body_that_nobody_read(server: Server, head: str, status: int) -> None:
    kind = "content-type: text/plain\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        replies = client.makefile("rb")
        for _ in range(3):
            client.sendall(f"{head} HTTP/1.1\r\nhost: x\r\n{kind}content-length: 9000\r\n\r\n".encode())
            client.sendall(b"x" * 9000)
            assert read_reply(replies) == (status, False)
        client.sendall(f"{head} HTTP/1.1\r\nhost: x\r\n{kind}content-length: 900000\r\n\r\n".encode())
        assert read_reply(replies) == (status, True), "so much is not read, and its client knows"
        assert replies.read() == b""


def read_reply(replies: Any) -> tuple[int, bool]:
    """The status of the next response, and whether it is the last of its connection."""
    status = int(replies.readline().split()[1])
    headers = {}
    while line := replies.readline().decode().strip():
        name, value = line.split(":", 1)
        headers[name.lower()] = value.strip().lower()
    replies.read(int(headers["content-length"]))
    return status, headers.get("connection") == "close"
