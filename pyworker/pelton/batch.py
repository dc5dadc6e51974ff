"""The persistent batch: what each slot holds between steps, and how a step's deltas change it.

Never here: tensors, devices, sampling. Host arrays only, and no loop over rows, tokens or blocks: a step costs the same
few dozen array operations for one row or a thousand.

A slot's life: an admit empties its block tables, appends fill them, rows of later steps read them, a drop or the next
admit ends it. There is a table for each kind of layers; what is never put into one is a hole, and nobody looks there:
what lies behind a window may be another request's. A row's last token may not be known yet (the router plans one step ahead): it is what the slot drew last, which
only the device knows. So the batch says which tokens are *pending*, and the runner fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.frames import (
    ADMIT_SLOT,
    ROW_COUNT,
    ROW_DRAFTS,
    ROW_EMBEDS,
    ROW_FLAGS,
    ROW_KNOWN,
    ROW_NEXT,
    ROW_OFFSET,
    ROW_POOLS,
    ROW_SAMPLES,
    ROW_SCORES,
    ROW_SLOT,
    ROW_START,
    Frame,
    Ints,
)
from pelton.ragged import Indices, spread


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens of the step that tell how likely the one after them was."""

    at: Indices  # [scores]: their places in the step
    tokens: Ints  # [scores]: what follows
    results: Indices  # [scores]: places among the results
    slots: Ints  # [scores]


@dataclass(frozen=True, slots=True)
class Layout:
    """One step's rows as arrays. Named as in `Step`, which holds the same as tensors."""

    ids: Ints  # [tokens]; 0 where pending
    positions: Ints  # [tokens]
    kv_slots: Indices  # [kinds, tokens]
    block_table: Ints  # [kinds, rows, blocks]
    row_offsets: Ints  # [rows + 1]
    row_starts: Ints  # [rows]
    pending_at: Indices  # [pending]: places in `ids`
    pending_slots: Indices  # [pending]: whose latest token stands there
    drawn_rows: NDArray[
        np.intp
    ]  # [draws]: rows that sample, one with drafts once more for each of them; or that pool, as the model does
    drawn_results: NDArray[np.intp]  # [draws]: their places among the results
    drawn_at: Indices  # [draws]: places of the tokens behind which they are drawn
    drawn_slots: Ints  # [draws]
    drawn_positions: Ints  # [draws]: where the drawn tokens will stand
    scored: Scored
    embeds_at: Indices  # [embeds]: places of the tokens that only hold the places of embeddings


class Batch:
    """Block tables by kind of layers and slot."""

    def __init__(self, kinds: int, slots: int, blocks_max: int, block_size: int) -> None:
        self.block_size = block_size
        self._tables: Ints = np.zeros((kinds, slots, blocks_max), dtype=np.int32)
        self._ends: Indices = np.zeros((kinds, slots), dtype=np.int64)  # behind the last place that was filled

    def apply(self, frame: Frame) -> None:
        """Takes in drops, admits and appends, in this order."""
        self._ends[:, frame.drops] = 0
        self._ends[:, frame.admits[:, ADMIT_SLOT]] = 0
        if len(frame.appends):
            slots, kinds, at, blocks = frame.appends.T
            assert at.max() < self._tables.shape[2], "no request has more blocks than the longest context"
            self._tables[kinds, slots, at] = blocks
            np.maximum.at(self._ends, (kinds, slots), at + 1)

    def layout(self, frame: Frame) -> Layout:
        """The arrays of a step with at least one row."""
        rows = frame.rows
        slots, starts, counts, known = (rows[:, column] for column in (ROW_SLOT, ROW_START, ROW_COUNT, ROW_KNOWN))
        offsets, ends = rows[:, ROW_OFFSET], rows[:, ROW_OFFSET] + counts
        reach = starts + counts  # positions below this have KV after the step
        assert (reach <= self._ends[:, slots] * self.block_size).all(), "every token of a row has a place for its KV"

        row, within = spread(counts)
        positions = starts[row] + within.astype(np.int32)
        tables = self._tables[:, :, : -(-int(reach.max()) // self.block_size)].take(slots, axis=1)
        blocks = tables[:, row, positions // self.block_size].astype(np.int64)

        is_pending = known < counts
        pending_at = (ends[is_pending] - 1).astype(np.int64)
        ids = np.zeros(len(row), dtype=np.int32)
        is_known = np.ones(len(row), dtype=np.bool_)
        is_known[pending_at] = False
        # Known tokens lie in the frame in the order of rows, as they do here: what is left out closes up.
        ids[is_known] = frame.tokens

        samples = np.flatnonzero(rows[:, ROW_FLAGS] & (ROW_SAMPLES | ROW_POOLS))
        drafts = rows[:, ROW_DRAFTS]
        drawn, nth = spread(drafts[samples] + 1)  # the nth draw of a row stands before the drafts that follow it
        drawn_rows = samples[drawn]
        drafts_behind = drafts[drawn_rows] - nth.astype(np.int32)
        scores = rows[:, ROW_SCORES]
        embedded, nth_embed = spread(rows[:, ROW_EMBEDS])
        more_before = np.cumsum(drafts + scores, dtype=np.int64) - drafts  # of other rows, and its own scores
        return Layout(
            ids=ids,
            positions=positions,
            kv_slots=np.ascontiguousarray(
                blocks * self.block_size + positions % self.block_size
            ),  # indexing turns axes
            block_table=tables,
            row_offsets=np.append(offsets, ends[-1:]),
            row_starts=np.ascontiguousarray(starts),
            pending_at=pending_at,
            pending_slots=slots[is_pending].astype(np.int64),
            drawn_rows=drawn_rows,
            drawn_results=drawn_rows + more_before[drawn_rows] + nth,
            drawn_at=(ends[drawn_rows] - 1 - drafts_behind).astype(np.int64),
            drawn_slots=slots[drawn_rows],
            drawn_positions=reach[drawn_rows] - drafts_behind,
            scored=_scored(rows, ids, more_before),
            embeds_at=offsets[embedded].astype(np.int64) + nth_embed,
        )


def _scored(rows: Ints, ids: Ints, more_before: Indices) -> Scored:
    """A row's last tokens, without the one that it draws behind. All of such a row's tokens are known."""
    scores, samples = rows[:, ROW_SCORES], rows[:, ROW_FLAGS] & ROW_SAMPLES
    row, nth = spread(scores)
    ends = rows[:, ROW_OFFSET] + rows[:, ROW_COUNT]
    at = (ends - samples - scores)[row] + nth
    is_last = at + 1 == ends[row]
    tokens = np.where(is_last, rows[row, ROW_NEXT], np.append(ids, np.int32(0))[at + 1])
    return Scored(
        at=at.astype(np.int64),
        tokens=tokens.astype(np.int32),
        results=(row + (more_before - scores)[row] + nth).astype(np.int64),
        slots=np.ascontiguousarray(rows[row, ROW_SLOT]),
    )
