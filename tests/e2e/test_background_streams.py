"""Responses in the background whose events are streamed: a client may leave and come back, and so may others, at their own pace."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Server, client, serving

RESPONSES = "/v1/responses"
TOKENS = 120
BODY = {
    "input": "The wheel",
    "max_output_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
    "background": True,
    "stream": True,
}

Events = list[dict[str, Any]]


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, each with the name that its data has."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == name
            yield event


@contextlib.contextmanager
def following(server: Server, response: str, after: int | None = None) -> Iterator[httpx.Response]:
    params: dict[str, Any] = {"stream": "true"} | ({} if after is None else {"starting_after": after})
    with client() as one, one.stream("GET", f"{server.url}{RESPONSES}/{response}", params=params) as stream:
        if stream.status_code != 200:
            stream.read()
        yield stream


def followed(server: Server, response: str, after: int | None = None) -> Events:
    """All events of a response, behind one of them, until its stream ends."""
    with following(server, response, after) as stream:
        assert stream.status_code == 200, stream.text
        assert stream.headers["content-type"].startswith("text/event-stream")
        return list(events_of(stream))


def begun(server: Server, **fields: Any) -> str:
    """Starts a response and leaves its stream as soon as its id is known."""
    with server.stream(RESPONSES, {**BODY, **fields}) as stream:
        assert stream.status_code == 200, stream.read()
        first = next(events_of(stream))
    assert (first["type"], first["sequence_number"]) == ("response.created", 0)
    assert first["response"]["background"] is True
    return str(first["response"]["id"])


def retrieved(server: Server, response: str) -> dict[str, Any]:
    answer = server.get(f"{RESPONSES}/{response}")
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def numbers(events: Events) -> list[int]:
    return [event["sequence_number"] for event in events]


def kinds(events: Events) -> list[str]:
    """In their order; how many pieces a text comes in is a matter of time."""
    return [kind for kind, _ in itertools.groupby(event["type"] for event in events)]


def text_of(events: Events) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_a_client_that_left_comes_back_and_has_missed_nothing(server: Server) -> None:
    with server.stream(RESPONSES, BODY) as stream:
        events = events_of(stream)
        before = [next(events) for _ in range(5)]
    response = before[0]["response"]["id"]
    rest = followed(server, response, 4)
    all_events = before + rest
    assert numbers(all_events) == list(range(len(all_events)))
    last = rest[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["usage"]["output_tokens"] == TOKENS
    assert retrieved(server, response) == last["response"]
    # A stream that nobody left, and one that nobody reads before it is over.
    body = {key: value for key, value in BODY.items() if key != "background"}
    with server.stream(RESPONSES, body) as stream:
        plain = list(events_of(stream))
    assert text_of(all_events) == text_of(plain) != ""
    assert kinds(all_events) == kinds(plain)
    assert followed(server, response) == all_events
    end = numbers(all_events)[-1]
    assert followed(server, response, end - 1) == [last]
    assert followed(server, response, end) == followed(server, response, end + 7) == []


def test_readers_follow_side_by_side_and_one_that_sleeps_holds_back_nobody(server: Server) -> None:
    with server.stopped_workers(), ThreadPoolExecutor(8) as pool:
        response = begun(server)
        with following(server, response) as sleeper, following(server, response) as early:
            events = events_of(early)
            beginning = [next(events), next(events)]  # nothing is computed yet
            readers = [pool.submit(followed, server, response, after) for after in [None, 0, 1, 30] * 2]
            go_on(server)
            whole = beginning + list(events)
            assert numbers(whole) == list(range(len(whole)))
            assert whole[-1]["response"]["usage"]["output_tokens"] == TOKENS
            for after, reader in zip([None, 0, 1, 30] * 2, readers, strict=True):
                assert reader.result() == whole[0 if after is None else after + 1 :]
            assert list(events_of(sleeper)) == whole


def stop(server: Server) -> None:
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGSTOP)


def go_on(server: Server) -> None:
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGCONT)


def test_who_reads_is_told_that_a_response_was_cancelled_or_deleted(server: Server) -> None:
    with server.stopped_workers():
        cancelled, deleted = begun(server), begun(server)
        with following(server, cancelled) as of_cancelled, following(server, deleted) as of_deleted:
            answer = server.post(f"{RESPONSES}/{cancelled}/cancel", {})
            with client() as one:
                assert one.delete(f"{server.url}{RESPONSES}/{deleted}").json()["deleted"] is True
            seen = list(events_of(of_cancelled))
            *_, error = events_of(of_deleted)
    assert answer.json()["status"] == "cancelled"
    assert numbers(seen) == [0, 1, 2]
    assert (seen[-1]["type"], seen[-1]["response"]) == ("response.incomplete", answer.json())
    assert (error["type"], error["code"]) == ("error", "response_not_found")
    assert followed(server, cancelled) == seen
    with following(server, deleted) as gone:
        assert gone.status_code == 404
    server.wait_until("they are given up", lambda: server.metric("vllm:num_requests_running") == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_response_ends_what_it_began_and_shows_it(server: Server, stream: bool) -> None:
    """Issue 6: its item was left open, and what there was of it was not shown."""
    body = {**BODY, "stream": stream, "max_output_tokens": 480}
    if stream:
        response = begun(server, max_output_tokens=480)
        with following(server, response) as events:
            next(event for event in events_of(events) if event["type"] == "response.output_text.delta")
    else:
        before = server.metric("vllm:generation_tokens_total")
        response = server.post(RESPONSES, body).json()["id"]
        server.wait_until("it is under way", lambda: server.metric("vllm:generation_tokens_total") > before + 2)
    answer = server.post(f"{RESPONSES}/{response}/cancel", {}).json()
    assert (answer["status"], answer["usage"]) == ("cancelled", None)
    [item] = answer["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"]
    assert server.get(f"{RESPONSES}/{response}").json() == answer
    assert server.post(f"{RESPONSES}/{response}/cancel", {}).json() == answer
    if stream:
        events = followed(server, response)
        assert numbers(events) == list(range(len(events)))
        assert [event["type"] for event in events[-2:]] == ["response.output_item.done", "response.incomplete"]
        assert (events[-2]["item"], events[-1]["response"]) == (item, answer)
        told = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(told) == item["content"][0]["text"]
    server.wait_until("it is given up", lambda: server.metric("vllm:num_requests_running") == 0)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=1", "starting_after"),
        ("stream=1", "stream"),
        ("stream=true&include_obfuscation=true", "include_obfuscation"),
    ],
)
def test_a_wrong_query_is_refused_by_its_name(server: Server, query: str, param: str) -> None:
    response = begun(server, max_output_tokens=1)
    assert error_of(server.get(f"{RESPONSES}/{response}?{query}"))["param"] == param


@pytest.mark.parametrize("how", [{"background": True, "stream": False}, {"background": False, "stream": False}])
def test_a_response_without_kept_events_has_no_stream(server: Server, how: dict[str, bool]) -> None:
    response = server.post(RESPONSES, {**BODY, **how, "max_output_tokens": 1}).json()["id"]
    error = error_of(server.get(f"{RESPONSES}/{response}?stream=true"))
    assert error["param"] == "stream"
    assert "`background`: true and `stream`: true" in error["message"]


def test_events_beyond_their_bound_are_refused_and_the_response_is_whole(checkpoints: Path) -> None:
    flags = ["--max-model-len", "512", "--response-store-size", "64KiB"]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        response = begun(server, max_output_tokens=400)
        server.wait_until("it is complete", lambda: retrieved(server, response)["status"] != "in_progress")
        whole = retrieved(server, response)
        assert whole["usage"]["output_tokens"] == 400
        error = error_of(server.get(f"{RESPONSES}/{response}?stream=true"))
        assert error["param"] == "starting_after"
        assert "--response-store-size" in error["message"]
        found = re.search(r"allowed: (\d+) or above", error["message"])
        assert found, error["message"]
        least = int(found[1])
        assert error_of(server.get(f"{RESPONSES}/{response}?stream=true&starting_after={least - 1}"))
        rest = followed(server, response, least)
        assert numbers(rest) == list(range(least + 1, least + 1 + len(rest)))
        assert rest[-1]["response"] == whole


def test_a_key_sees_no_stream_of_another(checkpoints: Path) -> None:
    flags = ["--max-model-len", "512", "--api-key", "one", "--api-key", "two"]
    with serving(checkpoints / "llama-gqa", *flags) as server:
        headers = {"authorization": "Bearer one"}
        with server.stream(RESPONSES, {**BODY, "max_output_tokens": 2}, headers=headers) as stream:
            response = next(iter(events_of(stream)))["response"]["id"]
        for key, status in [("one", 200), ("two", 404)]:
            path = f"{RESPONSES}/{response}?stream=true"
            assert server.get(path, headers={"authorization": f"Bearer {key}"}).status_code == status


@pytest.mark.parametrize(("drain", "end"), [("300s", "response.incomplete"), ("1s", "response.failed")])
def test_a_drain_ends_the_stream_by_its_last_event(checkpoints: Path, drain: str, end: str) -> None:
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--drain-timeout", drain) as server:
        stop(server)
        response = begun(server)
        with following(server, response) as stream:
            server.process.send_signal(signal.SIGTERM)
            if end == "response.incomplete":
                server.wait_until("it drains", lambda: server.get("/readyz").status_code == 503)
                go_on(server)
            seen = list(events_of(stream))
        assert server.process.wait(timeout=60) == 0
    assert seen[-1]["type"] == end
    assert numbers(seen) == list(range(len(seen)))
