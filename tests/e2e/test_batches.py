"""Batches beside what may go wrong: other clients, limits, cancels, restarts, killed workers, a hundred thousand lines."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batches import client_of, done, input_file, lines_of, request, until, uploaded
from support.server import Server, rss_bytes, serving

pytestmark = pytest.mark.long

COMPLETIONS: Any = "/v1/completions"
MODEL = "llama-gqa"
LONG = {"prompt": "The wheel", "max_tokens": 400, "ignore_eos": True}


def many(count: int, body: dict[str, Any]) -> list[str]:
    return [request(f"line {index}", COMPLETIONS, body) for index in range(count)]


def begun(client: openai.OpenAI, folder: Path, lines: list[str]) -> Any:
    file = uploaded(client, folder, lines)
    return client.batches.create(input_file_id=file, endpoint=COMPLETIONS, completion_window="24h")


def test_each_key_sees_its_own_files_and_batches_alone(checkpoints: Path, tmp_path: Path) -> None:
    with serving(checkpoints / MODEL, "--api-key", "one", "--api-key", "two") as server:
        one, two = client_of(server.url, "one"), client_of(server.url, "two")
        batch = done(one, begun(one, tmp_path, many(2, {"prompt": "a", "max_tokens": 2})))
        files = [batch.input_file_id, batch.output_file_id or ""]
        assert {file.id for file in one.files.list()} == set(files)
        assert list(two.files.list()) == []
        assert list(two.batches.list()) == []
        for act in (
            lambda: two.files.content(files[1]),
            lambda: two.files.delete(files[0]),
            lambda: two.batches.retrieve(batch.id),
            lambda: two.batches.cancel(batch.id),
        ):
            with pytest.raises(openai.NotFoundError):
                act()
        with pytest.raises(openai.BadRequestError, match="input_file_id"):
            two.batches.create(input_file_id=files[0], endpoint=COMPLETIONS, completion_window="24h")
        with pytest.raises(openai.AuthenticationError):
            client_of(server.url, "three").files.list()


def test_limits_hold_and_what_is_refused_takes_no_room(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--max-file-size", "1MiB", "--files-max", "2500KiB", "--files-dir", str(tmp_path / "files"))
    with serving(checkpoints / MODEL, *flags) as server:
        client = client_of(server.url)
        with pytest.raises(openai.APIStatusError) as too_large:
            client.files.create(file=b"x" * (1 << 20) + b"y", purpose="batch")
        assert (too_large.value.status_code, too_large.value.body["code_name"]) == (413, "file_too_large")  # type: ignore[index]
        assert too_large.value.response.headers["connection"] == "close", "its body was not read"
        kept = [client.files.create(file=b"x" * (1 << 20), purpose="batch") for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="delete some"):
            client.files.create(file=b"x" * (1 << 20), purpose="batch")
        client.files.delete(kept[0].id)
        client.files.create(file=b"x" * (1 << 20), purpose="batch")
        assert len(list((tmp_path / "files" / "files").iterdir())) == 4, "two files, each with what is known of it"
        for path in (tmp_path / "files").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.is_dir(), path
        assert stat.S_IMODE((tmp_path / "files").stat().st_mode) == 0o700


def test_a_cancelled_batch_gives_what_is_done_and_says_what_is_not(checkpoints: Path, tmp_path: Path) -> None:
    with serving(checkpoints / MODEL, "--max-model-len", "512", "--batch-in-flight", "2") as server:
        client = client_of(server.url)
        lines = [*many(1, {"prompt": "a", "max_tokens": 1}), *many(40, LONG)[1:]]
        batch = begun(client, tmp_path, lines)
        server.wait_until(
            "the first is answered",
            lambda: (counts := client.batches.retrieve(batch.id).request_counts) and counts.completed >= 1,
        )
        with server.stopped_workers():
            with pytest.raises(openai.BadRequestError, match="a batch reads"):
                client.files.delete(batch.input_file_id)
            cancelling = client.batches.cancel(batch.id)
            assert cancelling.status in ("cancelling", "cancelled")
            assert cancelling.cancelling_at
            batch = done(client, batch)  # those under way are given up, though nobody computes
        assert batch.status == "cancelled"
        assert batch.cancelled_at
        assert batch.request_counts
        answers, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
        assert len(answers) == batch.request_counts.completed >= 1
        assert len(errors) == batch.request_counts.failed
        assert sorted([*answers, *errors]) == sorted(f"line {index}" for index in range(40))
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
        client.files.delete(batch.input_file_id)
        server.wait_until("nothing runs", lambda: server.metric("vllm:num_requests_running") == 0)


def test_clients_go_before_batches(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--max-model-len", "512", "--max-running", "4", "--batch-in-flight", "4", "--max-waiting", "24")
    with serving(checkpoints / MODEL, *flags) as server:
        client = client_of(server.url)
        batch = begun(client, tmp_path, many(60, {**LONG, "max_tokens": 100}))
        server.wait_until("it runs", lambda: server.metric("vllm:num_requests_running") == 4)
        answers: list[Any] = []
        others = [
            threading.Thread(target=lambda: answers.append(server.post(COMPLETIONS, {**LONG, "max_tokens": 20})))
            for _ in range(8)
        ]
        for other in others:
            other.start()
        for other in others:
            other.join()
        assert [answer.status_code for answer in answers] == [200] * 8
        counts = client.batches.retrieve(batch.id).request_counts
        assert counts is not None
        assert counts.completed < 60, "it waited for them"
        batch = done(client, batch)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 60


def test_a_full_queue_is_waited_out(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--max-model-len", "512", "--max-running", "1", "--batch-in-flight", "8", "--max-waiting", "1")
    with serving(checkpoints / MODEL, *flags) as server:
        client = client_of(server.url)
        batch = done(client, begun(client, tmp_path, many(12, {"prompt": "a", "max_tokens": 8, "ignore_eos": True})))
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed) == ("completed", 12)


def test_a_killed_worker_costs_no_line(checkpoints: Path, tmp_path: Path) -> None:
    with serving(checkpoints / MODEL, "--max-model-len", "512") as server:
        client = client_of(server.url)
        batch = begun(client, tmp_path, many(30, {**LONG, "max_tokens": 60, "temperature": 0}))
        server.wait_until("they run", lambda: server.metric("vllm:num_requests_running") >= 10)
        os.kill(server.worker_pid(), signal.SIGKILL)
        batch = done(client, batch)
        answers = lines_of(client, batch.output_file_id)
        assert (batch.status, len(answers)) == ("completed", 30)
        assert len({line["response"]["body"]["choices"][0]["text"] for line in answers.values()}) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_goes_on_after_a_restart(checkpoints: Path, tmp_path: Path, how: signal.Signals) -> None:
    flags = ("--max-model-len", "512", "--files-dir", str(tmp_path / "files"), "--batch-in-flight", "2")
    keys = ("--api-key", "mine")
    with serving(checkpoints / MODEL, *flags, *keys) as server:
        client = client_of(server.url, "mine")
        batch = begun(client, tmp_path, many(40, {**LONG, "max_tokens": 50, "temperature": 0}))
        server.wait_until(
            "some are answered",
            lambda: (counts := client.batches.retrieve(batch.id).request_counts) and counts.completed >= 4,
        )
        before = client.batches.retrieve(batch.id)
        assert before.status == "in_progress"
        assert before.output_file_id is None
        code = server.stop(how)
        if how == signal.SIGTERM:
            assert code == 0
            assert any("unfinished batches go on with the next start" in line for line in server.log)
    (draft,) = [
        path for path in (tmp_path / "files" / "files").iterdir() if path.read_bytes().startswith(b'{"id":"batch_req')
    ]
    kept = [line for line in draft.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(kept) >= 4
    with serving(checkpoints / MODEL, *flags, *keys) as server:
        client = client_of(server.url, "mine")
        batch = done(client, client.batches.retrieve(batch.id))
        assert batch.request_counts is not None
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 40, 0)
        answers = lines_of(client, batch.output_file_id)
        assert sorted(answers) == sorted(f"line {index}" for index in range(40))
        assert batch.usage is not None
        assert batch.usage.output_tokens == 40 * 50, "those of both servers"
        text = client.files.content(batch.output_file_id or "").text
        assert text.startswith("".join(kept)), "what was answered is not answered again"


def test_without_a_folder_all_goes_with_the_server_and_that_is_said(checkpoints: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    flags = ("--max-model-len", "512", "--drain-timeout", "1s")
    with serving(checkpoints / MODEL, *flags, env={"TMPDIR": str(temporary)}) as server:
        client = client_of(server.url)
        for pid in server.worker_pids():  # so that it is not done in time; they end with the server
            os.kill(pid, signal.SIGSTOP)
        begun(client, tmp_path, many(4, LONG))
        server.wait_until("it is there", lambda: len(list(temporary.rglob("file-*"))) >= 4)
        assert server.stop() == 0
        assert any("--files-dir" in line and "unfinished batches are lost" in line for line in server.log), server.log
    assert [path.name for path in temporary.iterdir() if path.name.startswith("pelton-files-")] == []


def test_a_folder_has_one_server(checkpoints: Path, tmp_path: Path) -> None:
    with serving(checkpoints / MODEL, "--files-dir", str(tmp_path / "files")):
        second = Server(checkpoints / MODEL, "--files-dir", str(tmp_path / "files"))
        assert second.process.wait(timeout=60) == 1
        second.stop()
        assert any("--files-dir" in line and "is used by another server" in line for line in second.log), second.log


def test_memory_does_not_grow_with_a_hundred_thousand_lines(checkpoints: Path, tmp_path: Path) -> None:
    """All of them are wrong for the model, so that nothing but the batch takes time; their answers are 40 MB."""
    with serving(checkpoints / MODEL, "--max-model-len", "64", "--body-limit", "1MiB") as server:
        client = client_of(server.url)
        done(client, begun(client, tmp_path, many(100, {"prompt": "a", "max_tokens": 1})))
        before = rss_bytes(server.process.pid)
        filler = "x" * 1000
        lines = (
            request(f"{index}", COMPLETIONS, {"prompt": "a", "user": filler, "top_p": 2}) for index in range(100_000)
        )
        path = input_file(tmp_path, lines)
        assert path.stat().st_size > 100 << 20
        with path.open("rb") as file:
            uploaded_file = client.files.create(file=file, purpose="batch")
        batch = client.batches.create(input_file_id=uploaded_file.id, endpoint=COMPLETIONS, completion_window="24h")
        most = before
        while batch.status not in ("completed", "failed"):
            batch = client.batches.retrieve(batch.id)
            most = max(most, rss_bytes(server.process.pid))
        assert batch.request_counts is not None
        assert (batch.request_counts.total, batch.request_counts.failed) == (100_000, 100_000)
        # The names of all lines, 16 bytes each in a table that has grown to twice that and more, and allocator's slack.
        assert most - before < 24 << 20, f"{(most - before) >> 20} MiB"
        names = [
            line.split('"custom_id":"', 1)[1].split('"', 1)[0]
            for line in client.files.content(batch.error_file_id or "").text.splitlines()
        ]
        assert sorted(names, key=int) == [str(index) for index in range(100_000)]


def test_an_upload_that_breaks_off_leaves_nothing(checkpoints: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    with serving(checkpoints / MODEL, "--files-dir", str(folder)) as server:
        client = client_of(server.url)

        def half() -> Any:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 100_000
            server.wait_until("it is written", lambda: any(p.stat().st_size > 0 for p in (folder / "files").iterdir()))
            raise ConnectionError("the client leaves")

        with pytest.raises(ConnectionError):
            client._client.post(
                f"{server.url}/v1/files", content=half(), headers={"content-type": "multipart/form-data; boundary=b"}
            )
        server.wait_until("it is gone", lambda: list((folder / "files").iterdir()) == [])
        until(client, begun(client, tmp_path, many(1, {"prompt": "a", "max_tokens": 1})), "completed")


def test_what_was_not_answered_in_its_window_has_expired(checkpoints: Path, tmp_path: Path) -> None:
    flags = ("--max-model-len", "512", "--files-dir", str(tmp_path / "files"), "--batch-in-flight", "1")
    with serving(checkpoints / MODEL, *flags) as server:
        client = client_of(server.url)
        batch = begun(client, tmp_path, many(20, {**LONG, "max_tokens": 100}))
        server.wait_until(
            "one is answered",
            lambda: (counts := client.batches.retrieve(batch.id).request_counts) and counts.completed >= 1,
        )
        server.stop()
    # The server was away until its window was over.
    (record,) = (tmp_path / "files" / "batches").iterdir()
    kept = json.loads(record.read_text())
    record.write_text(json.dumps({**kept, "expires_at": kept["created_us"] // 1_000_000}))
    with serving(checkpoints / MODEL, *flags) as server:
        client = client_of(server.url)
        batch = done(client, client.batches.retrieve(batch.id))
        assert batch.status == "expired"
        assert batch.expired_at
        answers, errors = lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)
        assert answers
        assert sorted([*answers, *errors]) == sorted(f"line {index}" for index in range(20))
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
