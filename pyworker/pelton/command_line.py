"""Command lines of the commands that are Python's, as strict and as kind as the others: no abbreviations, and the nearest name."""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import sys
from typing import NoReturn


def end_when_told() -> None:
    """The system hands the first process of a container no signal that it does not ask for."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know with the name that comes nearest."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def read(self, args: list[str] | None = None) -> argparse.Namespace:
        """What is unknown is said before what is missing."""
        if {"-h", "--help"} & set(sys.argv[1:] if args is None else args):  # while it knows what is needed
            self.print_help()
            self.exit()
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        known, unknown = self.parse_known_args(args)
        if unknown:
            self.refuse(unknown[0])
        for action in required:
            action.required = True
            if getattr(known, action.dest, None) is None:
                self.error(f"{'/'.join(action.option_strings) or action.dest} is needed")
        return known

    def refuse(self, word: str) -> NoReturn:
        """Ends with the name that the word may stand for."""
        name = word.partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        nearest = difflib.get_close_matches(name, options, n=1)
        self.error(f"there is no `{name}`; did you mean `{nearest[0]}`?" if nearest else f"there is no `{name}`")
