"""Steps at fixed sizes against transformers: graphs on a card, else the same kernels through Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from pelton.kv import KvArena
from pelton.kv_shape import KvShape
from pelton.loading.checkpoint import Checkpoint, read_config
from pelton.loading.choice import source_of
from pelton.loading.source import Source
from pelton.loading.wish import Wish
from pelton.models.decoder import Decoder
from pelton.quantization.choice import quantization_of
from pelton.replay import Replay
from pelton.step import Step
from pelton_kernels.ops import dispatch
from random_checkpoints import VOCAB, logits, write

pytest.importorskip("triton", reason="Triton is not installed")
from pelton_kernels import cuda

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, SLOTS, BLOCKS_EACH, LONGEST = 16, 11, 3, 48


def on_card() -> AbstractContextManager[None]:
    """Ops go to the card's kernels, whether there is a card or not."""
    return nullcontext() if DEVICE.type == "cuda" else dispatch.watched(cuda)


class Rows:
    """A model and rows of requests, each with blocks of its own: here a row's whole text is known, and steps walk along it."""

    def __init__(self, folder: Path) -> None:
        checkpoint = Checkpoint.open(folder)
        quantization = quantization_of(read_config(folder), "auto", "head")
        source = source_of(Wish(folder, device=DEVICE.type), checkpoint, quantization, DEVICE, torch.float32)
        for _ in self._read(source):
            pass
        config, division = source.config, source.division
        self.kinds = len(division.kinds)
        sizes = division.per_kind, config.kv_heads, config.head_dim, BLOCK, "float32", division.kinds
        blocks = SLOTS * self.kinds * BLOCKS_EACH
        self.kv = KvArena(KvShape(*sizes), blocks + 1, DEVICE)
        for keys, values in self.kv.layers:
            keys.fill_(math.nan)
            values.fill_(math.nan)
        order = torch.randperm(blocks + 1)
        self.nobodys = int(order[-1])
        self.tables = order[:-1].view(self.kinds, SLOTS, BLOCKS_EACH).int()
        self.texts = torch.randint(VOCAB, (SLOTS, LONGEST)).int()

    def _read(self, source: Source) -> Iterator[int]:
        model = yield from source.read(LONGEST)
        assert isinstance(model, Decoder)
        self.model = model

    def step(self, spans: dict[int, tuple[int, int]]) -> Step:
        """Of each row so many tokens: from, to."""
        slots = list(spans)
        positions = [torch.arange(*span) for span in spans.values()]
        places = [
            self.tables[:, slot][:, at // BLOCK].long() * BLOCK + at % BLOCK
            for slot, at in zip(slots, positions, strict=True)
        ]
        used = -(-max(end for _, end in spans.values()) // BLOCK)
        counts = torch.tensor([0, *(end - begin for begin, end in spans.values())])
        return Step(
            ids=torch.cat([self.texts[slot, slice(*span)] for slot, span in spans.items()]).to(DEVICE),
            positions=torch.cat(positions).int().to(DEVICE),
            kv_slots=torch.cat(places, dim=1).contiguous().to(DEVICE),
            block_table=self.tables[:, slots, :used].contiguous().to(DEVICE),
            row_offsets=counts.cumsum(0).int().to(DEVICE),
            row_starts=torch.tensor([begin for begin, _ in spans.values()]).int().to(DEVICE),
            kv=self.kv,
        )


@pytest.mark.parametrize("variant", ["qwen3", "gemma2", "gpt2"])
@torch.inference_mode()
def test_steps_of_any_rows_give_what_the_model_gives(variant: str, tmp_path: Path) -> None:
    """Sizes as they are, recorded, and replayed, in turn; with rows that come, go, and stand in another order."""
    folder = write(tmp_path / variant, variant)
    with on_card():
        rows = Rows(folder)
        replay = Replay(rows.model, rows.kv, SLOTS, BLOCKS_EACH, DEVICE)
        truth = {slot: logits(folder, rows.texts[slot].tolist()) for slot in range(SLOTS)}
        known = {slot: 3 * slot + 1 for slot in range(SLOTS)}
        begin = rows.step({slot: (0, end) for slot, end in known.items()})
        every = replay.logits(begin, begin.row_offsets[1:].long() - 1)  # more tokens than rows: not at a fixed size
        for got, (slot, end) in zip(every, known.items(), strict=True):
            torch.testing.assert_close(got.cpu(), truth[slot][end - 1], rtol=1e-4, atol=1e-3)
        whole = list(range(SLOTS))
        steps = [[4], [3, 10, 0], whole, [2, 1, 5], [9], [7, 8, 6], whole[::-1], [10], [1, 2, 3, 9], [5], whole, [6, 0]]
        for number, slots in enumerate(steps):
            if number == 9:  # the next router's: all sizes are new to it
                replay = Replay(rows.model, rows.kv, SLOTS, BLOCKS_EACH, DEVICE)
            step = rows.step({slot: (known[slot], known[slot] + 1) for slot in slots})
            drawn = list(range(len(slots)))[::-2]  # not of each row, and in any order
            out = replay.logits(step, torch.tensor(drawn, device=DEVICE))
            assert out.shape == (len(drawn), VOCAB)
            for got, row in zip(out, drawn, strict=True):
                torch.testing.assert_close(got.cpu(), truth[slots[row]][known[slots[row]]], rtol=1e-4, atol=1e-3)
            for slot in slots:
                known[slot] += 1
        for keys, values in rows.kv.layers:  # what fills up a step's size has written nowhere
            assert keys[rows.nobodys].isnan().all()
            assert values[rows.nobodys].isnan().all()


@torch.inference_mode()
def test_a_step_that_draws_nothing_and_one_of_more_rows_than_any_size(tmp_path: Path) -> None:
    with on_card():
        rows = Rows(write(tmp_path / "llama", "llama"))
        small = Replay(rows.model, rows.kv, 2, BLOCKS_EACH, DEVICE)
        step = rows.step(dict.fromkeys(range(5), (0, 1)))
        assert small.logits(step, torch.empty(0, dtype=torch.int64, device=DEVICE)).shape == (0, VOCAB)
        out = small.logits(step, torch.arange(5, device=DEVICE))
        torch.testing.assert_close(out, rows.model.logits(step, torch.arange(5, device=DEVICE)), rtol=1e-4, atol=1e-3)
