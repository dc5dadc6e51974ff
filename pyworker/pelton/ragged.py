"""Arithmetic over parts of unequal length, without a loop over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def spread(lengths: NDArray[np.int32]) -> tuple[Indices, Indices]:
    """For every item of parts of these lengths, one part after the other: which part, and which item within it.

    [2, 0, 3] gives [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2].
    """
    part = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    return part, np.arange(len(part)) - (ends - lengths)[part]
