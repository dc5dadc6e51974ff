"""What loading says and what it gives, without torch: progress, and a model that steps can be run on.

There are two such models: `Loaded`, made of a checkpoint, and `Kept`, made of what an earlier loading kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pelton_kernels._native import ArenaBytes, Program

from pelton.kv_shape import KvShape
from pelton.loading.budget import Budget
from pelton.loading.pooling import Pooling


@dataclass(frozen=True, slots=True)
class Progress:
    """How far loading is, in bytes over all stages; the budget once it is known."""

    stage: str
    done: int
    total: int
    budget: Budget | None = None


class Ready(Protocol):
    """A model, ready to run, and the memory for its KV."""

    @property
    def family(self) -> str:
        """As the report has it."""

    @property
    def dtype(self) -> str:
        """Of activations and KV."""

    @property
    def vocab(self) -> int:
        """How many tokens there are."""

    @property
    def shape(self) -> KvShape:
        """Of the KV's blocks."""

    @property
    def arena(self) -> ArenaBytes | None:
        """The memory of all blocks; None: it is a card's."""

    @property
    def budget(self) -> Budget:
        """What it took; with how many blocks there are."""

    @property
    def numerics_id(self) -> str:
        """What the bits of a result depend on besides its inputs."""

    @property
    def slots(self) -> int:
        """The most requests of one step."""

    @property
    def token_budget(self) -> int:
        """The most tokens of one step."""

    @property
    def pooling(self) -> Pooling | None:
        """What its vectors are; None: it draws tokens."""

    @property
    def embed_width(self) -> int:
        """Numbers of what may stand in the place of a token's embedding; 0: nothing may."""

    @property
    def embed_scale(self) -> float:
        """What the model multiplies that by, as the model's format has it."""

    @property
    def is_invariant(self) -> bool:
        """Whether a row's bits do not depend on its company."""

    @property
    def program(self) -> Program | None:
        """None: the model is run eagerly."""
