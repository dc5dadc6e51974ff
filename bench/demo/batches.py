"""Batches of conversations of like length, without end: each row one conversation from position 0, padded on the right.

Nothing is packed: a conversation never sees another one, and with right padding causal attention needs no mask.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from render import END_OF_TEXT, Marker
from texts import plain_texts, talks
from tokenizers import Tokenizer
from torch import Tensor

# Conversations are sorted by length within a pool of this many, so that rows of a batch need little padding.
POOL = 1024
PLAIN_SHARE = 0.02
LONGEST = 4096
# Of the tokens that the assistant does not write, this share is learned too: enough to know what a user may say.
OTHERS_SHARE = 0.1
# Ids that are no special token and no tool mark.
FIRST_WORD, LAST_WORD = 3, 4094


@dataclass
class Batch:
    ids: Tensor  # [rows, length]
    learned: Tensor  # [rows, length - 1]: whether the next token at this place counts


def _rows(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[list[int], list[bool]]]:
    marker, source = Marker(tokenizer), random.Random(f"rows {seed}")
    chats, lines = talks(seed), plain_texts(seed)
    while True:
        if source.random() < PLAIN_SHARE:
            ids = tokenizer.encode(next(lines) + END_OF_TEXT).ids
            yield ids, [True] * len(ids)
            continue
        ids, own = marker.ids_of(next(chats))
        yield ids[:LONGEST], [mine or source.random() < OTHERS_SHARE for mine in own[:LONGEST]]


def batches(tokenizer: Tokenizer, seed: int, tokens: int) -> Iterator[Batch]:
    """Batches of about `tokens` tokens, padding included (a single conversation may be longer)."""
    rows, source = _rows(tokenizer, seed), random.Random(f"batches {seed}")
    while True:
        pool = sorted((next(rows) for _ in range(POOL)), key=lambda row: len(row[0]))
        groups: list[list[tuple[list[int], list[bool]]]] = [[]]
        for row in pool:
            if groups[-1] and len(row[0]) * (len(groups[-1]) + 1) > tokens:
                groups.append([])
            groups[-1].append(row)
        source.shuffle(groups)
        for group in groups:
            yield _padded(group)


def copying(step: int, tokens: int) -> Batch:
    """Random tokens said twice; the second time they are learned. Only looking back helps here, so looking back is what is taught."""
    source = torch.Generator().manual_seed(step)
    length = int(torch.randint(8, 49, (), generator=source))
    run = torch.randint(FIRST_WORD, LAST_WORD, (tokens // (2 * length), length), generator=source)
    learned = torch.zeros(len(run), 2 * length, dtype=torch.bool)
    learned[:, length + 1 :] = True
    return Batch(torch.cat([run, run], dim=1), learned[:, 1:])


def _padded(group: list[tuple[list[int], list[bool]]]) -> Batch:
    length = max(len(ids) for ids, _ in group)
    ids = torch.zeros(len(group), length, dtype=torch.long)
    learned = torch.zeros(len(group), length, dtype=torch.bool)
    for row, (mine, marks) in enumerate(group):
        ids[row, : len(mine)] = torch.tensor(mine)
        learned[row, : len(marks)] = torch.tensor(marks)
    return Batch(ids, learned[:, 1:])
