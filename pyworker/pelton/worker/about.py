"""What this worker is: known without torch, because the handshake does not wait for it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
from pathlib import Path


def device() -> tuple[str, str]:
    """What "auto" will choose, and what the card or processor calls itself."""
    cuda = _torch_cuda()
    card = None if cuda is None else _card(cuda)
    return ("cuda:0", card) if card else ("cpu", _processor())


def resident_bytes() -> int:
    """The process's resident set."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _torch_cuda() -> int | None:
    """Which CUDA torch is built for, the first number of it (0: that is not known); None: for none."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    for folder in map(Path, folders or []):
        if (folder / "lib" / "libtorch_cuda.so").exists():
            version = folder / "version.py"
            said = re.search(r"^cuda\b.*= *'(\d+)", version.read_text() if version.exists() else "", re.MULTILINE)
            return int(said[1]) if said else 0
    return None


def _card(cuda: int) -> str | None:
    """The name of the first card, from the driver; None without a driver or a card, or where torch's CUDA is newer than the driver knows:
    then torch uses none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, version, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(version)) or version.value // 1000 < cuda:
        return None
    return name.value.decode() if driver.cuDeviceGetName(name, len(name), 0) == 0 else None
