"""Memory for weights, asked for before they are read: while PyTorch is imported, a core and the memory have nothing to do."""

from __future__ import annotations

import contextlib

from pelton_kernels._native import ForeseenMemory

from pelton import machine
from pelton.loading.wish import Wish

BYTES_MAX = 2 << 30  # about what comes while PyTorch is imported
SHARES = {"int8": 0.5, "int4": 0.25}  # of what is stored
OTHERS_SHARE = 0.75  # bfloat16 lies in 12 bits


def foresee(wish: Wish) -> ForeseenMemory:
    """For most of the weights that this wish will take, as far as there is room for them twice. A guess: what is not needed goes back
    with the result."""
    stored = 0
    with contextlib.suppress(OSError):  # whoever reads them says what is wrong
        stored = sum(file.stat().st_size for file in wish.folder.glob("*.safetensors"))
    held, limit = machine.memory(wish.memory_limit_bytes)
    share = SHARES.get(wish.quantize.partition("-")[0], OTHERS_SHARE)
    # Some weights lie elsewhere, as those of a model that transformers defines: then it stands beside all of them.
    room = limit - held - stored
    return ForeseenMemory(max(min(int(stored * share), BYTES_MAX, room), 0))
