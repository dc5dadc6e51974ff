"""The one place where arrays of the host become tensors of the device, and back.

On a CPU they are the same memory. To a card all arrays of one call travel in one pinned copy, and results come back in
one wait. Whatever is returned by `up` counts until the next `up`; by `down`, until the next `down`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

LINE = 64  # arrays begin on lines, so that any dtype is aligned


class Transfer(Protocol):
    """Between host and device."""

    def up(self, arrays: Sequence[Array]) -> list[Tensor]:
        """Tensors with the arrays' contents, on the device."""

    def down(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Arrays with the tensors' contents, once the device has computed them."""


def transfer_for(device: torch.device) -> Transfer:
    """The way to and from `device`."""
    return CardTransfer(device) if device.type == "cuda" else HostTransfer()


class HostTransfer:
    """For a CPU: no copy."""

    def up(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [torch.from_numpy(array) for array in arrays]

    def down(self, tensors: Sequence[Tensor]) -> list[Array]:
        return [tensor.numpy() for tensor in tensors]


class CardTransfer:
    """For a card: pinned memory on this side, grown to the largest call so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._staging = _pinned(0)
        self._arrived = torch.empty(0, dtype=torch.uint8, device=device)
        self._returned = _pinned(0)

    def up(self, arrays: Sequence[Array]) -> list[Tensor]:
        places, total = _places([array.nbytes for array in arrays])
        self._sent.synchronize()  # the last copy may still be reading the staging memory
        if total > len(self._staging):
            self._staging = _pinned(2 * total)
            self._arrived = torch.empty(2 * total, dtype=torch.uint8, device=self._device)
        host: NDArray[np.uint8] = self._staging.numpy()
        for array, begin in zip(arrays, places, strict=True):
            host[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        # In stream order: kernels of the last step that still read `_arrived` come first.
        self._arrived[:total].copy_(self._staging[:total], non_blocking=True)
        self._sent.record()
        return [
            self._arrived[begin : begin + array.nbytes].view(_dtype(array)).view(array.shape)
            for array, begin in zip(arrays, places, strict=True)
        ]

    def down(self, tensors: Sequence[Tensor]) -> list[Array]:
        places, total = _places([tensor.nbytes for tensor in tensors])
        if total > len(self._returned):
            self._returned = _pinned(2 * total)
        views = [
            self._returned[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for tensor, begin in zip(tensors, places, strict=True)
        ]
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return [view.numpy() for view in views]


def _places(sizes: list[int]) -> tuple[list[int], int]:
    """Where arrays of these sizes begin, one after the other, and where the last one ends."""
    lines = np.cumsum([0] + [-(-size // LINE) * LINE for size in sizes])
    return lines[:-1].tolist(), int(lines[-1])


def _pinned(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, pin_memory=count > 0)


def _dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
