"""Plans as a router writes them: records, header and checksum, in the bytes that travel inline (proto/frame)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

CAPACITIES = {
    "frames": 4,
    "slots": 8,
    "tokens": 48,
    "appends": 256,
    "copies": 8,
    "biases": 64,
    "suppressed": 64,
    "history": 2048,
    "top_logprobs": 3,
    "saves": 8,
    "loads": 8,
    "pooled_width": 4,
    "scores": 6,
    "embeds": 0,
    "embed_width": 0,
}


@dataclass
class Admit:
    """A request that enters a slot."""

    slot: int
    prompt_len: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    score_top: int = 0
    told: list[int] = field(default_factory=list)
    suppress_until: int = 0
    suppressed: list[int] = field(default_factory=list)
    biases: dict[int, float] = field(default_factory=dict)
    history: list[int] = field(default_factory=list)

    @property
    def has_penalties(self) -> bool:
        """Whether the worker must count its tokens."""
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


@dataclass
class Row:
    """Some tokens of a slot; the last one may be unknown."""

    slot: int
    start: int
    count: int
    known: list[int]
    samples: bool
    drafts: int = 0  # the last of these tokens
    pools: bool = False
    scores: int = 0
    next: int = 0
    embeds: list[list[float]] = field(default_factory=list)  # in the place of the first of these tokens


@dataclass
class Plan:
    """One step."""

    step: int
    epoch: int = 1
    drops: list[int] = field(default_factory=list)
    admits: list[Admit] = field(default_factory=list)
    appends: list[tuple[int, int, int, int]] = field(default_factory=list)  # slot, kind, at, block
    saves: list[tuple[int, int]] = field(default_factory=list)  # block, host block
    loads: list[tuple[int, int]] = field(default_factory=list)  # host block, block
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    has_top: bool = False  # results carry likeliest tokens

    def to_bytes(self) -> bytes:
        """The plan part of a frame."""
        return b"".join(self.regions().values())

    def regions(self) -> dict[str, bytes]:
        """The same, region by region."""
        admits, biases, suppressed, history = self._admits()
        rows, tokens = self._rows()
        body = {
            "drops": _words(self.drops),
            "admits": admits,
            "biases": biases,
            "suppressed": _words(suppressed),
            "history": _words(history),
            "appends": _words(word for append in self.appends for word in append),
            "saves": _words(word for save in self.saves for word in save),
            "loads": _words(word for load in self.loads for word in load),
            "copies": _words(word for copy in self.copies for word in (*copy, 0)),
            "rows": rows,
            "tokens": _words(tokens),
            "embeds": b"".join(np.array(row.embeds, dtype="<f4").tobytes() for row in self.rows),
        }
        counts = [
            len(self.drops),
            len(self.admits),
            len(self.appends),
            len(self.copies),
            len(biases) // 8,
            len(suppressed),
            len(history),
            len(self.rows),
            len(tokens),
        ]
        head = [self.step & 0xFFFFFFFF, self.step >> 32, self.epoch, *counts]
        draws = len(self.rows) + sum(row.drafts + row.scores for row in self.rows)
        embeds = sum(len(row.embeds) for row in self.rows)
        tail = [int(self.has_top), len(self.saves), len(self.loads), draws, embeds]
        checksum = checksum_of(_words([*head, 0, 0, *tail]), *body.values())
        return {"header": _words([*head, checksum & 0xFFFFFFFF, checksum >> 32, *tail]), **body}

    def _admits(self) -> tuple[bytes, bytes, list[int], list[int]]:
        records, biases = b"", b""
        suppressed: list[int] = []
        history: list[int] = []
        for a in self.admits:
            records += struct.pack(
                "<IIfIfffff11I4I",
                a.slot,
                int(a.has_penalties) | (2 if a.logprobs is not None else 0),
                a.temperature,
                a.top_k,
                a.top_p,
                a.min_p,
                a.repetition,
                a.presence,
                a.frequency,
                a.seed & 0xFFFFFFFF,
                a.seed >> 32,
                len(a.told) or a.logprobs or 0,
                a.prompt_len,
                a.suppress_until,
                len(biases) // 8,
                len(a.biases),
                len(suppressed),
                len(a.suppressed),
                len(history),
                len(a.history) if a.has_penalties else 0,
                a.score_top,
                len(a.told),
                *[0] * 2,
            )
            biases += b"".join(struct.pack("<If", *entry) for entry in a.biases.items())
            suppressed += [*a.suppressed, *a.told]
            history += a.history if a.has_penalties else []
        return records, biases, suppressed, history

    def _rows(self) -> tuple[bytes, list[int]]:
        records, flat = b"", 0
        tokens: list[int] = []
        for row in self.rows:
            flags = int(row.samples) | (4 if row.pools else 0)
            offsets = [len(tokens), flags, flat, row.drafts, row.scores, row.next, len(row.embeds)]
            records += _words([row.slot, row.start, row.count, len(row.known), *offsets])
            tokens += row.known
            flat += row.count
        return records, tokens


def table(slot: int, blocks: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Appends that give a slot its first blocks, in order, of a model whose layers are all of one kind."""
    return [(slot, 0, at, block) for at, block in enumerate(blocks)]


def checksum_of(*regions: bytes) -> int:
    """proto/frame/src/checksum.rs, word by word. An odd word at a region's end counts as followed by zero."""
    mask, multiplier = (1 << 64) - 1, 0x9E37_79B9_7F4A_7C15

    def pair(state: int, word: int) -> int:
        state = (state ^ word) * multiplier & mask
        return (state << 29 | state >> 35) & mask

    state = 0x5065_6C74_6F6E_0001
    for region in regions:
        pairs = np.frombuffer(region + bytes(-len(region) % 8), dtype="<u8").tolist()
        in_lanes = len(region) // 32 * 4
        if in_lanes:
            lanes = [state, 1, 2, 3]
            for at, word in enumerate(pairs[:in_lanes]):
                lanes[at % 4] = pair(lanes[at % 4], word)
            state = reduce(pair, lanes)
        state = reduce(pair, pairs[in_lanes:], state)
    mixed = (state ^ (state >> 32)) * multiplier & mask
    return mixed ^ (mixed >> 29)


def _words(words: Iterable[int]) -> bytes:
    return np.array(list(words), dtype="<u4").tobytes()
