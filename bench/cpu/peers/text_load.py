"""Load for a server that takes prompts as text alone, in the words of `pelton bench serve`'s results.

Prompts are words that are one token each. Requests are streamed, a fixed number at a time, over a connection each. Tokens count as the
server says, or as one an event where it does not say. `transformers serve`, for which this is, knows no `ignore_eos`: answers that end early show
as ones of another length.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Cell:
    """What is measured."""

    model: str
    shared: int
    own: int
    output: int
    concurrency: int
    seed: int


@dataclass
class Seen:
    """What came of it."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def words_of(checkpoint: Path) -> list[str]:
    """Words of letters that are one token, with the blank before them."""
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(
        f" {token[1:]}" for token in vocabulary if token[0] == "\u0120" and token[1:].isascii() and token[1:].isalpha()
    )


def measure(url: str, cell: Cell, words: list[str]) -> dict[str, Any]:
    """Twice as many requests as are under way at once, and at least 4, after one that is not counted."""
    source = random.Random(cell.seed)
    shared = source.choices(words, k=cell.shared)
    count = max(4, 2 * cell.concurrency)
    warm = "".join(source.choices(words, k=cell.shared + cell.own))
    prompts = ["".join([*shared, *source.choices(words, k=cell.own)]) for _ in range(count)]
    seen, wall = asyncio.run(_run(url, cell, warm, prompts))
    tokens = sum(seen.tokens)
    return {
        "model": cell.model,
        "concurrency": cell.concurrency,
        "seed": cell.seed,
        "answered": len(seen.tokens),
        "errors": len(seen.errors),
        "first_error": seen.errors[0] if seen.errors else None,
        "wrong_lengths": sum(tokens != cell.output for tokens in seen.tokens),
        "wall_s": wall,
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / wall,
        "ttft_ms": {"p50": 1e3 * median(seen.first_s) if seen.first_s else None},
        "e2e_ms": {"p50": 1e3 * median(seen.whole_s) if seen.whole_s else None},
    }


async def _run(url: str, cell: Cell, warm: str, prompts: list[str]) -> tuple[Seen, float]:
    await _ask(url, cell, warm, Seen())
    seen, waiting = Seen(), iter(prompts)

    async def client() -> None:
        for prompt in waiting:
            await _ask(url, cell, prompt, seen)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(cell.concurrency)))
    return seen, time.perf_counter() - began


async def _ask(url: str, cell: Cell, prompt: str, seen: Seen) -> None:
    body = {
        "model": cell.model, "prompt": prompt, "max_tokens": cell.output, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    try:
        await _stream(url, json.dumps(body).encode(), seen)
    except (OSError, ValueError, EOFError) as error:
        seen.errors.append(f"{type(error).__name__}: {error}")


async def _stream(url: str, body: bytes, seen: Seen) -> None:
    at = urlsplit(url)
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError((status + await reader.read(400)).decode(errors="replace"))
        first, events, counted = None, 0, None
        async for line in reader:  # the lines of chunks' lengths are none of events
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise ValueError(str(event["error"]))
            if event.get("usage"):
                counted = event["usage"]["completion_tokens"]
            if event.get("choices"):
                first = first or time.perf_counter()
                events += 1
    finally:
        writer.close()
    if first is None:
        raise EOFError("no token came")
    seen.first_s.append(first - began)
    seen.whole_s.append(time.perf_counter() - began)
    seen.tokens.append(counted or events)
