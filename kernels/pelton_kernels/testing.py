"""What kernel tests share: fresh inputs, poisoned outputs, and errors as shares of the exact result.

A kernel's tolerance is derived, not guessed: `error(out, exact) <= 2 * error(plain, exact) + ulp(dtype)`, with `exact` from
float64 inputs and `plain` from the kernel's own, both through `reference`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from pelton_kernels import _native, ops


def isas() -> list[str]:
    """The classes that can be forced here: those that the processor has, and AMX, emulated, if it is all that is missing."""
    _native.emulate_tiles()
    return ops.available_isas()


@contextlib.contextmanager
def forced(isa: str) -> Iterator[str]:
    """With one of `isas`."""
    _native.emulate_tiles()  # pytest has taken the signal of unknown instructions since, to report it
    ops.force_isa(isa)
    try:
        yield isa
    finally:
        ops.force_isa(None)


def fresh(*shape: int, dtype: torch.dtype) -> Tensor:
    """Normal random values."""
    return torch.randn(*shape).to(dtype)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """A contiguous output full of NaN (of -1 for integers), between two guard rows of the same."""
    fill = torch.nan if dtype.is_floating_point else -1
    return torch.full((shape[0] + 2, *shape[1:]), fill, dtype=dtype)[1:-1]


def guards_untouched(out: Tensor) -> bool:
    """Whether the rows before and after a `poisoned` output are still as they were."""
    whole = out._base
    assert whole is not None, "an output of `poisoned`"
    guards = torch.stack([whole[0], whole[-1]])
    return bool((guards.isnan() if out.dtype.is_floating_point else guards == -1).all())


def error(got: Tensor, exact: Tensor) -> float:
    """The greatest difference, as a share of the greatest exact value."""
    if exact.numel() == 0:
        return 0.0
    difference = (got.double() - exact.double()).abs().amax() / exact.double().abs().amax().clamp(min=1e-30)
    return float(difference.nan_to_num(torch.inf))


def cancelled(exact: Tensor, bias: Tensor | None) -> float:
    """How much greater the parts of a sum with a bias are than the sum, at least 1: their rounding is so much more of it."""
    if bias is None or exact.numel() == 0:
        return 1.0
    parts = torch.maximum((exact - bias.double()).abs().amax(), bias.double().abs().amax())
    return max(1.0, float(parts / exact.abs().amax().clamp(min=1e-30)))


def ulp(dtype: torch.dtype) -> float:
    """The step between neighbouring numbers, as a share of the greater."""
    return torch.finfo(dtype).eps
