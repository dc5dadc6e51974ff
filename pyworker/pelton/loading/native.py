"""Models that Pelton defines: the families of `pelton.models`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Generator
from dataclasses import replace

import torch
from pelton_kernels import ops
from pelton_kernels.program import Built
from torch import nn

from pelton.kv import Division, KvArena
from pelton.layers.linear import Linear
from pelton.layers.rotary import Rotary
from pelton.loading import weights
from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError
from pelton.models.config import DecoderConfig
from pelton.models.decoder import Decoder
from pelton.models.family import Family
from pelton.models.model import LanguageModel
from pelton.models.pooled import PooledModel
from pelton.program import Rows, record_model, run_model
from pelton.quantization import Quantization
from pelton.quantization.codes import Coded
from pelton.sampler import Sampler
from pelton.step import Step
from pelton.transfer import transfer_for

log = logging.getLogger("pelton.worker")

CODES_VERSION = 2  # of how codes of checkpoints are read: since zero points of GPTQ lend to each other
TOP_LOGPROBS = 20  # the most that routers ask for: each number is a kernel of its own to compile


class NativeSource:
    """See `Source`."""

    def __init__(
        self,
        family: Family,
        config: DecoderConfig,
        quantization: Quantization,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Compares the checkpoint's tensors, without those that are of no use, with those that the config wants."""
        self.pooling = None  # they draw tokens
        self.name = family.name
        self.config = config
        if config.has_slopes and device.type != "cpu":
            raise LoadError(f"{family.name}: attention that falls with distance (ALiBi) runs on CPUs; set --device cpu")
        self._quantization = quantization
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        weights.check_sizes(config, family.fields, checkpoint)
        table, head = (f"{family.names[layer][0]}.weight" for layer in ("embedding", "head"))
        if config.is_tied and not weights.may_be_one(table, head, checkpoint):
            log.warning(
                "`tie_word_embeddings` in config.json is true, but `%s` is another matrix than `%s`: each is used",
                head,
                table,
            )
            config = self.config = replace(config, is_tied=False)
        self._names = family.names | ({"head": family.names["embedding"]} if config.is_tied else {})
        # A head that is rounded to codes is another matrix than the table that it was rounded from.
        self._shares_table = config.is_tied and quantization.storage("head", self._names["head"]).scheme is None
        bare = Decoder(config, 1, self._shares_table)  # without weights and angles: it only says what it wants
        self._bare = weights.holdings(bare, self._names, quantization)
        # A tied head may be stored too: it is the embedding once more.
        weights.compare(self._bare, [re.escape(head)] if config.is_tied else [], quantization, checkpoint)

    @property
    def division(self) -> Division:
        return self.config.division

    def needed_bytes(self) -> int:
        return weights.needed_bytes(self._bare, self._dtype)

    def stored_bytes(self) -> int:
        return weights.stored_bytes(self._bare, self._checkpoint)

    def read(self, positions: int) -> Generator[int, None, LanguageModel]:
        model = Decoder(self.config, positions, self._shares_table).to(self._device)
        holdings = weights.holdings(model, self._names, self._quantization)
        yield from weights.read(holdings, self._checkpoint, self._dtype, self._device)
        return model

    def tried(self, model: LanguageModel, arena: KvArena, positions: int) -> Built | None:
        assert isinstance(model, Decoder)
        return tried(model, arena, positions, self._device)

    def numerics_id(self, model: LanguageModel) -> str:
        return numerics_of(model, self._device, self._dtype)


def tried(model: Decoder | PooledModel, arena: KvArena, positions: int, device: torch.device) -> Built | None:
    """The model's program; or it is run once, where it has none."""
    built = record_model(model, arena, positions) if device.type == "cpu" else None
    if built is None:
        _try_step(model, arena, device)
    return built


def numerics_of(model: nn.Module, device: torch.device, dtype: torch.dtype) -> str:
    """That of the kernels; whose sines turn keys; where weights are quantised, which of them and how; and angles that follow the context:
    keys that were turned by one context's are none of another's, on a disk say."""
    storages = {path: leaf.storage for path, leaf in model.named_modules() if isinstance(leaf, Linear)}
    ids = sorted({ops.numerics_id(device, dtype, storage.scheme) for storage in storages.values()})
    ropes = {layer.rope.numerics for layer in model.modules() if isinstance(layer, Rotary)}
    if ropes:
        ids.append(f"torch-{torch.__version__}")
    angles = sorted(ropes - {""})
    if all(storage.scheme is None for storage in storages.values()):
        return "+".join([*ids, *angles])
    layers = [f"{path} {storage.scheme}" for path, storage in storages.items()]
    if any(isinstance(storage, Coded) for storage in storages.values()):
        layers.append(f"read {CODES_VERSION}")
    return "+".join([*ids, hashlib.sha256("\n".join(layers).encode()).hexdigest()[:16], *angles])


def _try_step(model: Decoder | PooledModel, arena: KvArena, device: torch.device) -> None:
    """Runs one token, a block's worth, and on cards many rows of one and a draw, through block 0: what cannot run fails here, and kernels
    are compiled. There are some for each range of rows."""
    is_card = device.type == "cuda"
    for tokens, rows in [(arena.shape.block_size, 1), (1, 1), *([(1, 64), (1, 256)] if is_card else [])]:
        places = torch.arange(tokens, device=device).repeat(rows)
        kinds = len(arena.shape.kinds)
        step = Step(
            ids=torch.zeros(tokens * rows, dtype=torch.int32, device=device),
            positions=places.int(),
            kv_slots=places.repeat(kinds, 1),
            block_table=torch.zeros(kinds, rows, 1, dtype=torch.int32, device=device),
            row_offsets=torch.arange(0, tokens * rows + 1, tokens, dtype=torch.int32, device=device),
            row_starts=torch.zeros(rows, dtype=torch.int32, device=device),
            kv=arena,
        )
        out = run_model(model, Rows(step, torch.tensor([tokens - 1], dtype=torch.int32, device=device)))
    if is_card and isinstance(model, Decoder):
        sampler = Sampler(1, model.config.vocab, TOP_LOGPROBS, device, transfer_for(device))
        sampler.draw(out, *torch.zeros(2, 1, dtype=torch.int32, device=device))
