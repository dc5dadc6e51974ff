"""The machine, asked without torch: cores and memory."""

from __future__ import annotations

import platform
from pathlib import Path

from pelton_kernels import _native


def cores() -> int:
    """Cores that this process may use."""
    return _native.available_cores()


def description() -> str:
    """Processor and cores, for whoever reads a measurement."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {cores()} cores"


def memory(limit_bytes: int) -> tuple[int, int]:
    """What this process has taken already, and the most that it may take in all; 0: what is available, in its cgroups too,
    less something for the others."""
    held = _kilobytes(Path("/proc/self/status"), "RssAnon") * 1024
    return held, limit_bytes or held + _native.available_memory()


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
