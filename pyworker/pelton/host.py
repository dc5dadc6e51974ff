"""The router's host memory as this worker sees it: blocks of bytes that outlive the worker.

Invariant: after `close` nothing of this process writes there or reads it, copies that a card still had in its queue
included. Whoever hangs up on the router closes first, so that the router may give the blocks to others.
"""

from __future__ import annotations

import logging

import torch
from pelton_kernels._native import HostMemory
from torch import Tensor

log = logging.getLogger("pelton.worker")


class HostBlocks:
    """All blocks as a matrix of bytes."""

    def __init__(self, memory: HostMemory, device: torch.device) -> None:
        self._device = device
        self.bytes: Tensor = torch.frombuffer(memory, dtype=torch.uint8).view(memory.blocks, memory.stride)
        self._is_registered = device.type == "cuda" and _register(self.bytes)

    def settle(self) -> None:
        """Returns once all copies are done."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """See the top of the file."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if self._is_registered:
            self._is_registered = False
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())


def _register(memory: Tensor) -> bool:
    """Pins the memory, so that a card copies from it by itself and at the bus's full speed."""
    error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) == 0:
        return True
    log.warning("host memory cannot be pinned (CUDA error %s): its copies hold up the steps", int(error))
    return False
