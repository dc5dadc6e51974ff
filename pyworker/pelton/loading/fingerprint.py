"""Whether files are those of before, without reading all of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

SAMPLES, SAMPLE_BYTES = 8, 4096


def fingerprint(folder: Path) -> str:
    """Changes when a file that loading reads is replaced: names, sizes, times, inodes, and some of the contents, for whoever copies
    one over another may give it the other's times (`cp -p`). The time of the last change of all says too much: a file that is
    mounted, linked or given its owner once more has another."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):  # modules behind a model have folders of their own
        # `vocab.txt` tells a separator; Python may be the model's own.
        if path.suffix in {".json", ".safetensors", ".py"} or path.name == "vocab.txt":
            digest.update(f"{path.relative_to(folder)} ".encode(errors="surrogateescape"))
            # A link to nowhere, or what is being deleted: loading says so if it wants it.
            with contextlib.suppress(OSError):
                digest.update(_looks(path))
    return digest.hexdigest()


def _looks(path: Path) -> bytes:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return b""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}\n".encode() + _sample(path, found.st_size)


def _sample(path: Path, size: int) -> bytes:
    """Its first bytes, its last, and some between at equal distances."""
    with path.open("rb", buffering=0) as file:
        places = {max(0, size - SAMPLE_BYTES) * at // (SAMPLES - 1) for at in range(SAMPLES)}
        return b"".join(os.pread(file.fileno(), SAMPLE_BYTES, place) for place in sorted(places))
