"""Kernels that are launched while the one before them runs (programmatic dependent launch, of cards since Hopper).

A step with few tokens is hundreds of small kernels, which take less time than what lies between them: that the one has ended, that the
next one begins, that its first numbers arrive. So each lets the next one begin at once, and waits itself, before it reads or
writes anything that a kernel may have written, until all before it have ended. Weights it may read before, and the step's arrays, which
say where rows lie: they are written before the step's first kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl

HOPPER: Final = (9, 0)


@triton.jit
def begin_kernel(OVERLAPS: tl.constexpr):
    """The first thing that a kernel does, but for reading weights and the step's arrays. Each of its programs does it, whatever it has to do."""
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@cache
def overlapped(device: torch.device) -> dict[str, Any]:
    """How a kernel is launched that calls `begin_kernel`."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    if not is_nvidia or torch.cuda.get_device_capability(device) < HOPPER:
        return {"OVERLAPS": False}
    return {"OVERLAPS": True, "launch_pdl": True}
