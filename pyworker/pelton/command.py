"""The `pelton` command of the wheel: the same router as the plain binary, called from Python."""

from __future__ import annotations

import signal
import sys

from pelton import demo_dir


def main() -> int:
    """Runs the command with this process's arguments; the exit code is the router's."""
    from pelton import _pelton

    # Ctrl-C is the router's to handle: Python would raise KeyboardInterrupt once the router has ended in good order.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _pelton.main(sys.argv, sys.executable, str(demo_dir()))
