"""The hand-written part of the texts: `data/*.txt`, read as it stands.

A block is some lines that begin with "= " and the lines after it, up to an empty line: answers and the questions that they answer, or
a list's name and its items. In other files a line is "key: value".
"""

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Block:
    heads: tuple[str, ...]
    lines: tuple[str, ...]


def blocks(name: str) -> list[Block]:
    found = []
    for part in (_FOLDER / f"{name}.txt").read_text().strip().split("\n\n"):
        lines = part.split("\n")
        heads = tuple(line[2:].replace("\\n", "\n") for line in lines if line.startswith("= "))
        found.append(Block(heads, tuple(lines[len(heads) :])))
    return found


def pairs(name: str) -> dict[str, str]:
    lines = (_FOLDER / f"{name}.txt").read_text().splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines)}


_LISTS = {block.heads[0]: " ".join(block.lines).split(", ") for block in blocks("lists")}

PEOPLE = _LISTS["people"]
CITIES = _LISTS["cities"]
JOBS = _LISTS["jobs"]
COLORS = _LISTS["colors"]
THINGS = _LISTS["things"]
ANIMALS = _LISTS["animals"]
VERBS = _LISTS["verbs"]
NOUNS = _LISTS["nouns"]
TOPICS = _LISTS["topics"]
ROOMS = _LISTS["rooms"]
LANGUAGES = _LISTS["languages"]
# Things that a small model cannot know: it says so.
UNKNOWABLE = _LISTS["unknowable"]
CAPITALS = pairs("capitals")
OPPOSITES = pairs("opposites")
