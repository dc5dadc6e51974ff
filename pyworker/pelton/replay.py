"""Steps of one token a row, on a card: recorded once as a CUDA graph, then replayed without any Python for each layer.

A graph runs at fixed sizes and addresses. So there is one for each size in `SIZES`, and a step takes the next larger one; what its arrays
hold beyond the step's rows is of rows without tokens, which read and write no keys and values. All graphs share their inputs and the
memory of what they compute. A size is run as it is when it is first met, which compiles what is missing, and recorded when it is met again.

Never recorded: the head, drawing. What the layers give counts until the next step.
"""

from __future__ import annotations

import bisect
import logging
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from pelton.kv import KvArena
from pelton.loading.budget import RECORDED_ROWS
from pelton.models.decoder import Decoder
from pelton.step import Step

log = logging.getLogger("pelton.worker")

SIZES: Final = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, RECORDED_ROWS + 1, 32))
"""Rows. Smaller gaps would be more graphs, larger ones more work for nothing."""


class Replay:
    """A model's steps, by graph where there can be one."""

    def __init__(self, model: Decoder, kv: KvArena, slots: int, blocks_max: int, device: torch.device) -> None:
        """`slots`: the most rows of a step; `blocks_max`: the most blocks of a row."""
        self._model = model
        self._device = device
        most, kinds = min(RECORDED_ROWS, slots), len(kv.shape.kinds)
        self._sizes = [*(size for size in SIZES if size < most), most]

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._inputs = Step(
            ids=zeros(most),
            positions=zeros(most),
            kv_slots=zeros(kinds, most, dtype=torch.int64),
            block_table=zeros(kinds, most, blocks_max),
            row_offsets=zeros(most + 1),
            row_starts=zeros(most),
            kv=kv,
        )
        self._met: set[int] = set()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool: Any = None

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:
        """As `LanguageModel.logits`."""
        rows = step.row_starts.shape[0]
        if not self._sizes:
            return self._model.logits(step, drawn_at)
        # No row is empty, so as many tokens as rows are one each.
        is_even = rows == step.ids.shape[0] and step.embeds is None
        if not is_even or rows > self._sizes[-1] or drawn_at.shape[0] == 0:
            return self._model.logits(step, drawn_at)
        size = self._sizes[bisect.bisect_left(self._sizes, rows)]
        self._fill(step, rows, size)
        out: Tensor = self._model.head(self._hidden(size).index_select(0, drawn_at))
        return out

    def _hidden(self, size: int) -> Tensor:  # [size, width]
        if size in self._graphs:
            graph, replayed = self._graphs[size]
            graph.replay()
            return replayed
        step = self._cut(size)
        if (
            size not in self._met or self._device.type != "cuda"
        ):  # tests do without a card, through Triton's interpreter
            self._met.add(size)
            out: Tensor = self._model(step)
            return out
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may ask the card for what a recording of theirs could not have.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                hidden: Tensor = self._model(step)
        except RuntimeError as error:  # too little memory, say
            log.warning("steps of %d rows are not recorded, which is slower: %s", size, error)
            self._sizes.remove(size)
            launched: Tensor = self._model(step)
            return launched
        self._pool = graph.pool()
        self._graphs[size] = graph, hidden
        graph.replay()
        return hidden

    def _fill(self, step: Step, rows: int, size: int) -> None:
        """The step's arrays as the first `rows` of so many."""
        inputs = self._inputs
        inputs.ids[:rows].copy_(step.ids)
        inputs.positions[:rows].copy_(step.positions)
        inputs.kv_slots[:, :rows].copy_(step.kv_slots)
        inputs.block_table[:, :rows, : step.block_table.shape[2]].copy_(step.block_table)
        inputs.row_offsets[: rows + 1].copy_(step.row_offsets)
        inputs.row_starts[:rows].copy_(step.row_starts)
        if rows < size:
            inputs.kv_slots[:, rows:size].fill_(-1)
            inputs.row_offsets[rows + 1 : size + 1].fill_(rows)

    def _cut(self, size: int) -> Step:
        """The inputs at this size."""
        inputs = self._inputs
        return replace(
            inputs,
            ids=inputs.ids[:size],
            positions=inputs.positions[:size],
            kv_slots=inputs.kv_slots[:, :size],
            block_table=inputs.block_table[:, :size],
            row_offsets=inputs.row_offsets[: size + 1],
            row_starts=inputs.row_starts[:size],
        )
