"""A loaded model as a program: run twice on small steps while its ops are recorded, then checked against itself.

A model that cannot be recorded is run eagerly, and the log says why. Never here: how ops are recorded, devices, frames.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from pelton_kernels._native import Program
from pelton_kernels.program import Built, Counts, build
from pelton_kernels.recording import Recording, RecordingError, record, span
from torch import Tensor

from pelton.kv import DTYPES, KvArena
from pelton.models.decoder import Decoder
from pelton.models.pooled import PooledModel
from pelton.step import Step

log = logging.getLogger("pelton.worker")

# Tokens of each row of the two recordings. 5 tokens and 2 draws, 8 and 3: no ratio of sizes is that of both.
SHAPES = ((2, 3), (1, 5, 2))


@dataclass(frozen=True, slots=True)
class Rows:
    """A step, and the tokens after which one is drawn. Every tensor has storage of its own."""

    step: Step
    drawn_at: Tensor  # [draws] int32

    @property
    def counts(self) -> Counts:
        """How many tokens and draws."""
        return Counts(self.step.ids.shape[0], self.drawn_at.shape[0])

    def inputs(self) -> dict[str, Tensor]:
        """By the names that the recorder knows."""
        step = self.step
        return {
            "ids": step.ids,
            "positions": step.positions,
            "kv_slots": step.kv_slots,
            "block_table": step.block_table,
            "row_offsets": step.row_offsets,
            "row_starts": step.row_starts,
            "drawn_at": self.drawn_at,
        }


@torch.inference_mode()
def record_model(model: Decoder | PooledModel, kv: KvArena, positions: int) -> Built | None:
    """The model's program and its script, or None. `positions`: of the longest request. What blocks hold before is lost: only
    for an arena that serves nobody yet."""
    first, second = (small_rows(shape, kv, positions) for shape in SHAPES)
    try:
        (one, _), (other, expected) = _record(model, first), _record(model, second)
        built = build(DTYPES[kv.shape.dtype], (one, other), (first.counts, second.counts))
    except RecordingError as why:
        log.warning("the model is run eagerly, which is slower: %s", why)
        return None
    program = built.program
    if program.call_backs:  # whose model may do otherwise while somebody listens
        expected = run_model(model, second)
    got = run_program(program, second, result_width(model))
    if not bool(((got == expected) | (got.isnan() & expected.isnan())).all()):
        log.error("the model is run eagerly, which is slower: its program gives other bits. Please report this")
        return None
    if not bool(expected.isfinite().all()):
        log.warning("a trial gave numbers that are not finite, and requests may end so: is a weight NaN or infinite?")
    if program.call_backs:
        log.warning("%d calls of the model's program go back to PyTorch: they have no kernel", program.call_backs)
    return built


def result_width(model: Decoder | PooledModel) -> int:
    """Numbers of one draw: a logit for each token, or a vector."""
    return model.pooling.width if isinstance(model, PooledModel) else model.config.vocab


def run_model(model: Decoder | PooledModel, rows: Rows) -> Tensor:
    """Logits [draws, vocab], or vectors [draws, width], through Python."""
    if isinstance(model, PooledModel):
        return model.vectors(rows.step, rows.drawn_at)
    hidden = model(rows.step)
    picked = hidden.new_empty(rows.drawn_at.shape[0], hidden.shape[1])
    ops.embed(picked, hidden, rows.drawn_at)
    out: Tensor = model.head(picked)
    return out


def run_program(program: Program, rows: Rows, width: int) -> Tensor:
    """The same, [draws, width], without."""
    out = torch.empty(rows.drawn_at.shape[0], width)
    program.run(**{name: span(tensor) for name, tensor in rows.inputs().items()}, out=span(out))
    return out


def small_rows(shape: tuple[int, ...], kv: KvArena, positions: int) -> Rows:
    """Rows of so many tokens each, all from position 0 in the first block. Values mean nothing; shapes do."""
    places = torch.cat([torch.arange(count) for count in shape])
    kinds = len(kv.shape.kinds)
    ends = torch.tensor(shape).cumsum(0)
    step = Step(
        ids=torch.zeros(sum(shape), dtype=torch.int32),
        positions=(places % positions).int(),
        kv_slots=(places % kv.shape.block_size).repeat(kinds, 1),
        block_table=torch.zeros(kinds, len(shape), -(-max(shape) // kv.shape.block_size), dtype=torch.int32),
        row_offsets=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).int(),
        row_starts=torch.zeros(len(shape), dtype=torch.int32),
        kv=kv,
    )
    return Rows(step, (ends - 1).int())


def _record(model: Decoder | PooledModel, rows: Rows) -> tuple[Recording, Tensor]:
    """And what came out."""
    results: list[Tensor] = []

    def run() -> Tensor:
        results.append(run_model(model, rows))
        return results[0]

    return record(run, rows.inputs()), results[0]
