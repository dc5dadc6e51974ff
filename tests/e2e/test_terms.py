"""Who asks, how urgently, until when, and how much may wait: headers, deadlines, bounds of the queue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Server, serving

COMPLETIONS = "/v1/completions"
LONG = {"prompt": list(range(40, 140)), "max_tokens": 400, "ignore_eos": True}  # takes hundreds of steps


def envelope(response: httpx.Response, status: int, code_name: str) -> dict[str, Any]:
    error = dict(response.json()["error"])
    assert (response.status_code, error["code"], error["code_name"]) == (status, status, code_name), error
    return error


def is_idle(server: Server) -> bool:
    return all(
        server.metric(name) == 0
        for name in (
            "pelton_blocks_held",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "pelton_waiting_tokens",
        )
    )


# Deadlines


@pytest.mark.parametrize("header", ["x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms"])
def test_a_request_whose_time_is_over_ends_and_gives_everything_back(server: Server, header: str) -> None:
    expired = server.metric("pelton_requests_expired_total")
    error = envelope(server.post(COMPLETIONS, LONG, headers={header: "5"}), 504, "deadline_exceeded")
    assert error["message"] == "the request was not finished within 0.005 s"
    assert error["type"] == "TimeoutError"
    assert server.metric("pelton_requests_expired_total") == expired + 1
    server.wait_until("blocks come home", lambda: is_idle(server))


def test_answers_that_end_with_one_whose_time_is_over_count_for_no_client_that_left(server: Server) -> None:
    left = server.metric("pelton_requests_cancelled_total")
    with server.stopped_workers():
        refused = server.post(COMPLETIONS, {**LONG, "n": 3}, headers={"x-request-timeout-ms": "300"})
    envelope(refused, 504, "deadline_exceeded")
    server.wait_until("blocks come home", lambda: is_idle(server))
    assert server.metric("pelton_requests_cancelled_total") == left


def test_how_many_answers_a_request_wants_is_counted_once(server: Server) -> None:
    names = ("vllm:request_params_n_count", "vllm:request_params_n_sum", "vllm:request_params_max_tokens_count")
    before = [server.metric(name) for name in names]
    assert server.post(COMPLETIONS, {"prompt": [5, 9], "max_tokens": 2, "n": 3}).status_code == 200
    assert [server.metric(name) - was for name, was in zip(names, before, strict=True)] == [1, 3, 3]


def test_a_stream_is_told_of_its_end(server: Server) -> None:
    body = {**LONG, "stream": True}
    with server.stopped_workers():
        response = server.post(COMPLETIONS, body, headers={"x-request-timeout-ms": "300"})
    assert response.status_code == 200
    assert '"code_name":"deadline_exceeded"' in response.text.replace(" ", "")
    assert "not finished within 0.3 s" in response.text
    server.wait_until("blocks come home", lambda: is_idle(server))


def test_our_header_goes_before_the_proxys(server: Server) -> None:
    headers = {"x-request-timeout-ms": "60000", "x-envoy-expected-rq-timeout-ms": "1"}
    assert server.post(COMPLETIONS, LONG, headers=headers).status_code == 200


def test_the_servers_own_bound_holds_for_all(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--request-timeout", "20ms") as server:
        for headers in ({}, {"x-request-timeout-ms": "3600000"}):
            error = envelope(server.post(COMPLETIONS, LONG, headers=headers), 504, "deadline_exceeded")
            assert error["message"] == "the request was not finished within 0.02 s"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-request-priority", "high"),
        ("x-request-priority", "2147483648"),
        ("x-request-timeout-ms", "0"),
        ("x-request-timeout-ms", "5s"),
        ("x-envoy-expected-rq-timeout-ms", "-1"),
    ],
)
def test_a_header_that_is_no_number_is_refused_by_its_name(server: Server, header: str, value: str) -> None:
    error = envelope(server.post(COMPLETIONS, {"prompt": "a"}, headers={header: value}), 400, "invalid_value")
    assert error["param"] == header
    assert value in error["message"]


# Order


class Line:
    """Requests to a server that runs one at a time, and the order in which they were answered."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self.pool = pool
        self.order: list[str] = []
        self.answers: list[Future[None]] = []
        self._lock = threading.Lock()

    def ask(self, name: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
        """Returns once the request is in the engine."""
        # Prompts that share nothing, so that nobody waits for another's blocks.
        prompt = [5 + len(self.answers) * 10 + at for at in range(8)]
        body = {"prompt": prompt, "max_tokens": 100, "ignore_eos": True, **fields}
        self.answers.append(self.pool.submit(self._answer, name, headers or {}, body))
        self.server.wait_until(
            f"{name} is there",
            lambda: (
                self.server.metric("vllm:num_requests_running") + self.server.metric("vllm:num_requests_waiting")
                == len(self.answers)
            ),
        )

    def _answer(self, name: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        response = self.server.post(COMPLETIONS, body, headers=headers)
        assert response.status_code == 200, response.text
        with self._lock:
            self.order.append(name)


@contextlib.contextmanager
def line(server: Server) -> Iterator[Line]:
    """Requests asked within the block are answered after it, but none before all have been asked."""
    with ThreadPoolExecutor(8) as pool:
        asked = Line(server, pool)
        with server.stopped_workers():
            asked.ask("first", headers={"x-api-key": "one"})
            yield asked
        for answer in asked.answers:
            answer.result()


@pytest.fixture(scope="module")
def one_by_one(checkpoints: Path) -> Iterator[Server]:
    keys = ["--api-key", "one", "--api-key", "two"]
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--max-running", "1", *keys) as server:
        yield server


def test_a_smaller_priority_goes_first_and_the_field_goes_before_the_header(one_by_one: Server) -> None:
    key = {"x-api-key": "one"}
    with line(one_by_one) as asked:
        asked.ask("by header", headers={**key, "x-request-priority": "5"})
        asked.ask("by none", headers=key)
        asked.ask("by field", headers={**key, "x-request-priority": "5"}, priority=-1)
    assert asked.order == ["first", "by field", "by none", "by header"]


def test_a_key_that_asks_little_is_not_behind_one_that_asks_much(one_by_one: Server) -> None:
    with line(one_by_one) as asked:
        for index in range(3):
            asked.ask(f"much {index}", headers={"x-api-key": "one"})
        asked.ask("little", headers={"x-api-key": "two"})
    assert asked.order.index("little") <= 2, asked.order  # behind the one that ran, and one that was level with it


def test_users_of_a_key_share_what_it_gets(one_by_one: Server) -> None:
    key = {"x-api-key": "one"}
    with line(one_by_one) as asked:
        for index in range(3):
            asked.ask(f"much {index}", headers=key, user="ann")
        asked.ask("little", headers=key, user="bob")
    assert asked.order.index("little") <= 2, asked.order


# Bounds of the queue


def test_each_bound_of_the_queue_refuses_by_its_name(checkpoints: Path) -> None:
    flags = ["--max-running", "1", "--max-waiting", "2", "--max-waiting-tokens", "20"]
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", *flags) as server:
        with line(server) as asked:
            asked.ask("second")

            refused = server.post(COMPLETIONS, {"prompt": list(range(40, 53))})
            error = envelope(refused, 429, "queue_full")
            assert error["message"] == (
                "8 prompt tokens are waiting already and there would be 13 more; allowed (`max-waiting-tokens`): 20"
            )
            assert int(refused.headers["retry-after"]) >= 1
            assert server.metric("pelton_waiting_tokens") == 8

            asked.ask("third")
            refused = server.post(COMPLETIONS, {"prompt": [40]})
            error = envelope(refused, 429, "queue_full")
            assert error["message"] == (
                "2 requests are waiting already and there would be 1 more; allowed (`max-waiting`): 2"
            )
            assert int(refused.headers["retry-after"]) >= 1
        assert server.metric("vllm:admission_rejections_total") == 2
        server.wait_until("all is given back", lambda: is_idle(server))


def test_a_key_that_fills_the_queue_has_to_share_it(checkpoints: Path) -> None:
    flags = ["--max-running", "1", "--max-waiting", "4", "--api-key", "one", "--api-key", "two"]
    body = {"prompt": [40], "max_tokens": 100, "ignore_eos": True}
    with (
        serving(checkpoints / "llama-gqa", "--max-model-len", "512", *flags) as server,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(key: str, **fields: Any) -> Future[httpx.Response]:
            return pool.submit(server.post, COMPLETIONS, {**body, **fields}, headers={"x-api-key": key})

        with server.stopped_workers():
            # The first one runs, and the others wait; the last one of them streams.
            greedy = []
            for index in range(5):
                greedy.append(ask("one", stream=index == 4))
                server.wait_until("it has come", lambda: server.metric("vllm:num_requests_running") == 1)
                server.wait_until("it waits", lambda: server.metric("vllm:num_requests_waiting") == len(greedy) - 1)
            assert ask("one").result().status_code == 429
            modest = [ask("two")]
            pushed_out = greedy.pop().result()
            modest.append(ask("two"))
            error = envelope(greedy.pop().result(), 429, "queue_full")
            needed = "the queue is full, and another API key that had fewer requests in it than this one's {} needed the place"
            assert error["message"] == needed.format(3)
            assert needed.format(4) in pushed_out.text
            assert pushed_out.status_code == 200 or int(pushed_out.headers["retry-after"]) >= 1
            assert ask("two").result().status_code == 429
        answers = [answer.result() for answer in [*greedy, *modest]]
        assert [answer.status_code for answer in answers] == [200] * 5
        assert server.metric("vllm:admission_rejections_total") == 4
        server.wait_until("all is given back", lambda: is_idle(server))


def test_a_wait_that_would_be_too_long_is_refused(checkpoints: Path) -> None:
    flags = ["--max-running", "1", "--max-queue-wait", "10ms"]
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", *flags) as server:
        with line(server) as asked:
            asked.ask("second")
            server.wait_until("a wait is foreseen", lambda: server.metric("pelton_queue_wait_foreseen_seconds") > 0.01)
            error = envelope(server.post(COMPLETIONS, {"prompt": [40]}), 429, "queue_full")
            assert error["message"].startswith("the request would wait for about ")
            assert error["message"].endswith(" s; allowed (`max-queue-wait`): 0.01 s")
        # Nobody waits any more: a new request finds room.
        assert server.post(COMPLETIONS, {"prompt": [40], "max_tokens": 1}).status_code == 200
