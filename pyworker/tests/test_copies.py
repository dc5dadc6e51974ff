"""A block copy stands before what the step reads: a prefix that was copied reads as if it had been computed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from plans import Admit, Plan, Row, table
from random_checkpoints import VOCAB, greedy
from tiny_router import OneByOne, eagerly, load_whole


@pytest.mark.parametrize("is_eager", [False, True], ids=["program", "eager"])
def test_a_copied_prefix_gives_the_tokens_of_a_computed_one(checkpoints: Path, is_eager: bool) -> None:
    loaded = load_whole(checkpoints / "qwen3")
    worker = OneByOne(eagerly(loaded) if is_eager else loaded)
    source = random.Random(2)
    one = [source.randrange(VOCAB) for _ in range(13)]
    other = [*one[:11], 5, 6, 7]  # shares block 0, and 3 of the 8 tokens of block 1

    def drawn(plan: Plan) -> list[int]:
        worker.end.accept_plan(plan.to_bytes())
        sampled: list[int] = worker.compute().sampled.tolist()
        return sampled

    first = drawn(Plan(1, admits=[Admit(0)], appends=table(0, [40, 41]), rows=[Row(0, 0, 13, one, True)]))
    assert first == greedy(checkpoints / "qwen3", one, 1)
    second = Plan(
        2,
        admits=[Admit(1)],
        appends=table(1, [40, 42]),
        copies=[(41, 42, 3)],
        rows=[Row(1, 11, 3, other[11:], True)],
    )
    assert drawn(second) == greedy(checkpoints / "qwen3", other, 1)
