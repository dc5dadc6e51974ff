"""Memory for weights, asked for before they are read: while PyTorch is imported, a core and the memory have nothing to do."""

from __future__ import annotations

from pelton_kernels._native import ForeseenMemory

from pelton import machine
from pelton.loading.wish import Wish

BYTES_MAX = 2 << 30  # about what comes while PyTorch is imported
SHARES = {"int8": 0.5, "int4": 0.25}  # of what is stored
OTHERS_SHARE = 0.75  # bfloat16 lies in 12 bits


def foresee(wish: Wish) -> ForeseenMemory:
    """For most of the weights that this wish will take, and never more than half of what may be taken. A guess: what is not
    needed goes back with the result."""
    stored = sum(file.stat().st_size for file in wish.folder.glob("*.safetensors"))
    kind = wish.quantize.partition("-")[0]
    held, limit = machine.memory(wish.memory_limit_bytes)
    wanted = min(int(stored * SHARES.get(kind, OTHERS_SHARE)), BYTES_MAX, (limit - held) // 2)
    return ForeseenMemory(max(wanted, 0))
