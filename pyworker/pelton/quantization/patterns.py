"""Regular expressions of a config.json, which anybody may have written.

Python's `re` tries one path through a pattern after the other and lets no other thread run meanwhile: `((.+)+)+!` would hold the worker
for years. So paths are counted first, and a pattern that may have many is refused. What they meet are names of layers, about 60
characters long: with 4 repeats there are some 600,000 ways to share these out, a few milliseconds.
"""

from __future__ import annotations

import functools
import re

from pelton.loading.error import LoadError

LENGTH_MAX = 1000
REPEATED = 32  # paths of one repeat: 32⁴ is 1.05 million, and of 64 characters four repeats share out 0.8 million
PATHS_MAX = 4 * REPEATED**4
SUPPORTED = "4 repeats in a row, none of them of a group, few alternatives beside them, no flags, no comments"

TOKEN = re.compile(
    r"""
    (?P<one> \\. | \[\^?\]?(?:\\.|[^\\\]])*\] )      # an escape, or a class: one character, whatever stands in it
  | (?P<open> \((?!\?) | \(\?(?: : | <?[=!] | P<\w+> ) )
  | (?P<other> \(\? )                                # flags, comments, conditions: they change how the rest is read
  | (?P<close> \) )
  | (?P<or> \| )
  | (?P<maybe> \?[?+]? )
  | (?P<repeat> (?: [*+] | \{\d*,?\d*\} )[?+]? )
  | (?P<literal> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def matches(pattern: str, name: str) -> bool:
    """Whether a regular expression of config.json fits the beginning of a name."""
    return _compiled(pattern).match(name) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > LENGTH_MAX:
        raise LoadError(
            f"`{pattern[:60]}...` in config.json has {len(pattern)} characters; supported: patterns of {LENGTH_MAX}"
        )
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise LoadError(f"`{pattern}` in config.json is no regular expression: {error}") from error
    if _paths(pattern) > PATHS_MAX:
        raise LoadError(f"`{pattern}` in config.json may take very long to match; supported: {SUPPORTED}")
    return compiled


def _paths(pattern: str) -> float:
    """Ways through a pattern, at most: alternatives are added up, what follows one another is multiplied."""
    before = [0.0]  # of each open group: the alternatives before this one,
    now = [1.0]  # and this one
    last = ""
    for token in TOKEN.finditer(pattern):
        kind = str(token.lastgroup)
        if kind == "other" or (kind == "repeat" and last == "close"):
            return float("inf")
        if kind == "open":
            before.append(0.0)
            now.append(1.0)
        elif kind == "close":
            inside = before.pop() + now.pop()
            now[-1] *= inside
        elif kind == "or":
            before[-1] += now[-1]
            now[-1] = 1.0
        elif kind in ("maybe", "repeat"):
            now[-1] *= 2 if kind == "maybe" else REPEATED
        last = kind
    return before[0] + now[0]
