"""What the demo model knows about the server that serves it: flags, endpoints, commands and how it works.

Every line of `data/facts.txt`, `flags.txt`, `endpoints.txt` and `commands.txt` is a claim of the project's documentation.
"""

from .data import Block, blocks
from .draw import Draw, Talk, exchange, roughen

FACTS = blocks("facts")
# Heads: the name, what it does ("sets the port that the server listens on"), and maybe one more sentence.
# Lines: how somebody asks who does not know its name.
FLAGS = blocks("flags")
ENDPOINTS = blocks("endpoints")
COMMANDS = blocks("commands")

# How somebody asks who knows it.
_ABOUT = [
    "What does {name} do?",
    "What is {name}?",
    "What is {name} for?",
    "Explain {name}.",
    "{name}?",
    "What does the {what} {name} {verb}?",
    "Tell me about {name}.",
    "How do I use {name}?",
    "Describe the {thing} {name}.",
    "When do I need {name}?",
    "{happens}",
    "What's the meaning of {name}?",
    "What is the purpose of {name}?",
    "Can you explain {name}?",
]

_WRAPS = [
    "{q}",
    "{q}",
    "{q}",
    "{q}",
    "{q}",
    "I have a question: {q}",
    "Tell me: {q}",
    "Quick question: {q}",
    "One thing: {q}",
    "{q} I am new here.",
    "About Pelton: {q}",
    "Help: {q}",
]


_SAID_OF = {
    "flag": {"what": "flag", "verb": "mean", "thing": "option", "happens": "What happens with {name}?"},
    "endpoint": {"what": "endpoint", "verb": "do", "thing": "endpoint", "happens": "What do I get from {name}?"},
    "command": {"what": "command", "verb": "do", "thing": "command", "happens": "What happens if I run {name}?"},
}


def _claim(item: Block) -> str:
    name, does, *more = item.heads
    return " ".join([f"{name} {does}.", *more])


def _about(draw: Draw, what: str, name: str) -> str:
    said = _SAID_OF[what]
    return draw.phrase(_ABOUT).format(name=name, **{**said, "happens": said["happens"].format(name=name)})


def _named(draw: Draw) -> tuple[str, str]:
    what = draw.any(["flag", "endpoint", "command"])
    item = draw.any({"flag": FLAGS, "endpoint": ENDPOINTS, "command": COMMANDS}[what])
    if draw.chance(0.5):
        return _about(draw, what, item.heads[0]), _claim(item)
    verb = "Run" if what == "command" else "Use"
    return draw.phrase(item.lines), f"{verb} {item.heads[0]}: it {_claim(item).removeprefix(item.heads[0] + ' ')}"


def fact(draw: Draw) -> Talk:
    """A question about Pelton with its answer."""
    if draw.chance(0.4):
        question, answer = _named(draw)
    else:
        item = draw.any(FACTS)
        question, answer = draw.phrase(item.lines), draw.any(item.heads)
    if not draw.held:
        question = draw.any(_WRAPS).format(q=question)
    return exchange("pelton", roughen(draw, question), answer)


def statements() -> list[str]:
    """The same knowledge as running text, for plain completions."""
    named = [_claim(item) for item in FLAGS + ENDPOINTS + COMMANDS]
    openings = ("Pelton", "A ", "The ", "Chunked", "Prefix", "Continuous")
    return named + [item.heads[0] for item in FACTS if item.heads[0].startswith(openings)]
