"""An engine that computes nothing, as far as both servers' have it in common: its pace, the tokens it makes up, and when it heard of requests.

Imported by `pelton_worker.py` and `vllm_executor.py` in their servers' environments, so it needs nothing but the standard library. The bench
sets the pace and reads the times through a file that both sides map.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from pathlib import Path
from typing import Final

TIMES: Final = 4096
WORDS: Final = 2 + TIMES  # the pace in nanoseconds, how many times follow, the times
FOLDER_VARIABLE: Final = "FRONTEND_BENCH_FOLDER"


class Board:
    """What the bench and the engine tell each other."""

    def __init__(self, folder: Path) -> None:
        path = folder / "board"
        if not path.exists():
            path.write_bytes(bytes(8 * WORDS))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 8 * WORDS)).cast("Q")

    def set_pace(self, step_ms: float) -> None:
        """How long a step takes from now on; 0: no time at all."""
        self._words[0] = int(step_ms * 1e6)

    @property
    def step_ns(self) -> int:
        """How long a step takes."""
        return self._words[0]

    def note_arrival(self) -> None:
        """The step that was just handed over is some request's first."""
        count = self._words[1]
        self._words[2 + count % TIMES] = time.monotonic_ns()
        self._words[1] = count + 1

    @property
    def arrivals(self) -> int:
        """How many were noted."""
        return self._words[1]

    def arrival_ns(self, number: int) -> int:
        """When, by the machine's monotonic clock."""
        return self._words[2 + number % TIMES]


class Engine:
    """The pace and the tokens."""

    def __init__(self) -> None:
        folder = Path(os.environ[FOLDER_VARIABLE])
        self.board = Board(folder)
        self.tokens: list[int] = json.loads((folder / "tokens.json").read_text())
        """A text, over and over: what a request draws at a place is the token at that place."""
        self._due_ns = 0

    def wait(self) -> None:
        """Until the step is done. Steps that follow each other keep the pace however late a sleep ends."""
        step, now = self.board.step_ns, time.monotonic_ns()
        if step == 0:
            return
        self._due_ns += step
        if self._due_ns <= now:
            self._due_ns = now + step if now - self._due_ns > step else now
        if self._due_ns > now:
            time.sleep((self._due_ns - now) / 1e9)
