"""Loading, from the wish to a model that has run once. A generator: it yields progress, and returns the model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass

import torch
from pelton_kernels import ops
from pelton_kernels._native import ArenaBytes, Program
from pelton_kernels.program import Built

from pelton import device as devices
from pelton import machine
from pelton.kv import DTYPES, KvArena
from pelton.kv_shape import KvShape
from pelton.loading import budget
from pelton.loading.budget import Budget
from pelton.loading.checkpoint import Checkpoint, read_config
from pelton.loading.choice import source_of
from pelton.loading.error import LoadError
from pelton.loading.pooling import Pooling
from pelton.loading.ready import Progress
from pelton.loading.source import Model, Source
from pelton.loading.wish import Wish
from pelton.models.pooled import PooledModel
from pelton.quantization import quantization_of

log = logging.getLogger("pelton.worker")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to run, and the memory for its KV."""

    family: str
    model: Model
    kv: KvArena
    budget: Budget
    device: torch.device
    dtype: str
    numerics_id: str
    slots: int  # the bounds of one step
    token_budget: int
    built: Built | None  # None: the model is run eagerly
    held_bytes: int = 0  # what the process had taken before, of which the budget knew

    @property
    def program(self) -> Program | None:
        """None: the model is run eagerly."""
        return None if self.built is None else self.built.program

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return self.model.config.vocab

    @property
    def shape(self) -> KvShape:
        """Of the KV's blocks."""
        return self.kv.shape

    @property
    def arena(self) -> ArenaBytes | None:
        """The memory of all blocks; None: it is a card's."""
        return self.kv.memory

    @property
    def pooling(self) -> Pooling | None:
        """What its vectors are; None: it draws tokens."""
        return self.model.pooling if isinstance(self.model, PooledModel) else None

    @property
    def embed_width(self) -> int:
        """Numbers of what may stand in the place of a token's embedding; 0: nothing may."""
        return 0 if isinstance(self.model, PooledModel) else self.model.embed_width

    @property
    def embed_scale(self) -> float:
        """What the model multiplies that by, as the model's format has it."""
        scale = 1.0 if isinstance(self.model, PooledModel) else self.model.embed_scale
        return float(torch.tensor(scale, dtype=DTYPES[self.dtype]))

    @property
    def is_invariant(self) -> bool:
        """Whether a row's bits do not depend on its company: so on a CPU, unless PyTorch computes a part of them."""
        return self.program is not None and self.program.call_backs == 0


def load(wish: Wish, waiting_bytes: int = 0) -> Generator[Progress, None, Loaded]:
    """Loads what `wish` says. Whoever stops asking for progress stops the loading. `waiting_bytes`: memory that was taken for its
    weights already."""
    yield Progress("reading the checkpoint", 0, 0)
    # Before the files, which may have formats that only the name of a scheme explains.
    quantization = quantization_of(read_config(wish.folder), wish.quantize, wish.quantize_skip)
    checkpoint = Checkpoint.open(wish.folder)
    device = devices.choose(wish.device)
    if quantization.is_quantised and device.type != "cpu":
        raise LoadError(f"{quantization.name} weights run on CPUs; set --device cpu, or give a checkpoint of bfloat16")
    dtype_name = _dtype(wish.dtype, checkpoint)
    dtype = DTYPES[dtype_name]
    source = source_of(wish, checkpoint, quantization, device, dtype)
    threads = wish.threads or machine.cores()
    ops.set_threads(threads)
    torch.set_num_threads(threads)

    config, division = source.config, source.division
    block_size = wish.block_size or (16 if device.type == "cuda" else 32)
    sizes = division.per_kind, config.kv_heads, config.head_dim, block_size, dtype_name, division.kinds
    shape = KvShape(*sizes, has_codes=_has_codes(wish.kv_dtype, device, source.pooling))
    held, limit = devices.memory(device, wish.memory_limit_bytes)
    memory = max(held - waiting_bytes, 0), limit
    planned = budget.plan(wish, config, shape, source.needed_bytes(), *memory, source.pooling, device.type == "cuda")
    if planned.max_model_len < (wish.max_model_len or config.positions):
        log.warning(
            "the context is %d tokens instead of the model's %d: more does not fit; raise %s",
            planned.max_model_len,
            config.positions,
            "--token-budget" if planned.max_model_len == wish.token_budget else "--memory-limit or --kv-memory",
        )
    total = source.stored_bytes()
    yield Progress("reading weights", 0, total, planned)

    with torch.inference_mode():
        model = yield from _read(source, planned.max_model_len, total)
        yield Progress("allocating KV", total, total)
        arena = KvArena(shape, planned.blocks, device)
        yield Progress("trying a step", total, total)
        running = arena.step(())  # the arena takes no more memory meanwhile: whoever maps some would wait for it
        built = source.tried(model, arena, planned.max_model_len)
        del running
    numerics = f"{source.numerics_id(model)}{division.numerics}{shape.numerics}"
    return Loaded(
        source.name,
        model,
        arena,
        planned,
        device,
        dtype_name,
        numerics,
        wish.slots,
        wish.token_budget,
        built,
        memory[0],
    )


def _read(source: Source, positions: int, total: int) -> Generator[Progress, None, Model]:
    reading = source.read(positions)
    try:
        while True:
            yield Progress("reading weights", next(reading), total)
    except StopIteration as end:
        model: Model = end.value
        return model
    finally:
        reading.close()


def load_whole(wish: Wish) -> Loaded:
    """Loads without looking at progress."""
    loading = load(wish)
    while True:
        try:
            next(loading)
        except StopIteration as end:
            loaded: Loaded = end.value
            return loaded


def _has_codes(wish: str, device: torch.device, pooling: Pooling | None) -> bool:
    """Whether keys and values are kept as codes of 8 bits."""
    if wish in ("auto", ""):
        return False
    if wish != "int8":
        raise LoadError(f"--kv-dtype {wish}; supported: auto, int8")
    if device.type != "cpu":
        raise LoadError("--kv-dtype int8 runs on CPUs; set --device cpu, or leave --kv-dtype away")
    if pooling is not None and pooling.is_bidirectional:
        raise LoadError(
            "--kv-dtype int8: this model keeps no KV from one step to the next, so rounding it would save nothing; leave --kv-dtype away"
        )
    return True


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
