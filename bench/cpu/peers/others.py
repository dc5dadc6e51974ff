"""What other processes take of the processors while a server is measured. Linux's /proc says it; never here: servers, load, results.

Peers whose threads spin at barriers lose far more than the share that is taken from them when somebody else wants a core, so a comparison on
a machine that is not quiet flatters those that sleep.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
WINDOW_S: Final = 0.5
QUIET: Final = 0.1
"""Of all processors."""


@dataclass(frozen=True)
class Usage:
    """Processor time since the machine started."""

    at: float
    all_s: float
    ours_s: float
    server_s: float

    @classmethod
    def now(cls, session: int) -> Usage:
        """Ours is this process, what it has waited for, and the server's session."""
        ours = sum(
            usage.ru_utime + usage.ru_stime
            for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
        )
        server_s = _session_s(session)
        return cls(time.monotonic(), _busy_s(), ours + server_s, server_s)

    def others_since(self, before: Usage) -> float:
        """The share of all processors that neither we nor the server took."""
        others = (self.all_s - before.all_s) - (self.ours_s - before.ours_s)
        return max(0.0, others / ((self.at - before.at) * (os.cpu_count() or 1)))

    def server_since(self, before: Usage) -> float:
        """The share of all processors that the server took."""
        return (self.server_s - before.server_s) / ((self.at - before.at) * (os.cpu_count() or 1))


def wait_for_quiet(session: int, patience_s: float) -> None:
    """Until others, and the server that nobody asks, take little for a moment, or patience ends."""
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        before = Usage.now(session)
        time.sleep(WINDOW_S)
        after = Usage.now(session)
        if after.others_since(before) + after.server_since(before) < QUIET:
            return


def _busy_s() -> float:
    user, nice, system, _idle, _waiting, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / TICKS_PER_S


def _session_s(session: int) -> float:
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))  # its own, and of children that have ended
    return ticks / TICKS_PER_S
