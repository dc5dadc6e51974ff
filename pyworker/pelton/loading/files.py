"""A file of a model's folder, before it is opened: whoever opens a pipe waits until somebody writes to it."""

from __future__ import annotations

import stat
from pathlib import Path

from pelton.loading.error import LoadError


def size_of(path: Path) -> int:
    """Bytes that a file has; refuses what is none. `OSError`: it is not there, say."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise LoadError(f"{path} is no regular file; supported: files, and links to files")
    return found.st_size
