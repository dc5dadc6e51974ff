"""The `pelton` command of the wheel: the same router as the plain binary, called from Python."""

from __future__ import annotations

import sys

from pelton import demo_dir


def main() -> int:
    """Runs the command with this process's arguments; the exit code is the router's."""
    from pelton import _pelton

    return _pelton.main(sys.argv, sys.executable, str(demo_dir()))
