"""The official Python client uploads files, has them answered as batches, and reads the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch
from support.batches import done, input_file, lines_of, request, uploaded
from support.server import Server

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(demo: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0)


def test_a_file_is_kept_listed_read_and_deleted(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "../strange name ü.jsonl"
    path.write_bytes(b"any\r\n--bytes\x00\xff")
    first = client.files.create(file=path, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert (first.object, first.bytes, first.filename, first.purpose, first.status) == (
        "file",
        path.stat().st_size,
        path.name,
        "batch",
        "processed",
    )
    assert first.expires_at == first.created_at + 3600
    second = client.files.create(file=b"other", purpose="batch")
    assert second.expires_at is not None
    assert second.expires_at > second.created_at + 29 * 86400
    assert client.files.retrieve(first.id) == first
    assert client.files.content(first.id).read() == path.read_bytes()
    newest = client.files.list(limit=2, purpose="batch")
    assert [file.id for file in newest.data] == [second.id, first.id]
    assert next(file.id for file in client.files.list(after=second.id, limit=1)) == first.id
    assert client.files.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError) as error:
        client.files.retrieve(first.id)
    assert error.value.body["code_name"] == "file_not_found"  # type: ignore[index]
    client.files.delete(second.id)


def test_a_batch_is_answered_as_single_requests_are(client: openai.OpenAI, demo: Server, tmp_path: Path) -> None:
    bodies: dict[str, dict[str, Any]] = {
        f"request {index}": {
            "model": "demo",
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 12,
        }
        for index, text in enumerate(["What is Pelton?", "Hello!", "Why is it called Pelton?"])
    }
    bodies["wrong"] = {"model": "demo", "messages": [], "max_tokens": -1}
    file = uploaded(client, tmp_path, [request(name, CHAT, body) for name, body in bodies.items()])
    batch = client.batches.create(
        input_file_id=file,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"what": "for"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"what": "for"})
    assert batch.expires_at == batch.created_at + 86400
    batch = done(client, batch)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (4, 3, 1)
    assert batch.model == "demo"
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(time for time in times if time is not None)
    assert batch.output_file_id
    assert batch.error_file_id
    answers = lines_of(client, batch.output_file_id)
    assert sorted(answers) == [name for name in sorted(bodies) if name != "wrong"]
    for name, answer in answers.items():
        alone = client.chat.completions.create(**bodies[name])
        got = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert got.choices == alone.choices
        assert got.usage is not None
        assert alone.usage is not None
        assert got.usage.completion_tokens == alone.usage.completion_tokens
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)
        assert answer["id"].startswith("batch_req_")
        assert answer["response"]["request_id"]
    (error,) = lines_of(client, batch.error_file_id).values()
    refused = demo.post(CHAT, bodies["wrong"])
    assert error["response"]["status_code"] == refused.status_code == 400
    assert error["response"]["body"] == refused.json()
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.expires_at == output.created_at + 7200


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 4}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 4, "store": False}),
    ],
)
def test_other_endpoints_are_answered_too(
    client: openai.OpenAI, tmp_path: Path, endpoint: Any, body: dict[str, Any]
) -> None:
    file = uploaded(client, tmp_path, [request("one", endpoint, {"model": "demo", **body})])
    batch = done(client, client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h"))
    assert batch.output_file_id, batch
    answer = lines_of(client, batch.output_file_id)["one"]["response"]
    assert answer["status_code"] == 200
    assert answer["body"]["usage"]["total_tokens"] > 4


def test_batches_are_listed_page_by_page(client: openai.OpenAI, tmp_path: Path) -> None:
    file = uploaded(client, tmp_path, [request("one", CHAT, {"messages": []})])
    batches = [
        done(client, client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h"))
        for _ in range(3)
    ]
    newest = client.batches.list(limit=2)
    assert newest.has_more
    assert [batch.id for batch in newest.data] == [batches[2].id, batches[1].id]
    assert [batch.id for batch in client.batches.list(after=batches[1].id, limit=1).data] == [batches[0].id]
    seen = [batch.id for batch in client.batches.list(limit=1)]
    assert seen[:3] == [batch.id for batch in reversed(batches)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], [("empty_file", None)]),
        (["nonsense"], [("invalid_json_line", 1)]),
        ([request("a", CHAT, {}), "", request("a", CHAT, {})], [("duplicate_custom_id", 3)]),
        ([request("a", "/v1/embeddings", {}), "{}"], [("invalid_url", 1), ("missing_required_parameter", 2)]),
        ([request("a", CHAT, {"stream": True})], [("invalid_value", 1)]),
    ],
)
def test_a_file_with_a_wrong_line_fails_whole(
    client: openai.OpenAI, tmp_path: Path, lines: list[str], expected: list[tuple[str, int | None]]
) -> None:
    file = client.files.create(file=input_file(tmp_path, lines), purpose="batch")
    batch = done(client, client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == expected
    assert all(error.message for error in batch.errors.data)


def test_a_file_may_begin_with_a_mark_of_utf_8(client: openai.OpenAI) -> None:
    line = request("one", CHAT, {"messages": HI, "max_tokens": 2})
    file = client.files.create(file=b"\xef\xbb\xbf" + line.encode(), purpose="batch")
    batch = done(client, client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"))
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)


def test_a_plain_value_is_no_file(demo: Server) -> None:
    form: Any = {"purpose": (None, "batch"), "file": (None, "{}")}
    refused = httpx.post(f"{demo.url}/v1/files", files=form)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "file"
    assert error["message"].startswith("`file` is a plain value; allowed: a file")


def test_what_is_not_there_and_what_is_wrong_is_refused(client: openai.OpenAI, demo: Server) -> None:
    for status, act in [
        (404, lambda: client.files.content("file-0")),
        (404, lambda: client.files.delete("../../etc/passwd")),
        (404, lambda: client.batches.retrieve("batch_0")),
        (404, lambda: client.batches.cancel("batch_0")),
        (400, lambda: client.batches.create(input_file_id="file-0", endpoint=CHAT, completion_window="24h")),
        (400, lambda: client.files.create(file=b"x", purpose="fine-tune")),
        (400, lambda: client.files.list(order="up")),  # type: ignore[arg-type]
        (400, lambda: client.batches.list(limit=0)),
    ]:
        with pytest.raises(openai.APIStatusError) as error:
            act()
        assert error.value.status_code == status, error.value
        assert set(error.value.body) == {"message", "type", "param", "code", "code_name"}  # type: ignore[arg-type]
    refused = demo.post("/v1/files", {"purpose": "batch"})
    assert (refused.status_code, refused.json()["error"]["code_name"]) == (415, "wrong_content_type")


def test_a_batch_that_has_ended_cannot_be_cancelled(client: openai.OpenAI, tmp_path: Path) -> None:
    file = uploaded(client, tmp_path, [request("one", CHAT, {"messages": []})])
    batch: Batch = done(client, client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="1h"))
    with pytest.raises(openai.BadRequestError, match="completed already"):
        client.batches.cancel(batch.id)
    assert json.loads(batch.to_json())["status"] == "completed"
