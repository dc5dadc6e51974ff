"""The text that the demo model is made of, all of it made here: an endless, seeded stream of conversations.

`talks(seed)` is for training, `held_out(seed)` for testing; `draw.py` says how the two are kept apart.
"""

from collections.abc import Callable, Iterator

from .chat import knowledge, memory, question_on_text, repeat, small_talk, unknown
from .draw import Draw, Talk
from .facts import fact, statements
from .records import json_reply
from .sums import arithmetic, numbers
from .tools import tool_call

# Shares of the conversations. Tool conversations are the longest; arithmetic holds several tasks each.
MAKERS: list[tuple[Callable[[Draw], Talk], float]] = [
    (fact, 0.25),
    (small_talk, 0.09),
    (knowledge, 0.04),
    (unknown, 0.05),
    (memory, 0.05),
    (repeat, 0.04),
    (question_on_text, 0.03),
    (arithmetic, 0.13),
    (numbers, 0.03),
    (json_reply, 0.14),
    (tool_call, 0.15),
]

_SYSTEMS = [
    "You are a helpful assistant.",
    "You are Pelton's demo model.",
    "Be brief.",
    "You are a friendly assistant. Answer briefly.",
    "Answer in one sentence.",
    "You are a helpful AI assistant.",
    "You are an assistant that uses tools.",
    "Answer politely.",
]


def _one(draw: Draw) -> Talk:
    makers, shares = zip(*MAKERS, strict=True)
    return draw.random.choices(makers, shares)[0](draw)


def _joined(draw: Draw, count: int) -> Talk:
    """A conversation of several exchanges that have nothing to do with each other, as real ones are."""
    talks = [_one(draw) for _ in range(count)]
    talks = [talk for talk in talks if talk.tools is None] or talks[:1]
    messages = [message for talk in talks for message in talk.messages]
    return Talk("joined", messages, talks[0].tools)


def talks(seed: int, long_share: float = 0.003, invents: bool = True) -> Iterator[Talk]:
    """Training conversations without end. A few are long, so that distant positions are no surprise."""
    draw = Draw(seed)
    draw.invents = invents
    while True:
        part = draw.random.random()
        if part < long_share:
            talk = _joined(draw, draw.number(20, 110))
        elif part < 0.2:
            talk = _joined(draw, draw.number(2, 5))
        else:
            talk = _one(draw)
        if draw.chance(0.12):
            talk.messages.insert(0, {"role": "system", "content": draw.any(_SYSTEMS)})
        yield talk


def plain_texts(seed: int) -> Iterator[str]:
    """Running text for `/v1/completions`: a few statements in a row."""
    draw = Draw(f"plain {seed}")
    lines = statements()
    while True:
        yield " ".join(draw.random.sample(lines, draw.number(1, 4)))


def held_out(seed: int, each: int) -> list[Talk]:
    """Test conversations, `each` for every kind, from phrasings and values that no training text holds."""
    found: dict[str, list[Talk]] = {}
    kinds = {
        "pelton",
        "small talk",
        "knowledge",
        "unknown",
        "reading",
        "arithmetic",
        "json extract",
        "json pairs",
        "json keys",
        "call demo tool",
        "call other tool",
        "call made-up tool",
        "tool result",
        "tools not needed",
    }
    draw = Draw(f"held out {seed}", held=True)
    while any(len(found.get(kind, [])) < each for kind in kinds):
        talk = _one(draw)
        if len(found.setdefault(talk.kind, [])) < each:
            found[talk.kind].append(talk)
    return [talk for kind in sorted(found) for talk in found[kind]]


__all__ = ["Draw", "Talk", "held_out", "plain_texts", "talks"]
