"""Every kernel test runs on fresh random inputs, and the CPU's on each instruction set that this machine has."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

if not torch.cuda.is_available():
    # Triton reads this when it is imported, and other tests' libraries import it too: so here, before all of them.
    os.environ["TRITON_INTERPRET"] = "1"

from pelton_kernels import ops
from pelton_kernels.testing import forced, isas


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="repeat a run of the kernel tests: the seed that its failure printed")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    chosen = request.config.getoption("--seed", None)
    seed = secrets.randbits(31) if chosen is None else int(chosen)
    print(f"--seed {seed}")  # shown when the test fails
    torch.manual_seed(seed)
    return seed


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param) as isa:
        yield isa


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=[False, True], ids=["plain", "codes"])
def has_codes(request: pytest.FixtureRequest) -> bool:
    """Whether caches hold codes of 8 bits."""
    return bool(request.param)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    torch.set_num_threads(1)
    ops.set_threads(2)
    yield
    ops.set_threads(2)
