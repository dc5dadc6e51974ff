"""The CPU's arithmetic is the one that its numerics id stands for: sums of bits that do not change."""

from __future__ import annotations

import pytest
from golden import CASES, DTYPES, sum_of, version, written
from pelton_kernels import ops

OF, WRITTEN = written()


def test_the_sums_are_those_of_this_version() -> None:
    assert version() == OF, "kernels/tests/golden.py writes the sums of a new version"


@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_this_version_of_the_numerics_id(case: str, isa: str) -> None:
    for name, dtype in DTYPES.items():
        expected = WRITTEN[f"{case}, {name}"].get(isa)
        if expected is None:
            pytest.skip(f"no sums of {isa} are written down yet: kernels/tests/golden.py writes them")
        for threads in (1, 2):
            ops.set_threads(threads)
            assert sum_of(case, dtype) == expected, f"raise VERSION in Cpu::numerics_id, then run golden.py ({name})"
