"""Whether files are those of before, by looking at no contents."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(folder: Path) -> str:
    """Changes when a file that loading reads is replaced: names, sizes and times, not contents. The time of the last change
    counts beside that of the last write, which whoever copies a file over another may set (`cp -p`)."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):  # modules behind a model have folders of their own
        if path.suffix in {".json", ".safetensors"} or path.name == "vocab.txt":  # which tells a separator
            stat = path.stat()
            times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
            digest.update(f"{path.relative_to(folder)} {stat.st_size} {times} {stat.st_ino}\n".encode())
    return digest.hexdigest()
