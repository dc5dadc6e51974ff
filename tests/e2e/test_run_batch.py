"""`pelton run-batch`: a file of requests becomes a file of answers, whatever interrupts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from support.batches import input_file, parsed, request
from support.server import PELTON, Server, children, is_alive

COMPLETIONS = "/v1/completions"
SHORT = {"prompt": "The wheel", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def command(checkpoints: Path, source: Path | str, output: Path, *flags: str) -> list[str]:
    model = str(checkpoints / "llama-gqa")
    return [str(PELTON), "run-batch", "-i", str(source), "-o", str(output), model, "--max-model-len", "512", *flags]


def run(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=given, capture_output=True, text=True, timeout=300)


def test_each_line_is_answered_as_its_route_answers_it(checkpoints: Path, server: Server, tmp_path: Path) -> None:
    lines = [
        request("a completion", COMPLETIONS, SHORT),
        request("a response", "/v1/responses", {"input": "Hello", "max_output_tokens": 4}),
        request("wrong", COMPLETIONS, {**SHORT, "max_tokens": -1}),
        request("not for this model", "/v1/embeddings", {"input": "Hello"}),
    ]
    output = tmp_path / "output.jsonl"
    output.write_text("what was there before\n")
    ran = run(*command(checkpoints, input_file(tmp_path, lines), output))
    assert ran.returncode == 0, ran.stderr
    assert "4 of 4 requests answered" in ran.stdout, ran.stdout
    assert "2 with an error" in ran.stdout, ran.stdout
    answers = parsed(output.read_text())
    statuses = {name: line["response"]["status_code"] for name, line in answers.items()}
    assert statuses == {"a completion": 200, "a response": 200, "wrong": 400, "not for this model": 400}
    body = answers["a completion"]["response"]["body"]
    assert body["choices"] == server.post(COMPLETIONS, SHORT).json()["choices"]
    assert answers["wrong"]["response"]["body"] == server.post(COMPLETIONS, {**SHORT, "max_tokens": -1}).json()


def test_standard_input_is_an_input(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    ran = run(*command(checkpoints, "-", output), given=request("only", COMPLETIONS, SHORT))
    assert ran.returncode == 0, ran.stderr
    assert list(parsed(output.read_text())) == ["only"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["nonsense"], "line 1: the line is not a JSON object"),
        ([request("a", COMPLETIONS, {}), request("a", COMPLETIONS, {})], "line 2: `custom_id`"),
        ([request("a", "/v1/models", {})], "line 1: `url`"),
        ([], "no request in the file"),
    ],
)
def test_an_input_with_a_wrong_line_is_refused_before_anything_is_loaded(
    tmp_path: Path, lines: list[str], words: str
) -> None:
    output = tmp_path / "output.jsonl"
    ran = run(*command(Path("/no/such"), input_file(tmp_path, lines), output))
    assert ran.returncode == 1
    assert words in ran.stderr, ran.stderr
    assert not output.exists()


def test_what_the_command_would_ignore_or_needs_is_refused(tmp_path: Path) -> None:
    source = input_file(tmp_path, [request("a", COMPLETIONS, SHORT)])
    for words, expected in [
        ([str(PELTON), "run-batch", "-i", str(source)], "`--output-file` is missing"),
        ([str(PELTON), "run-batch", "-o", "x"], "`--input-file` is missing"),
        (command(Path("/no"), source, tmp_path / "o", "--port", "1"), "`--port` has no meaning here"),
        (command(Path("/no"), source, tmp_path / "o", "--files-dir", "/x"), "`--files-dir` has no meaning here"),
    ]:
        ran = run(*words)
        assert (ran.returncode, expected in ran.stderr) == (2, True), ran.stderr
    ran = run(*command(Path("/no"), tmp_path / "absent", tmp_path / "o"))
    assert ran.returncode == 1
    assert "absent" in ran.stderr


def test_answers_may_go_to_a_pipe(checkpoints: Path, tmp_path: Path) -> None:
    source = input_file(tmp_path, [request("a", COMPLETIONS, SHORT)])
    ran = run(*command(checkpoints, source, Path("/dev/stdout")))
    assert ran.returncode == 0, ran.stderr
    assert list(parsed(ran.stdout.partition("1 of 1")[0])) == ["a"]


def test_nothing_is_written_over_by_a_run_that_cannot_begin(checkpoints: Path, tmp_path: Path) -> None:
    source = input_file(tmp_path, [request("a", COMPLETIONS, SHORT)])
    requests = source.read_text()
    (link := tmp_path / "link.jsonl").symlink_to(source)
    for output, flags in [(source, []), (link, []), (source, ["--resume"])]:
        ran = run(*command(checkpoints, source, output, *flags))
        assert ran.returncode == 2
        assert "the same file as `input-file`" in ran.stderr, ran.stderr
        assert source.read_text() == requests
    (output := tmp_path / "output.jsonl").write_text("answers of another day\n")
    ran = run(*command(Path("/no/such/folder"), source, output))
    assert ran.returncode == 1
    assert output.read_text() == "answers of another day\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_whose_model_is_still_looked_for_is_ended_by_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    source, output = input_file(tmp_path, [request("a", COMPLETIONS, SHORT)]), tmp_path / "output.jsonl"
    output.write_text("answers of another day")
    with socket.create_server(("127.0.0.1", 0)) as hub:  # it takes connections, and answers nobody
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        line = [str(PELTON), "run-batch", "-i", str(source), "-o", str(output), "some/model", "--hub-endpoint", address]
        process = subprocess.Popen(
            [*line, "--hub-cache", str(tmp_path / "hub"), "--offline=false"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            hub.settimeout(60)
            with hub.accept()[0]:
                process.send_signal(how)
                said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1, said
    assert "nothing was begun" in said[1], said
    assert output.read_text() == "answers of another day"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_ended_is_resumed(checkpoints: Path, tmp_path: Path, how: signal.Signals) -> None:
    lines = [request(f"{index}", COMPLETIONS, {**SHORT, "max_tokens": 60}) for index in range(60)]
    source, output = input_file(tmp_path, lines), tmp_path / "output.jsonl"
    words = command(checkpoints, source, output, "--batch-in-flight", "2")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (output.exists() and output.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    others = children(process.pid)
    process.send_signal(how)
    said = process.communicate(timeout=120)
    if how == signal.SIGINT:
        assert process.returncode == 1, said
        assert "--resume goes on" in said[1], said
        assert not any(is_alive(pid) for pid in others)
    first = output.read_text()
    before = first[: first.rindex("\n") + 1]
    assert 4 <= before.count("\n") < 60
    with output.open("a") as file:
        file.write('{"id": "torn')
    ran = run(*words, "--resume")
    assert ran.returncode == 0, ran.stderr
    assert output.read_text().startswith(before), "what was answered stays"
    assert sorted(parsed(output.read_text()), key=int) == [str(index) for index in range(60)]
    again = run(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert "60 of 60" in again.stdout, again.stdout
