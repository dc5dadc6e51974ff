"""Masks on the way through Python: fetched for the rows that have one, and what becomes of a row whose mask is missing."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pelton.frames import HAS_PENALTIES, ROW_MASKED, ROW_SAMPLES, UNSAMPLED, Ints
from pelton.masks import row_masks
from pelton.sampler import Sampler
from pelton.transfer import Array, HostTransfer, transfer_for
from pelton_kernels._native import MaskMemory

TOKENS = 40
CPU = torch.device("cpu")


def inline(step: int, slot: int, *words: int) -> bytes:
    """A mask as it travels; without words its row is passed over."""
    return struct.pack(f"<{4 + len(words)}I", step, 0, slot, int(bool(words)), *words)


def rows(*flags: int) -> Ints:
    made = np.zeros((len(flags), 8), dtype=np.int32)
    made[:, 0] = range(len(flags))
    made[:, 5] = flags
    return made


def test_only_rows_with_masks_are_looked_for() -> None:
    memory = MaskMemory.local(4, TOKENS, 1)
    masked = ROW_SAMPLES | ROW_MASKED
    assert row_masks(memory, 1, rows(ROW_SAMPLES, ROW_SAMPLES)) is None
    memory.accept(inline(7, 1, 5, 6))
    memory.accept(inline(7, 3))
    found = row_masks(memory, 7, rows(ROW_SAMPLES, masked, masked, masked))
    assert found is not None
    assert found.masks.tolist() == [[5, 6]]
    assert found.mask_of.tolist() == [-1, 0, -1, -1]
    assert found.is_missing.tolist() == [False, False, True, True]
    without = row_masks(None, 7, rows(masked))
    assert without is not None
    assert without.is_missing.all()


def test_a_row_whose_mask_is_missing_leaves_no_trace() -> None:
    sampler = Sampler(3, TOKENS, 2, CPU, transfer_for(CPU))
    sampler._params[:, 1] = HAS_PENALTIES
    sampler._params[:, 6] = int(np.float32(1).view(np.int32))
    sampler._counts = torch.zeros(3, TOKENS, dtype=torch.int32)
    sampler.latest[:] = torch.tensor([9, 9, 9])
    memory = MaskMemory.local(3, TOKENS, 1)
    memory.accept(inline(1, 1, 0b100, 0))
    masked = ROW_SAMPLES | ROW_MASKED
    masks = row_masks(memory, 1, rows(ROW_SAMPLES, masked, masked))
    logits = torch.arange(TOKENS, dtype=torch.float32).repeat(3, 1)
    drawn = sampler.draw(logits, torch.arange(3, dtype=torch.int32), torch.full((3,), 5, dtype=torch.int32), masks)
    assert drawn.tokens.tolist()[:2] == [TOKENS - 1, 2]
    assert drawn.flags.tolist() == [0, 0, UNSAMPLED]
    assert sampler.latest.tolist() == [TOKENS - 1, 2, 9]
    assert sampler._counts.sum(dim=1).tolist() == [1, 1, 0]


def test_what_is_no_mask_is_refused() -> None:
    memory = MaskMemory.local(2, TOKENS, 1)
    for wrong in (b"", inline(1, 2, 1, 1), inline(1, 0, 1), inline(1, 0, 1, 1, 1)):
        with pytest.raises(RuntimeError):
            memory.accept(wrong)
    with pytest.raises(ValueError, match="slot 2"):
        memory.take(1, [2])
    with pytest.raises(ValueError, match="tokens"):
        MaskMemory.create(2, 0, 1)


class Reused(HostTransfer):
    """As a card's: what one call returned is written over by the next."""

    def __init__(self) -> None:
        self._last: list[torch.Tensor] = []

    def up(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        for tensor in self._last:
            tensor.fill_(-7)
        self._last = [torch.from_numpy(array.copy()) for array in arrays]
        return self._last


def test_masks_write_over_nothing_that_the_step_sent() -> None:
    transfer = Reused()
    sampler = Sampler(3, TOKENS, 2, CPU, transfer)
    sampler.latest[:] = torch.tensor([9, 9, 9])
    memory = MaskMemory.local(3, TOKENS, 1)
    memory.accept(inline(1, 1, 0b100, 0))
    masked = ROW_SAMPLES | ROW_MASKED
    masks = row_masks(memory, 1, rows(ROW_SAMPLES, masked, masked))
    slots, positions = transfer.up([np.array([2, 0, 1], dtype=np.int32), np.array([5, 5, 5], dtype=np.int32)])
    drawn = sampler.draw(torch.arange(TOKENS, dtype=torch.float32).repeat(3, 1), slots, positions, masks)
    assert drawn.tokens.tolist()[:2] == [TOKENS - 1, 2]
    assert sampler.latest.tolist() == [2, 9, TOKENS - 1]
