"""Where a model runs, and what there is of memory there. The one place that asks torch about the machine."""

from __future__ import annotations

import torch

from pelton import machine
from pelton.loading.error import LoadError

CARD_SHARE = 0.92  # of a card's free memory; the rest: the driver's own, and fragmentation


def choose(wish: str) -> torch.device:
    """ "auto" is the first card that PyTorch can use, else the processor."""
    if wish == "cpu" or (wish == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if wish in {"auto", "cuda"}:
        if not torch.cuda.is_available():
            raise LoadError("--device cuda: PyTorch sees no card it can use; check `nvidia-smi` and the PyTorch build")
        return torch.device("cuda", 0)
    raise LoadError(f"--device {wish}; supported: auto, cpu, cuda")


def memory(device: torch.device, limit_bytes: int) -> tuple[int, int]:
    """What is taken already, and the most that may be taken in all.

    `limit_bytes` is the host's; a card's limit is what the card has free. 0: what the machine has available.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return 0, int(free * CARD_SHARE)
    return machine.memory(limit_bytes)
