"""A thousand clients who all read a stream at the same time, of a server that may open 256 files until it asks for more."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.load import prompts
from support.server import Server, serving

CLIENTS = 1_000
TOKENS = 24
PATH = "/v1/completions"


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds as many sockets as the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * CLIENTS:
        pytest.skip(f"the system lets a process open no more than {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CLIENTS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def few_files() -> None:
    """The limit that a server is begun with, as some systems have it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_streams_at_once_end_whole(checkpoints: Path) -> None:
    asked = prompts(CLIENTS // 2, seed=29, longest=40)
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", before=few_files) as server:
        answers = asyncio.run(all_at_once(server, asked * 2))
        server.wait_until("all blocks came home", lambda: server.metric("pelton_blocks_held") == 0)
        assert server.metric("pelton_requests_cancelled_total") == 0
    assert [len(tokens) for tokens in answers] == [TOKENS] * CLIENTS
    assert answers[: CLIENTS // 2] == answers[CLIENTS // 2 :], "the same prompt has the same answer"


async def all_at_once(server: Server, asked: list[list[int]]) -> list[list[int]]:
    """The tokens of all streams, none of which gets any before all have been asked for."""
    with server.stopped_workers():
        streams = [asyncio.create_task(stream(server.port, prompt)) for prompt in asked]
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")

        def under_way() -> bool:
            return sum(server.metric(name) for name in names) == len(asked)

        await asyncio.to_thread(server.wait_until, "all are under way", under_way)
    return await asyncio.gather(*streams)


async def stream(port: int, prompt: list[int]) -> list[int]:
    """The tokens of one stream, which has to end as it should."""
    fields: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    body = json.dumps({"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}, **fields}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200 "), answer[:1000]
    # Chunks of the transfer begin and end with lines of their own; each has whole events.
    events = [line.removeprefix("data: ") for line in answer.split("\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]", answer[-1000:]
    told = [json.loads(event) for event in events]
    assert all("error" not in event for event in told), told
    choices = [choice for event in told for choice in event["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert told[-1]["usage"]["completion_tokens"] == TOKENS
    return [token for choice in choices for token in choice.get("token_ids") or []]
