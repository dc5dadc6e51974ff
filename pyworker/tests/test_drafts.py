"""Rows with drafts: whatever is guessed, what is drawn in the guesses' places and behind them is what is drawn without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pelton.loading.load import Loaded
from plans import Admit
from random_checkpoints import VOCAB, write
from tiny_router import Request, TinyRouter, eagerly, load_whole

RULES: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"temperature": 1.1, "seed": 5, "top_p": 0.9, "logprobs": 2},
    {"biases": {5: 30.0}, "suppressed": [5], "suppress_until": 40, "logprobs": 0},
    {"repetition": 1.3, "temperature": 0.7, "seed": 2, "logprobs": 1},
]


def requests() -> list[Request]:
    """Some that have drafts, and one with penalties, which has none."""
    source = random.Random(4)
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in (9, 33, 30, 7)]
    return [Request(Admit(0, **rules), prompt, 40) for rules, prompt in zip(RULES, prompts, strict=True)]


@pytest.fixture(params=["program", "eager"])
def path(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_requests_draw_the_same_whatever_is_drafted(tmp_path: Path, variant: str, path: str) -> None:
    loaded: Loaded = load_whole(write(tmp_path / variant, variant))
    loaded = loaded if path == "program" else eagerly(loaded)
    expected = requests()
    TinyRouter(loaded, seed=1).run(*expected)
    truth = {tuple(request.prompt): request.output for request in expected}
    source = random.Random(8)

    def guess(request: Request) -> list[int]:
        drawn = len(request.output)
        coming = truth[tuple(request.prompt)][drawn : drawn + source.randint(0, 5)]
        return [token if source.random() < 0.8 else (token + 1) % VOCAB for token in coming]

    for chunk in (None, 3, 48):
        got = requests()
        TinyRouter(loaded, chunk, seed=2, guess=guess).run(*got)
        assert [request.output for request in got] == [request.output for request in expected]
        assert [request.logprobs for request in got] == [request.logprobs for request in expected]
        assert all((request.accepted > 0) != request.rules.has_penalties for request in got)
