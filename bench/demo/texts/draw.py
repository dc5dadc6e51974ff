"""One seeded source of choices for all text makers, split in two: what the model trains on and what it never sees.

Phrasings at the end of a list, and values whose hash says so, are held out: `Draw(seed, held=True)` draws only those, where a list is
long enough to be divided. So a held-out question differs from every training text in its words, its values, or both.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .data import THINGS

T = TypeVar("T")

# One phrasing in six and one value in eight are kept back.
PHRASES_PER_HELD = 6
VALUES_PER_HELD = 8


def is_held(value: object) -> bool:
    """Whether a value belongs to the held-out part: the same on every machine and in every run."""
    return zlib.crc32(repr(value).encode()) % VALUES_PER_HELD == 0


class Draw:
    """Random choices from one side of the split."""

    def __init__(self, seed: int | str, held: bool = False) -> None:
        self.random = random.Random(seed)
        self.held = held
        self.invents = True

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def any(self, options: Sequence[T]) -> T:
        """From the whole list: for what is not tested (answers, noise)."""
        return self.random.choice(options)

    def phrase(self, options: Sequence[T]) -> T:
        """A way of saying something: the last sixth of the list is held out."""
        if len(options) < 4:
            return self.random.choice(options)
        cut = len(options) - max(1, len(options) // PHRASES_PER_HELD)
        return self.random.choice(options[cut:] if self.held else options[:cut])

    def value(self, options: Sequence[T]) -> T:
        """A thing that is spoken of: a fixed eighth of all values is held out."""
        mine = [option for option in options if is_held(option) == self.held]
        return self.random.choice(mine or options)

    def pair(self, high: int) -> tuple[int, int]:
        """Two numbers up to `high` whose combination is on this side of the split."""
        while True:
            pair = (self.random.randint(0, high), self.random.randint(0, high))
            if is_held(pair) == self.held:
                return pair

    def word(self) -> str:
        """A word that nobody has seen: copying it takes reading, not memory."""
        if not self.invents:
            return self.any(THINGS)
        if self.chance(0.15):
            return "".join(self.any("abcdefghijklmnopqrstuvwxyzäéöü") for _ in range(self.number(2, 9)))
        if self.chance(0.06):
            return self.any("abcdefghijkl") + str(self.number(0, 99)) + self.any(["", "-x", "_a", "b"])
        syllables = [self.any("bcdfghjklmnprstvwz") + self.any("aeiou") for _ in range(self.number(1, 3))]
        return "".join(syllables) + self.any(["", "n", "r", "s", "x", "l"])


@dataclass
class Talk:
    """One conversation. The last message is the assistant's answer, and `accept` says which answers are right.

    `accept` is a list of texts (exact match), or for kind "json" one value, or for kind "call" a list of calls; empty: not tested.
    """

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    accept: Any = field(default_factory=list)


def exchange(kind: str, question: str, answer: str, accept: Any = None) -> Talk:
    """One question, one answer."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Talk(kind, messages, accept=[answer] if accept is None else accept)


def roughen(draw: Draw, text: str) -> str:
    """What people do to a sentence when they type it. Never to held-out text: there the words are the test."""
    if draw.held:
        return text
    if draw.chance(0.2):
        text = text[:1].lower() + text[1:]
    if draw.chance(0.2):
        text = text.rstrip("?.!")
    if draw.chance(0.06):
        text = draw.any(["Hi, ", "Hello! ", "Hey, ", "ok, ", "So, "]) + text[:1].lower() + text[1:]
    if draw.chance(0.05):
        text += draw.any([" Thanks!", " please", " Please.", " thank you"])
    return text
