"""Models that give vectors, whose parts Pelton defines: an encoder or a decoder without its head, and what pools."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

import torch
from pelton_kernels.program import Built

from pelton.kv import Division, KvArena
from pelton.loading import weights
from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError
from pelton.loading.native import numerics_of, tried
from pelton.loading.pooling import Pooling
from pelton.loading.task import Vectors
from pelton.models.decoder import Trunk
from pelton.models.encoder import Encoder
from pelton.models.encoder_config import EncoderConfig
from pelton.models.encoder_family import OLD_ENDINGS, EncoderFamily
from pelton.models.family import Family
from pelton.models.pooled import PooledModel
from pelton.quantization import Quantization


class VectorSource:
    """See `Source`."""

    def __init__(
        self,
        vectors: Vectors,
        quantization: Quantization,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Compares the checkpoint's tensors with those that the config wants."""
        family = vectors.family.as_stored(checkpoint.tensors)
        if isinstance(family, Family):
            checkpoint = checkpoint.without(family.ignored)
        else:
            _refuse_two_in_one_place(checkpoint, family.ignored)
            checkpoint = checkpoint.with_endings(OLD_ENDINGS)
        self.name = family.name
        self.config = vectors.config
        self._vectors = vectors
        self._names = {**family.names, **{f"head.{folder}.linear": [f"{folder}.linear"] for folder in vectors.dense}}
        self._quantization = quantization
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        weights.check_sizes(vectors.config, {} if isinstance(family, EncoderFamily) else family.fields, checkpoint)
        self._bare = weights.holdings(self._made(1), self._names, quantization)  # without weights and angles
        weights.compare(self._bare, _ignored(family), quantization, checkpoint)

    @property
    def division(self) -> Division:
        return self.config.division

    @property
    def pooling(self) -> Pooling:
        return self._vectors.plan.report

    def needed_bytes(self) -> int:
        return weights.needed_bytes(self._bare, self._dtype)

    def stored_bytes(self) -> int:
        return weights.stored_bytes(self._bare, self._checkpoint)

    def read(self, positions: int) -> Generator[int, None, PooledModel]:
        model = self._made(positions).to(self._device)
        holdings = weights.holdings(model, self._names, self._quantization)
        yield from weights.read(holdings, self._checkpoint, self._dtype, self._device)
        return model

    def tried(self, model: PooledModel, arena: KvArena, positions: int) -> Built | None:
        return tried(model, arena, positions, self._device)

    def numerics_id(self, model: PooledModel) -> str:
        return numerics_of(model, self._device, self._dtype)

    def _made(self, positions: int) -> PooledModel:
        config = self.config
        trunk = Encoder(config, positions) if isinstance(config, EncoderConfig) else Trunk(config, positions)
        return PooledModel(trunk, self._vectors.plan)


def _refuse_two_in_one_place(checkpoint: Checkpoint, ignored: Sequence[str]) -> None:
    """A norm's gain or bias by its old name and by today's, with other numbers in each."""
    stored = checkpoint.tensors
    for name in stored:
        for today in (name.removesuffix(old) + new for old, new in OLD_ENDINGS.items() if name.endswith(old)):
            if today not in stored or any(re.fullmatch(rule, name) for rule in ignored):
                continue
            ours, theirs = (checkpoint.tensor(each).float() for each in (name, today))
            if ours.shape != theirs.shape or not torch.equal(ours, theirs):
                raise LoadError(
                    f"`{name}` and `{today}` in {checkpoint.folder} are one tensor by an old and a new name, with other numbers in each; "
                    "supported: one of them, or both with the same numbers"
                )


def _ignored(family: EncoderFamily | Family) -> list[str]:
    """What vectors do not need: of decoders the head that draws, floats or codes."""
    if isinstance(family, EncoderFamily):
        return list(family.ignored)
    return [rf"{re.escape(family.names['head'][0])}\..*"]
