"""Tokens per second of one request at a time, and of several, without and with drafts (`--speculate ngram`), in turns.

    .venv/bin/python bench/cpu/speculation.py [MODEL] [--repeat 5] [--together 4] [--json bench/results/speculation-DATE.json]

Three tasks: `same` is one token again and again, the most that drafts can bring; `copying` asks greedily for what follows a sentence said six
times, which a model that can copy goes on with (the demo model cannot); `varying` draws at temperature 2, so that there is little to draft: what
looking for drafts costs. Every answer is compared: its tokens are the same on both. How many drafts came true stands in each line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pelton import machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.server import Server, serving  # noqa: E402

WORDS = ["river", "stone", "cloud", "lamp", "seven", "green", "paper", "window", "market", "silver", "garden", "winter"]


RULES: dict[str, dict[str, Any]] = {
    "same": {"temperature": 0, "logit_bias": {"33": 100.0}},
    "copying": {"temperature": 0},
    "varying": {"temperature": 2.0},
}


def body(task: str, number: int, tokens: int) -> dict[str, Any]:
    """A request of a task."""
    source = random.Random(f"{task} {number}")
    sentence = " ".join(source.choice(WORDS) for _ in range(12)) + ". "
    rules = {"max_tokens": tokens, "ignore_eos": True, "return_token_ids": True, "seed": number, **RULES[task]}
    return {"prompt": sentence * 6, **rules}


def run(server: Server, task: str, count: int, tokens: int) -> tuple[float, list[Any]]:
    """Tokens per second of so many requests at once, and their answers."""
    with ThreadPoolExecutor(count) as pool:
        began = time.monotonic()
        bodies = [body(task, number, tokens) for number in range(count)]
        answers = list(pool.map(lambda asked: server.post("/v1/completions", asked).json(), bodies))
        took = time.monotonic() - began
    drawn = [answer["choices"][0]["token_ids"] for answer in answers]
    return sum(map(len, drawn)) / took, drawn


def measure(off: Server, on: Server, task: str, count: int, tokens: int, repeat: int) -> dict[str, Any]:
    """Both in turns; the first pair warms up and is not counted."""
    rates: dict[str, list[float]] = {"off": [], "on": []}
    before = [on.metric(f"pelton_spec_{what}_tokens_total") for what in ("draft", "accepted")]
    for pair in range(repeat + 1):
        without, expected = run(off, task, count, tokens)
        with_drafts, got = run(on, task, count, tokens)
        assert got == expected, "drafts change no token"
        if pair > 0:
            rates["off"].append(without)
            rates["on"].append(with_drafts)
    after = [on.metric(f"pelton_spec_{what}_tokens_total") for what in ("draft", "accepted")]
    drafted, accepted = (int(now - then) for now, then in zip(after, before, strict=True))
    median = {which: statistics.median(measured) for which, measured in rates.items()}
    line = {
        "task": task,
        "together": count,
        "off_tokens_s": round(median["off"], 1),
        "on_tokens_s": round(median["on"], 1),
        "on_over_off": round(median["on"] / median["off"], 3),
        "drafted": drafted,
        "accepted": accepted,
    }
    print(json.dumps(line), flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder in Hugging Face layout; the demo model if not given")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with serving(options.model) as off, serving(options.model, "--speculate", "ngram") as on:
        lines = [
            measure(off, on, task, count, options.tokens, options.repeat)
            for task in RULES
            for count in (1, options.together)
        ]
    result = {
        "lines": lines,
        "tokens": options.tokens,
        "repeat": options.repeat,
        "model": options.model or "demo",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine.description(),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
