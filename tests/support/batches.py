"""What tests of batches share: lines of requests, and waiting for a batch's end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
from openai.types import Batch

WITHIN_S = 120.0
FINAL = ("failed", "completed", "expired", "cancelled")


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    """The official client, without retries of its own."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def request(custom_id: str, url: str, body: dict[str, Any]) -> str:
    """A line of an input."""
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def input_file(folder: Path, lines: Iterable[str]) -> Path:
    """A file of lines."""
    path = folder / "input.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def uploaded(client: openai.OpenAI, folder: Path, lines: Iterable[str]) -> str:
    """The id of a file of lines."""
    return client.files.create(file=input_file(folder, lines), purpose="batch").id


def until(client: openai.OpenAI, batch: Batch, *statuses: str) -> Batch:
    """The batch, once it has one of these statuses."""
    give_up = time.monotonic() + WITHIN_S
    while batch.status not in statuses:
        assert batch.status not in FINAL, batch
        assert time.monotonic() < give_up, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def done(client: openai.OpenAI, batch: Batch) -> Batch:
    """The batch, once it has ended."""
    return until(client, batch, *FINAL)


def parsed(text: str) -> dict[str, Any]:
    """The lines of an output by their names, each of which must be there once."""
    lines = [json.loads(line) for line in text.splitlines()]
    by_name = {line["custom_id"]: line for line in lines}
    assert len(by_name) == len(lines)
    return by_name


def lines_of(client: openai.OpenAI, file: str | None) -> dict[str, Any]:
    """The same of a kept file; none: no lines."""
    return parsed(client.files.content(file).text) if file else {}
