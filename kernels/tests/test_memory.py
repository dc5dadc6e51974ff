"""Memory that is taken before there are weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20
FORESEEN = 160  # MiB
NOISE = 12  # MiB that a process takes beside that

# A process of its own: what others pack would lie there, too.
PROGRAM = f"""
import sys, time
from pathlib import Path
import torch
from pelton_kernels import ops
from pelton_kernels._native import ForeseenMemory

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

columns = int(float(sys.argv[1]) * {MIB} / 4 / 4096)
weight = torch.full((columns, 4096), 0.5)  # float32, which is packed as it is
ops.pack(weight[:64])
before = held()
memory = ForeseenMemory({FORESEEN} * {MIB})
end = time.monotonic() + 60
while held() - before < {FORESEEN - 2}:
    assert time.monotonic() < end, f"{{held() - before}} MiB came"
    time.sleep(0.001)
there = memory.stop() // {MIB}
packed = ops.pack(weight)
with_weights, waiting = held() - before, memory.stop() // {MIB}
del memory
out = torch.empty(1, columns)
ops.linear(out, torch.ones(1, 4096), packed)
assert out.unique().tolist() == [2048.0]
print(there, with_weights, waiting, held() - before)
"""


@pytest.mark.parametrize("weights", [0.25, 64, 224])
def test_weights_lie_in_memory_that_was_foreseen_and_the_rest_goes_back(weights: float) -> None:
    """The last are more than was foreseen."""
    command = [sys.executable, "-c", PROGRAM, str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    there, with_weights, waiting, at_last = map(int, done.stdout.split())
    assert there == pytest.approx(FORESEEN, abs=4)
    assert with_weights == pytest.approx(max(FORESEEN, weights), abs=NOISE)
    assert waiting == pytest.approx(max(FORESEEN - weights, 0), abs=4)
    assert at_last == pytest.approx(weights, abs=NOISE)
