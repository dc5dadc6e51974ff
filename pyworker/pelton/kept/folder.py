"""The folder of kept entries: its user's own, bounded in bytes, the ones used longest ago deleted first."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import stat
import time
from pathlib import Path

log = logging.getLogger("pelton.worker")

SUFFIX = ".kept"
PART = ".part"
LONG_S = 3600  # without a byte written
SPARE_BYTES = 1 << 30  # what the disk keeps free in any case


class KeptFolder:
    """Entries by key."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max

    @classmethod
    def open(cls, path: Path | None, bytes_max: int) -> KeptFolder | None:
        """None: nothing is to be kept, or nothing can be, and then the log says why."""
        if path is None or bytes_max == 0:
            return None
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
            if found.st_uid != os.geteuid():
                log.warning("loaded models are not kept: %s is user %d's; set --model-cache", path, found.st_uid)
                return None
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                log.warning("loaded models are not kept: %s can be written by others; chmod 700 it", path)
                return None
        except OSError as error:
            log.warning("loaded models are not kept: %s: %s", path, error.strerror)
            return None
        return cls(path, bytes_max)

    def entry(self, key: str) -> Path:
        """Where the entry of this key is, or would be."""
        return self._path / f"{key}{SUFFIX}"

    def part(self, key: str) -> Path:
        """Where it is written until it is whole: a new name each time. Whoever writes it locks it (`kernels/kept/src/write.rs`)."""
        return self._path / f"{key}.{secrets.token_hex(8)}{PART}"

    def use(self, key: str) -> None:
        """The entry was used now. Where that cannot be written down (a disk that is read alone, say) it was none the less."""
        with contextlib.suppress(OSError):
            os.utime(self.entry(key))

    def forget(self, key: str, found: os.stat_result) -> None:
        """Deletes an entry, if it can be, and is the one that was found: another process may have replaced it since."""
        try:
            if os.path.samestat(self.entry(key).stat(), found):
                self.entry(key).unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be deleted: %s", self.entry(key), error.strerror)

    def make_room(self, key: str, size: int) -> bool:
        """Deletes what was used longest ago until so many bytes more are within the bounds, and those that others are writing. False: they
        never are, or another process writes this very entry."""
        writing = self._sweep()
        if any(path.name.startswith(f"{key}.") for path in writing):
            log.info("the loaded model is not kept: another process is keeping it")
            return False
        # Parts have their whole length from the first byte on.
        coming = sum(found.st_size for found in writing.values())
        if size + coming > self._bytes_max:
            beside = f", others that are being kept {coming}" if coming else ""
            log.info(
                "the loaded model is not kept: it takes %d bytes%s; --model-cache-size is %d",
                size,
                beside,
                self._bytes_max,
            )
            return False
        entries = sorted(
            ((path, found) for path in self._path.glob(f"*{SUFFIX}") if (found := _found(path)) is not None),
            key=lambda pair: pair[1].st_mtime,
        )
        # The entry that is written anew is there until it is replaced, so its place is not free yet.
        taken = coming + sum(found.st_size for path, found in entries if path != self.entry(key))
        unwritten = sum(max(found.st_size - 512 * found.st_blocks, 0) for found in writing.values())
        free = shutil.disk_usage(self._path).free - unwritten
        if size + SPARE_BYTES > free + taken - coming:
            log.info("the loaded model is not kept: %s has %d bytes free", self._path, free)
            return False
        for path, found in entries:
            if taken + size <= self._bytes_max and size + SPARE_BYTES <= free:
                break
            if path != self.entry(key):
                path.unlink(missing_ok=True)
                taken -= found.st_size
                free += found.st_size
        return True

    def _sweep(self) -> dict[Path, os.stat_result]:
        """Deletes what processes that ended had not written to the end. What is still written: whoever does holds a lock, which other
        containers see, too. Where a file system has none, the age decides what is deleted, and nothing is known to be written."""
        writing = dict[Path, os.stat_result]()
        for path in self._path.glob(f"*{PART}"):
            # A lock over NFS needs a file that is open for writing.
            with contextlib.suppress(OSError), path.open("r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_dead = True
                except BlockingIOError:
                    is_dead = False
                    writing[path] = os.fstat(file.fileno())
                except OSError:
                    is_dead = time.time() - path.stat().st_mtime > LONG_S
                if is_dead:
                    path.unlink(missing_ok=True)
        return writing


def _found(path: Path) -> os.stat_result | None:
    """None: another process has just deleted it."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
