"""Deltas and rows as arrays: the same as a loop would make of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pelton.batch import Batch
from pelton.frames import Counts, Frame, FrameViews
from pelton.ragged import spread
from pelton_kernels._native import WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row, table


@given(st.lists(st.integers(0, 6)))
def test_spread_walks_through_parts(lengths: list[int]) -> None:
    part, within = spread(np.array(lengths, dtype=np.int32))
    expected = [(number, item) for number, length in enumerate(lengths) for item in range(length)]
    assert list(zip(part.tolist(), within.tolist(), strict=True)) == expected


class Frames:
    """Plans through a real memory."""

    def __init__(self) -> None:
        self.end = WorkerEnd.inline(CAPACITIES, 1)
        self.views = FrameViews(self.end)

    def frame(self, plan: Plan) -> Frame:
        self.end.accept_plan(plan.to_bytes())
        number = self.end.wait(0.0)
        assert number is not None
        frame = self.views.cut(number, Counts(*self.end.header(number)))
        self.end.publish(number, 0, 0)
        return frame


def test_rows_of_a_step_lie_as_the_model_wants_them() -> None:
    frames, batch = Frames(), Batch(kinds=1, slots=8, blocks_max=4, block_size=4)
    first = Plan(
        1,
        admits=[Admit(5), Admit(2)],
        appends=[*table(5, [30]), *table(2, [11, 10]), (5, 0, 1, 31), (5, 0, 2, 29)],  # several to one slot
        rows=[Row(2, 0, 6, [1, 2, 3, 4, 5, 6], True), Row(5, 0, 9, list(range(20, 29)), False)],
    )
    frame = frames.frame(first)
    batch.apply(frame)
    at = batch.layout(frame)
    assert at.ids.tolist() == [1, 2, 3, 4, 5, 6, *range(20, 29)]
    assert at.positions.tolist() == [*range(6), *range(9)]
    assert at.kv_slots[0].tolist() == [44, 45, 46, 47, 40, 41, 120, 121, 122, 123, 124, 125, 126, 127, 116]
    assert at.block_table.tolist() == [[[11, 10, 0], [30, 31, 29]]]
    assert at.row_offsets.tolist() == [0, 6, 15]
    assert at.pending_at.tolist() == []
    assert (at.drawn_rows.tolist(), at.drawn_at.tolist()) == ([0], [5])
    assert (at.drawn_slots.tolist(), at.drawn_positions.tolist()) == ([2], [6])

    # Slot 2 goes on with the token that it is about to draw; slot 5 ends its prompt beside it.
    second = Plan(2, rows=[Row(5, 9, 2, [29, 30], True), Row(2, 6, 1, [], True)])
    frame = frames.frame(second)
    batch.apply(frame)
    at = batch.layout(frame)
    assert at.ids.tolist() == [29, 30, 0]
    assert (at.pending_at.tolist(), at.pending_slots.tolist()) == ([2], [2])
    assert at.kv_slots[0].tolist() == [117, 118, 42]
    assert at.row_starts.tolist() == [9, 6]
    assert at.drawn_positions.tolist() == [11, 7]

    # A slot that is admitted again starts with an empty table, in the same step as its drop.
    third = Plan(3, drops=[2], admits=[Admit(2)], appends=table(2, [7]), rows=[Row(2, 0, 1, [9], True)])
    frame = frames.frame(third)
    batch.apply(frame)
    assert batch.layout(frame).block_table.tolist() == [[[7]]]


def test_each_kind_has_its_own_table_and_a_hole_is_no_lack_of_room() -> None:
    frames, batch = Frames(), Batch(kinds=2, slots=3, blocks_max=4, block_size=4)
    # Kind 1 has a window: of a prefix of 8 tokens it has the second block alone.
    full, window = [(1, 0, at, 20 + at) for at in range(3)], [(1, 1, at, 30 + at) for at in (1, 2)]
    frame = frames.frame(Plan(1, admits=[Admit(1)], appends=[*full, *window], rows=[Row(1, 8, 3, [1, 2, 3], True)]))
    batch.apply(frame)
    at = batch.layout(frame)
    assert at.kv_slots.tolist() == [[88, 89, 90], [128, 129, 130]]
    assert at.block_table.tolist() == [[[20, 21, 22]], [[0, 31, 32]]]
    frame = frames.frame(Plan(2, appends=[(1, 0, 3, 23)], rows=[Row(1, 11, 2, [4, 5], True)]))
    batch.apply(frame)
    with pytest.raises(AssertionError, match="a place for its KV"):
        batch.layout(frame)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(1, admits=[Admit(0)], appends=table(0, range(5))), "no request has more blocks"),
        (Plan(1, admits=[Admit(0)], appends=table(0, [3]), rows=[Row(0, 0, 5, [1] * 5, True)]), "a place for its KV"),
    ],
)
def test_a_plan_that_its_blocks_do_not_carry_is_our_bug(plan: Plan, why: str) -> None:
    frames, batch = Frames(), Batch(kinds=1, slots=8, blocks_max=4, block_size=4)
    frame = frames.frame(plan)

    def take_in() -> None:
        batch.apply(frame)
        batch.layout(frame)

    with pytest.raises(AssertionError, match=why):
        take_in()
