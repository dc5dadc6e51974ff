"""A model before its weights are read, whoever defines it: what it takes, and how it is made."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

from pelton_kernels.program import Built

from pelton.kv import Division, KvArena
from pelton.loading.budget import Sizes
from pelton.loading.pooling import Pooling
from pelton.models.model import LanguageModel
from pelton.models.pooled import PooledModel

Model = LanguageModel | PooledModel


class Source(Protocol):
    """Made for one wish: in its format, on its device, within its context."""

    @property
    def name(self) -> str:
        """Of the family, for a reader."""

    @property
    def config(self) -> Sizes:
        """Its sizes."""

    @property
    def division(self) -> Division:
        """Its layers as kinds."""

    @property
    def pooling(self) -> Pooling | None:
        """What its vectors are; None: it draws tokens."""

    def needed_bytes(self) -> int:
        """What its weights take in memory."""

    def stored_bytes(self) -> int:
        """What reading goes through."""

    def read(self, positions: int) -> Generator[int, None, Model]:
        """Makes it for contexts of so many tokens; yields how many bytes were gone through so far."""

    def tried(self, model: Any, arena: KvArena, positions: int) -> Built | None:
        """Runs it for the first time, in an arena that serves nobody yet: what cannot run fails here. Its program, if it has one."""

    def numerics_id(self, model: Any) -> str:
        """What bits depend on besides the inputs."""
