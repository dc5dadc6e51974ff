"""Frames as arrays: views of every region, made once, and the cut of them that one step uses.

Never here: the meaning of a record, tensors, gRPC. Offsets come from the memory itself (`WorkerEnd.layout`), counts
from a header that the native side has checked; the column numbers below are those of proto/frame/src/records.rs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

# Columns of an Admit record. The sampling kernel reads the others.
ADMIT_SLOT, ADMIT_FLAGS, ADMIT_PROMPT_LEN, ADMIT_SCORE_TOP = 0, 1, 12, 20
BIAS_OFFSET, BIAS_COUNT, SUPPRESS_OFFSET, SUPPRESS_COUNT, HISTORY_OFFSET, HISTORY_COUNT = 14, 15, 16, 17, 18, 19
TOLD_COUNT = 21
ADMIT_WORDS = 24
HAS_PENALTIES = 1  # of ADMIT_FLAGS
# Columns of a Row record.
ROW_SLOT, ROW_START, ROW_COUNT, ROW_KNOWN, ROW_TOKEN_OFFSET, ROW_FLAGS, ROW_OFFSET = range(7)
ROW_DRAFTS, ROW_SCORES, ROW_NEXT, ROW_EMBEDS = range(7, 11)
ROW_SAMPLES, ROW_MASKED, ROW_POOLS = 1, 2, 4  # of ROW_FLAGS
NOT_FINITE, UNSAMPLED = 1, 2  # of a result's flags


class Regions(Protocol):
    """The part of `WorkerEnd` that says where everything lies."""

    @property
    def layout(self) -> Mapping[str, tuple[int, int, int]]:
        """Region -> (bytes from the frame's begin, words per record, records)."""

    @property
    def frame_stride(self) -> int:
        """Bytes from one frame to the next."""

    @property
    def frames(self) -> int:
        """How many."""

    @property
    def preamble_bytes(self) -> int:
        """Bytes before the first one."""

    def buffer(self) -> Any:
        """The whole mapping, writable."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Records in each region of one step, as its header says."""

    step: int
    epoch: int
    drops: int
    admits: int
    appends: int
    copies: int
    biases: int
    suppressed: int
    history: int
    rows: int
    tokens: int
    saves: int
    loads: int
    draws: int
    embeds: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One step: what the router wrote, and where the results go. All are views; nothing is copied."""

    drops: Ints  # [drops] slots
    admits: Ints  # [admits, 24]
    biases: Ints  # [biases, 2]: token, value as float32 bits
    suppressed: Ints  # [suppressed]
    history: Ints  # [history]
    appends: Ints  # [appends, 4]: slot, kind, at, block
    saves: Ints  # [saves, 2]: block, host block
    loads: Ints  # [loads, 2]: host block, block
    copies: Ints  # [copies, 4]: from, to, tokens, zero
    rows: Ints  # [rows, 11]
    tokens: Ints  # [tokens]
    embeds: Floats  # [embeds, embed_width]
    results: Results


@dataclass(frozen=True, slots=True)
class Results:
    """What rows drew, scored or pooled: a place for each row, and one more for each of its drafts and, before these, its scores.
    Those of rows that do not sample are zero; vectors of rows that do not pool mean nothing."""

    sampled: Ints  # [draws]; of what was scored the rank
    flags: Ints  # [draws]
    chosen_logprob: Floats  # [draws]
    top_ids: Ints  # [draws, top_logprobs]
    top_logprobs: Floats  # [draws, top_logprobs]
    pooled: Floats  # [draws, pooled_width]


class FrameViews:
    """The regions of every frame of a memory, as arrays of their full capacity."""

    def __init__(self, memory: Regions) -> None:
        words: Ints = np.frombuffer(memory.buffer(), dtype=np.int32)
        self.slots = memory.layout["rows"][2]
        self.tokens = memory.layout["tokens"][2]
        self.top_logprobs = memory.layout["top_ids"][1]
        self.pooled_width = memory.layout["pooled"][1]
        self._frames = [
            {
                name: _region(words, memory.preamble_bytes + frame * memory.frame_stride, *place)
                for name, place in memory.layout.items()
            }
            for frame in range(memory.frames)
        ]

    def cut(self, frame: int, counts: Counts) -> Frame:
        """The used part of each region."""
        region, draws = self._frames[frame], counts.draws
        return Frame(
            drops=region["drops"][: counts.drops, 0],
            admits=region["admits"][: counts.admits],
            biases=region["biases"][: counts.biases],
            suppressed=region["suppressed"][: counts.suppressed, 0],
            history=region["history"][: counts.history, 0],
            appends=region["appends"][: counts.appends],
            saves=region["saves"][: counts.saves],
            loads=region["loads"][: counts.loads],
            copies=region["copies"][: counts.copies],
            rows=region["rows"][: counts.rows],
            tokens=region["tokens"][: counts.tokens, 0],
            embeds=region["embeds"][: counts.embeds].view(np.float32),
            results=Results(
                sampled=region["sampled"][:draws, 0],
                flags=region["flags"][:draws, 0],
                chosen_logprob=region["chosen_logprob"][:draws, 0].view(np.float32),
                top_ids=region["top_ids"][:draws],
                top_logprobs=region["top_logprobs"][:draws].view(np.float32),
                pooled=region["pooled"][:draws].view(np.float32),
            ),
        )


def _region(words: Ints, frame_bytes: int, offset: int, width: int, records: int) -> Ints:
    begin = (frame_bytes + offset) // 4
    return words[begin : begin + width * records].reshape(records, width)
