"""`python -m pelton`: the `pelton` command, for whoever has the interpreter and not the path of its scripts."""

from __future__ import annotations

import sys

from pelton.command import main

sys.exit(main())
