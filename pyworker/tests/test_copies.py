"""A block copy stands before what the step reads: a prefix that was copied reads as if it had been computed."""

from __future__ import annotations

import random
from pathlib import Path

from pelton.frames import Counts, FrameViews
from pelton.runner import Runner
from pelton_kernels._native import WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row
from random_checkpoints import VOCAB, greedy
from tiny_router import load_whole


def test_a_copied_prefix_gives_the_tokens_of_a_computed_one(checkpoints: Path) -> None:
    loaded = load_whole(checkpoints / "qwen3")
    end = WorkerEnd.inline(CAPACITIES, 1)
    views, runner = FrameViews(end), Runner(loaded, CAPACITIES["slots"], CAPACITIES["top_logprobs"])
    source = random.Random(2)
    one = [source.randrange(VOCAB) for _ in range(13)]
    other = [*one[:11], 5, 6, 7]  # shares block 0, and 3 of the 8 tokens of block 1

    def drawn(plan: Plan) -> list[int]:
        end.accept_plan(plan.to_bytes())
        frame = end.wait(0.0)
        assert frame is not None
        cut = views.cut(frame, Counts(*end.header(frame)))
        runner.run(cut)
        sampled: list[int] = cut.results.sampled.tolist()
        end.publish(frame, 0, 0)
        return sampled

    first = drawn(Plan(1, admits=[Admit(0)], appends=[(0, 40), (0, 41)], rows=[Row(0, 0, 13, one, True)]))
    assert first == greedy(checkpoints / "qwen3", one, 1)
    second = Plan(
        2,
        admits=[Admit(1)],
        appends=[(1, 40), (1, 42)],
        copies=[(41, 42, 3)],
        rows=[Row(1, 11, 3, other[11:], True)],
    )
    assert drawn(second) == greedy(checkpoints / "qwen3", other, 1)
