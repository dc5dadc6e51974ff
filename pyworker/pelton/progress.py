"""A progress bar on a terminal; nothing where nobody looks."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import Self

WIDTH = 30
EVERY_S = 0.1


class Progress:
    """One line on standard error, drawn over itself, and cleared at the end."""

    def __init__(self, title: str, *, shown: bool, of_bytes: bool = False) -> None:
        """`of_bytes`: what is done is counted in bytes."""
        self._title = title
        self._number = _mebibytes if of_bytes else str
        self._shown = shown and sys.stderr.isatty()
        self._drawn_at = 0.0

    def show(self, done: int, total: int, note: str = "") -> None:
        """Draws the line again, unless it was drawn a moment ago."""
        now = time.monotonic()
        if not self._shown or now - self._drawn_at < EVERY_S:
            return
        self._drawn_at = now
        full = WIDTH * done // total if total else 0
        line = f"{self._title} [{'#' * full}{'.' * (WIDTH - full)}] {self._number(done)}/{self._number(total) if total else '?'} {note}"
        columns = shutil.get_terminal_size().columns
        print("\r\033[K" + line[: columns - 1], end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn_at:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
