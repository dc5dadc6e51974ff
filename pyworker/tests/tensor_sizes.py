"""How large the tensors are that a piece of code makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that one tensor has, of those of `dtype` if one is given."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and self._dtype in (None, made.dtype):
            self.bytes = max(self.bytes, made.nbytes)
        return made
