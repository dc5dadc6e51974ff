"""The masks of a step's rows: fetched when the logits are there, since they are written while the forward pass runs.

Never here: grammars, sampling. A row whose mask does not come in time is not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pelton_kernels._native import MaskMemory

from pelton.frames import ROW_FLAGS, ROW_MASKED, ROW_SLOT, Ints


@dataclass(frozen=True, slots=True)
class RowMasks:
    """By drawn row."""

    masks: Ints  # [masks, words]: a bit per token, lowest first
    mask_of: Ints  # [rows]: which of them; -1: none
    is_missing: NDArray[np.bool_]  # [rows]: it should have one, and has none


def row_masks(memory: MaskMemory | None, step: int, rows: Ints) -> RowMasks | None:
    """Those of `rows`, which are drawn. None: no row has one."""
    is_masked = rows[:, ROW_FLAGS] & ROW_MASKED != 0
    if not is_masked.any():
        return None
    is_here = np.zeros(len(rows), dtype=np.bool_)
    words: Ints = np.zeros((0, 0), dtype=np.int32)
    if memory is not None:
        taken, here = memory.take(step, rows[is_masked, ROW_SLOT].tolist())
        is_here[is_masked] = here
        words = np.frombuffer(taken, dtype=np.int32).reshape(-1, -(-memory.tokens // 32)).copy()
    mask_of = np.where(is_here, np.cumsum(is_here) - 1, -1).astype(np.int32)
    return RowMasks(masks=words, mask_of=mask_of, is_missing=is_masked & ~is_here)
