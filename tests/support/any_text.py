"""Texts of any Unicode, by a seed: what split patterns, normalizers and byte fallbacks may stumble over, with given tokens among it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.checkpoints import LICENSE

# ruff: noqa: RUF001 -- letters that look like others are the point

# First and last code points. Drawn from as often as from all of Unicode, most of which are letters of China and holes.
BLOCKS = [
    (0x20, 0x7E),
    (0xA0, 0x24F),
    (0x300, 0x36F),  # combining marks
    (0x370, 0x52F),  # Greek, Cyrillic
    (0x590, 0x6FF),  # right to left, with points
    (0x900, 0xDFF),  # India's: marks behind and around letters
    (0x1100, 0x11FF),  # Hangul in parts
    (0xAC00, 0xD7A3),  # and whole
    (0x2000, 0x206F),  # spaces, joiners, directions
    (0x2070, 0x2BFF),  # signs
    (0x3000, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xE000, 0xF8FF),  # private use
    (0xF900, 0xFFFD),  # compatibility forms, variation selectors, half and full width
    (0x1D400, 0x1D7FF),  # letters and digits of mathematics
    (0x1F000, 0x1FAFF),
    (0x20000, 0x323AF),
    (0xE0000, 0xE01EF),  # tags, variation selectors
    (0xF0000, 0x10FFFF),
]
CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0xFEFF, 0xFFFE, 0xFFFF]
SPACES = [" ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u2003", "\u2028", "\u3000", " \n", "\n\n "]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "½Ⅷ²①", "𝟎𝟏𝟐"]
WORDS = [
    *("it's", "WE'LL", "we’re", "'ſ", "Straße", "ǅ", "İstanbul", "HTTPServer", "snake_case", "a/b//c"),
    *("e\u0301", "x\u0301\u0323y", "\u1e9b\u0323", "\u0915\u093c", "ﬁ", "\u212b", "\u2126", "豈", "नमस्ते"),
    *("가", "\u1100\u1161\u11a8", "한국어", "カﾞ", "日本語の", "שָׁלוֹם", "مَرْحَبًا"),
    *("👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "☝🏽", "\u200b", "\u2060"),
    *("▁", "▁the", "<0x41>", "##ing", "Ġ", "Ċ", "<|", "|>", "<s", "[", "</"),
]
PLAIN = LICENSE.read_text().split()


def texts(count: int, tokens: Sequence[str], seed: int) -> list[str]:
    """`tokens` stand between other characters, with and without white space around them; some texts are very short."""
    draw = random.Random(seed)
    drawn = ["".join(_piece(draw, tokens) for _ in range(draw.randrange(1, 14))) for _ in range(count)]
    return ["", " ", "\n", *tokens, *(f" {token} " for token in tokens), *drawn]


def _piece(draw: random.Random, tokens: Sequence[str]) -> str:
    def some(most: int) -> range:
        return range(draw.randrange(1, most))

    match draw.randrange(8):
        case 0:
            block = draw.choice(BLOCKS)
            return "".join(chr(draw.randint(*block)) for _ in some(12))
        case 1:
            return "".join(chr(draw.randint(*draw.choice(BLOCKS))) for _ in some(8))
        case 2:
            codes = (draw.randrange(0x110000 - 0x800) for _ in some(6))
            return "".join(
                chr(code if code < 0xD800 else code + 0x800) for code in codes
            )  # surrogates are no characters
        case 3:
            return "".join(chr(draw.choice(CONTROLS)) for _ in some(4))
        case 4:
            return draw.choice(SPACES) * draw.choice([1, 1, 1, 2, 3, draw.randrange(4, 70)])
        case 5:
            digits = draw.choice(DIGITS)
            return "".join(draw.choice(digits) for _ in some(12))
        case 6 if tokens:
            return draw.choice(["", "", " ", "  ", "\n"]) + draw.choice(tokens) + draw.choice(["", "", " ", "  ", "\n"])
        case _:
            return draw.choice(["", " "]) + draw.choice(draw.choice([WORDS, PLAIN]))
