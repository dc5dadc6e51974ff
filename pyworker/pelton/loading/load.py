"""Loading, from the wish to a model that has run once. A generator: it yields progress, and returns the model."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from pelton_kernels._native import Program
from pelton_kernels.program import Built

from pelton import device as devices
from pelton import machine
from pelton.kv import DTYPES, KvArena
from pelton.kv_shape import KvShape
from pelton.layers.linear import Linear
from pelton.loading import budget, weights
from pelton.loading.budget import Budget
from pelton.loading.checkpoint import Checkpoint, read_config
from pelton.loading.error import LoadError
from pelton.loading.ready import Progress
from pelton.loading.wish import Wish
from pelton.models import resolve
from pelton.models.decoder import Decoder
from pelton.models.family import Family
from pelton.program import record_model
from pelton.quantization import quantization_of
from pelton.step import Step

log = logging.getLogger("pelton.worker")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to run, and the memory for its KV."""

    family: Family
    model: Decoder
    kv: KvArena
    budget: Budget
    device: torch.device
    dtype: str
    numerics_id: str
    slots: int  # the bounds of one step
    token_budget: int
    built: Built | None  # None: the model is run eagerly

    @property
    def program(self) -> Program | None:
        """None: the model is run eagerly."""
        return None if self.built is None else self.built.program

    @property
    def family_name(self) -> str:
        """As the report has it."""
        return self.family.name

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return self.model.config.vocab

    @property
    def shape(self) -> KvShape:
        """Of the KV's blocks."""
        return self.kv.shape

    @property
    def is_invariant(self) -> bool:
        """Whether a row's bits do not depend on its company: so on a CPU, unless PyTorch computes a part of them."""
        return self.program is not None and self.program.call_backs == 0


def load(wish: Wish) -> Generator[Progress, None, Loaded]:
    """Loads what `wish` says. Whoever stops asking for progress stops the loading."""
    yield Progress("reading the checkpoint", 0, 0)
    # Before the files, which may have formats that only the name of a scheme explains.
    quantization = quantization_of(read_config(wish.folder), wish.quantize, wish.quantize_skip)
    checkpoint = Checkpoint.open(wish.folder)
    family, config = resolve(checkpoint.config)
    device = devices.choose(wish.device)
    if quantization.is_quantised and device.type != "cpu":
        raise LoadError(f"{quantization.name} weights run on CPUs; set --device cpu, or give a checkpoint of bfloat16")
    family = family.as_stored(checkpoint.tensors)
    weights.check_sizes(config, family, checkpoint)
    dtype_name = _dtype(wish.dtype, checkpoint)
    dtype = DTYPES[dtype_name]
    threads = wish.threads or machine.cores()
    ops.set_threads(threads)
    torch.set_num_threads(threads)

    block_size = wish.block_size or (16 if device.type == "cuda" else 32)
    config = config.within(wish.max_model_len)
    division = config.division
    shape = KvShape(division.per_kind, config.kv_heads, config.head_dim, block_size, dtype_name, division.kinds)
    bare = Decoder(config, positions=1)  # without weights and angles: it only says what it wants
    found = weights.holdings(bare, family, quantization)
    weights.compare(found, family, config, quantization, checkpoint)
    planned = budget.plan(
        wish, config, shape, weights.needed_bytes(found, dtype), *devices.memory(device, wish.memory_limit_bytes)
    )
    if planned.max_model_len < (wish.max_model_len or config.positions):
        log.warning(
            "the context is %d tokens instead of the model's %d: more does not fit; raise --memory-limit or --kv-memory",
            planned.max_model_len,
            config.positions,
        )
    total = weights.stored_bytes(found, checkpoint)
    yield Progress("reading weights", 0, total, planned)

    with torch.inference_mode():
        model = Decoder(config, planned.max_model_len).to(device)
        for done in weights.read(weights.holdings(model, family, quantization), checkpoint, dtype, device):
            yield Progress("reading weights", done, total)
        yield Progress("allocating KV", total, total)
        arena = KvArena(shape, planned.blocks, device)
        yield Progress("trying a step", total, total)
        built = record_model(model, arena, planned.max_model_len) if device.type == "cpu" else None
        if built is None:
            _try_step(model, arena, device)
    numerics = f"{_numerics_id(model, device, dtype)}{division.numerics}"
    return Loaded(
        family,
        model,
        arena,
        planned,
        device,
        dtype_name,
        numerics,
        wish.slots,
        wish.token_budget,
        built,
    )


def load_whole(wish: Wish) -> Loaded:
    """Loads without looking at progress."""
    loading = load(wish)
    while True:
        try:
            next(loading)
        except StopIteration as end:
            loaded: Loaded = end.value
            return loaded


def _dtype(wish: str, checkpoint: Checkpoint) -> str:
    """ "auto": bfloat16 stays; everything else becomes float32, which holds float16 exactly."""
    if wish in DTYPES:
        return wish
    if wish != "auto":
        raise LoadError(f"--dtype {wish}; supported: auto, {', '.join(DTYPES)}")
    sizes: Counter[torch.dtype] = Counter()
    for stored in checkpoint.tensors.values():
        if stored.dtype.is_floating_point:  # integers are codes, which say nothing about activations
            sizes[stored.dtype] += stored.bytes
    most = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    if most in DTYPES.values():
        return next(name for name, dtype in DTYPES.items() if dtype == most)
    stored_as = str(most).removeprefix("torch.")
    log.info("--dtype auto is float32: the weights are stored as %s, which no kernel computes in", stored_as)
    return "float32"


def _numerics_id(model: Decoder, device: torch.device, dtype: torch.dtype) -> str:
    """That of the kernels; and where weights are quantised, which of them and how."""
    schemes = {path: leaf.storage.scheme for path, leaf in model.named_modules() if isinstance(leaf, Linear)}
    ids = sorted({ops.numerics_id(device, dtype, scheme) for scheme in schemes.values()})
    if set(schemes.values()) == {None}:
        return ids[0]
    layers = "\n".join(f"{path} {scheme}" for path, scheme in schemes.items())
    return f"{'+'.join(ids)}+{hashlib.sha256(layers.encode()).hexdigest()[:16]}"


def _try_step(model: Decoder, arena: KvArena, device: torch.device) -> None:
    """Runs one token, then a block's worth, through block 0: what cannot run fails here, and kernels are compiled."""
    for tokens in (1, arena.shape.block_size):
        places = torch.arange(tokens, device=device)
        kinds = len(arena.shape.kinds)
        step = Step(
            ids=torch.zeros(tokens, dtype=torch.int32, device=device),
            positions=places.int(),
            kv_slots=places.repeat(kinds, 1),
            block_table=torch.zeros(kinds, 1, 1, dtype=torch.int32, device=device),
            row_offsets=torch.tensor([0, tokens], dtype=torch.int32, device=device),
            row_starts=torch.zeros(1, dtype=torch.int32, device=device),
            kv=arena,
        )
        model.head(model(step)[-1:])
