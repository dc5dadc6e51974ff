"""Streams of chats for `frontend.py`, in a process of its own: as many at once as it has connections, each asking again when it was answered.

    python bench/frontend/load.py < JOB.json > REPORT.json

It looks at no event until a stream ends: it counts them and keeps the last bytes, where the usage stands. So it takes little of the
processor that it shares with the server, and as much beside every server.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

EVENT: Final = b"data: "
DONE: Final = b"data: [DONE]"
TAIL_BYTES: Final = 2048
USAGE: Final = re.compile(rb'"(prompt|completion)_tokens":\s*(\d+)')


@dataclass
class Seen:
    """Of all streams."""

    tokens: int = 0
    prompt_tokens: int = 0
    events: int = 0
    requests: int = 0
    first_s: list[float] = field(default_factory=list)
    wrong_lengths: int = 0
    errors: list[str] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """One connection and its requests, one after the other."""

    def __init__(self, requests: list[bytes], output: int, seen: Seen, done: asyncio.Future[None]) -> None:
        self.requests, self.output, self.seen, self.done = requests, output, seen, done
        self.next = 0
        self.tail = b""
        self.sent_at = 0.0
        self.is_fresh = True
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.tail, self.is_fresh, self.sent_at = b"", True, time.monotonic()
        self.transport.write(self.requests[self.next])
        self.next += 1

    def data_received(self, data: bytes) -> None:
        kept = self.tail
        # A mark may be cut in two, and none is counted twice: fewer of its bytes are carried over than it has.
        self.seen.events += (kept[1 - len(EVENT) :] + data).count(EVENT)
        self.tail = (kept + data)[-TAIL_BYTES:]
        if self.is_fresh and EVENT in data:
            self.is_fresh = False
            self.seen.first_s.append(time.monotonic() - self.sent_at)
        if data.endswith(b"0\r\n\r\n") and DONE in self.tail:
            self.answered()
        elif kept == b"" and not data.startswith(b"HTTP/1.1 200"):
            self.end(data[:300].decode(errors="replace"))

    def answered(self) -> None:
        usage = {name: int(count) for name, count in USAGE.findall(self.tail)}
        self.seen.requests += 1
        self.seen.tokens += usage[b"completion"]
        self.seen.prompt_tokens += usage[b"prompt"]
        self.seen.wrong_lengths += usage[b"completion"] != self.output
        if self.next < len(self.requests):
            self.ask()
        else:
            self.end()

    def end(self, error: str | None = None) -> None:
        if not self.done.done():
            if error is not None:
                self.seen.errors.append(error)
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"the connection was lost: {exc}")


def message(port: int, model: str, prompt: str, output: int) -> bytes:
    """A request for a stream of exactly `output` tokens."""
    body = json.dumps({
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": output, "ignore_eos": True,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def run(job: dict[str, Any]) -> dict[str, Any]:
    """`prompts` has a list for each stream."""
    loop, seen = asyncio.get_running_loop(), Seen()
    streams = [[message(job["port"], job["model"], prompt, job["output"]) for prompt in own] for own in job["prompts"]]
    ends = [loop.create_future() for _ in streams]
    began, cpu = time.monotonic(), time.process_time()
    for requests, end in zip(streams, ends, strict=True):
        await loop.create_connection(partial(Stream, requests, job["output"], seen, end), "127.0.0.1", job["port"])
    await asyncio.gather(*ends)
    wall = time.monotonic() - began
    first = sorted(seen.first_s)
    return {
        "wall_s": wall, "load_cpu_s": time.process_time() - cpu, "requests": seen.requests, "tokens": seen.tokens,
        "prompt_tokens": seen.prompt_tokens, "events": seen.events, "wrong_lengths": seen.wrong_lengths,
        "ttft_p50_ms": first[len(first) // 2] * 1e3 if first else None, "errors": seen.errors[:3],
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
