"""Models that transformers defines, as `loading` takes them."""

from __future__ import annotations

import logging
from collections.abc import Generator

import torch
from pelton_kernels import ops
from pelton_kernels.program import Built

from pelton.borrowed import weights
from pelton.borrowed.architecture import Architecture
from pelton.borrowed.config import config_of
from pelton.borrowed.model import Borrowed, bare, hear
from pelton.borrowed.trial import check_rows, embed_width
from pelton.kv import Division, KvArena
from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError
from pelton.models.model import LanguageModel

log = logging.getLogger("pelton.worker")


class BorrowedSource:
    """See `Source`."""

    def __init__(
        self,
        architecture: Architecture,
        checkpoint: Checkpoint,
        longest: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Runs the model without weights, to hear what its layers ask. `longest`: the context that is wished for, or 0."""
        self.pooling = None  # they draw tokens
        self.name = f"{architecture.name} of transformers"
        self._architecture = architecture
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        without = bare(architecture, dtype)
        if any(hasattr(module, "create_position_ids_from_input_ids") for module in without.modules()):
            raise LoadError(
                f"{architecture.name} counts its positions from the padding token's id; supported: positions from 0"
            )
        self.config = config_of(architecture, without, *hear(architecture, without)).within(longest)
        tensors = [*without.parameters(), *without.buffers()]
        self._bytes = sum(tensor.nbytes for tensor in tensors)

    @property
    def division(self) -> Division:
        return self.config.division

    def needed_bytes(self) -> int:
        return self._bytes

    def stored_bytes(self) -> int:
        return weights.stored_bytes(self._checkpoint)

    def read(self, positions: int) -> Generator[int, None, LanguageModel]:
        causal = yield from weights.read(self._architecture, self._checkpoint, self._dtype, self._device)
        return Borrowed(self.config, causal)

    def tried(self, model: LanguageModel, arena: KvArena, positions: int) -> Built | None:
        assert isinstance(model, Borrowed)
        check_rows(model, arena, positions, self._architecture.name)
        model.embed_width = embed_width(model, arena, positions)
        log.warning(
            "%s runs through transformers %s, in Python, step by step: slower than a native model, and its tokens may depend on what "
            "runs beside them",
            self._architecture.name,
            self._architecture.version,
        )
        return None

    def numerics_id(self, model: LanguageModel) -> str:
        ours = ops.numerics_id(self._device, self._dtype)
        theirs = f"transformers-{self._architecture.version}+torch-{torch.__version__}+{self._architecture.name}"
        return f"{ours}+{theirs}" + (f"+code-{self._architecture.code}" if self._architecture.code else "")
