"""Writes `answers.json`: what transformers' `apply_chat_template` makes of the templates and chats in this folder.

    .venv/bin/python router/text/tests/golden/make.py

The templates are our own; they use what those of well-known models use, in the same combinations, so that a
difference between Jinja and minijinja shows here and not in a prompt. `expressions.json` holds one feature each, so
that one difference hides no other. `golden.rs` renders the same and compares.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
NOW = datetime(2026, 3, 1, 7, 5, 9)  # as clocks two hours ahead of UTC show it
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

THINGS = [
    "1",
    "1.5",
    "true",
    "none",
    "'text'",
    "''",
    "[1]",
    "[]",
    "{'a': 1}",
    "{}",
    "(1, 2)",
    "0",
    "messages",
    "messages[0]",
    "missing",
    "range(2)",
]
TESTS = [
    "string",
    "number",
    "integer",
    "float",
    "boolean",
    "mapping",
    "sequence",
    "iterable",
    "none",
    "defined",
    "undefined",
    "true",
    "false",
]

# All directives, and moments around the ends of years, leap days and centuries.
DIRECTIVES = (
    "%a %A %b %B %c %C %d %D %e %F %G %g %H %h %I %j %k %l %m %M %p %P %r %R %S %T %u %U %V %w %W %x %X %y %Y %% "
    "%-d %_d %-j %_H %^a %Q"
)
MOMENTS = [
    datetime(year, month, day, day % 24, 59, 58, tzinfo=UTC)
    for year in (1969, 1970, 1999, 2000, 2004, 2015, 2016, 2020, 2021, 2024, 2026, 2027, 2038, 2100)
    for month, day in ((1, 1), (1, 2), (1, 3), (2, 28), (3, 1), (7, 9), (12, 28), (12, 29), (12, 30), (12, 31))
]


class Frozen(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> "Frozen":
        return cls.combine(NOW.date(), NOW.time(), tz)


def render(template: str, chat: dict[str, Any]) -> dict[str, str]:
    """One answer: a text, what the template raised, or the name of the error that ended it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({})), **SPECIAL_TOKENS)
    chat = json.loads(json.dumps(chat))
    try:
        return {"text": str(tokenizer.apply_chat_template(**chat, chat_template=template, tokenize=False))}
    except Exception as error:
        is_raised = type(error).__name__ == "TemplateError"
        return {"raised": str(error)} if is_raised else {"fails": type(error).__name__}


def main() -> None:
    """Renders everything with everything."""
    chats = json.loads((HERE / "chats.json").read_text(encoding="utf-8"))
    expressions = json.loads((HERE / "expressions.json").read_text(encoding="utf-8"))
    expressions += ["{{ " + thing + " is " + test + " }}" for thing in THINGS for test in TESTS]
    templates = {path.stem: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("templates/*.jinja"))}
    with mock.patch.object(chat_template_utils, "datetime", Frozen):
        answers = {
            "special_tokens": SPECIAL_TOKENS,
            "unix_seconds": int((NOW - timedelta(hours=2)).replace(tzinfo=UTC).timestamp()),
            "utc_offset_seconds": 7200,
            "directives": DIRECTIVES,
            "moments": [
                [int(moment.timestamp()), moment.replace(tzinfo=None).strftime(DIRECTIVES)] for moment in MOMENTS
            ],
            "expressions": {source: render(source, chats["user"]) for source in expressions},
            "templates": {
                name: {chat: render(source, arguments) for chat, arguments in chats.items()}
                for name, source in templates.items()
            },
        }
    text = json.dumps(answers, indent=1, ensure_ascii=False)
    (HERE / "answers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
