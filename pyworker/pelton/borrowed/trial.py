"""A first run of a borrowed model, which shows what its code cannot promise: that requests of one step know nothing of each other, and
that keys and values are all it remembers.

A row must have the same logits alone, behind another one, and in two steps. A convolution over tokens, a state, positions that
are counted instead of taken: each makes one of the three differ, and not by a rounding.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from pelton.borrowed.model import Borrowed
from pelton.kv import KvArena
from pelton.loading.error import LoadError
from pelton.models.model import LanguageModel
from pelton.step import Embeds, Step

log = logging.getLogger("pelton.worker")

TOKENS = 7  # of a row; a block has 8 at least
CUT = 3
# Of the logits' length. Sums in another order change bfloat16 by 2⁻⁸ a layer, and near ties between experts by some more.
DIFFERENCE_MAX = 0.2
DIFFERENCE_MAX_FLOAT32 = 0.002


def check_rows(model: LanguageModel, arena: KvArena, positions: int, name: str) -> None:
    """Refuses a model whose rows are not their own. What blocks hold before is lost."""
    count = min(TOKENS, positions)
    vocab = model.config.vocab
    first, second = ([(seed + 7 * at) % vocab for at in range(count)] for seed in (11, 5))
    alone = _logits(model, arena, [(0, 0, second)])
    kinds = len(arena.shape.kinds)
    if arena.blocks >= 2 * kinds:  # else no two requests ever meet
        together = _logits(model, arena, [(0, 0, first), (1, 0, second)])[count:]
        _compare(
            alone,
            together,
            _most(arena),
            f"{name} mixes the requests of a step; supported: models whose tokens meet in attention alone",
        )
    if count > CUT:
        _logits(model, arena, [(0, 0, second[:CUT])])
        later = _logits(model, arena, [(0, CUT, second[CUT:])])
        _compare(
            alone[CUT:],
            later,
            _most(arena),
            f"{name} goes on otherwise after a step than within it; supported: models that remember keys and values alone, and take "
            "their positions from the step",
        )


def embed_width(model: Borrowed, arena: KvArena, positions: int) -> int:
    """Numbers of what the model takes in the place of a token's embedding; 0: it takes nothing, or makes something else of it. What
    blocks hold before is lost."""
    ids = [(3 + 7 * at) % model.config.vocab for at in range(min(TOKENS, positions))]
    expected = _logits(model, arena, [(0, 0, ids)])
    try:
        table: Any = model.causal.get_input_embeddings()  # type: ignore[operator]
        given = table(torch.tensor(ids, device=expected.device)).float()
        got = _logits(
            model, arena, [(0, 0, [0] * len(ids))], Embeds(torch.arange(len(ids), device=given.device), given)
        )
    except Exception as error:  # whatever its own code says
        log.info("prompts cannot be given as embeddings: %s: %s", type(error).__name__, error)
        return 0
    if not _is_close(expected, got, _most(arena)):
        log.info("prompts cannot be given as embeddings: the model's own give other logits than their tokens")
        return 0
    return int(given.shape[1])


def _compare(expected: Tensor, got: Tensor, most: float, refusal: str) -> None:
    if not _is_close(expected, got, most):
        raise LoadError(f"{refusal} (its logits differ by {float(_differences(expected, got).max()):.1%})")


def _is_close(expected: Tensor, got: Tensor, most: float) -> bool:
    return bool((_differences(expected, got) <= most).all())


def _most(arena: KvArena) -> float:
    """What rounding may make of logits: keys and values that are kept in float32 belong to a model that computes in it."""
    return DIFFERENCE_MAX_FLOAT32 if arena.layers[0][0].dtype is torch.float32 else DIFFERENCE_MAX


def _differences(expected: Tensor, got: Tensor) -> Tensor:
    differences: Tensor = (got - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-30)
    return differences


def _logits(
    model: LanguageModel, arena: KvArena, rows: list[tuple[int, int, list[int]]], embeds: Embeds | None = None
) -> Tensor:
    """After each token of rows of (number, first position, ids). A row has a block of its own for each kind of layers."""
    device = arena.layers[0][0].device
    kinds, size = len(arena.shape.kinds), arena.shape.block_size
    blocks = torch.tensor([[number * kinds + kind for number, _, _ in rows] for kind in range(kinds)], device=device)
    counts = torch.tensor([len(ids) for _, _, ids in rows], device=device)
    row = torch.arange(len(rows), device=device).repeat_interleave(counts)
    places = torch.cat([torch.arange(start, start + len(ids), device=device) for _, start, ids in rows])
    step = Step(
        ids=torch.tensor([token for _, _, ids in rows for token in ids], dtype=torch.int32, device=device),
        positions=places.int(),
        kv_slots=blocks[:, row] * size + places,
        block_table=blocks[:, :, None].int(),
        row_offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(),
        row_starts=torch.tensor([start for _, start, _ in rows], dtype=torch.int32, device=device),
        kv=arena,
        embeds=embeds,
    )
    return model.logits(step, torch.arange(len(places), device=device))
