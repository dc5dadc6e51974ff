"""An entry: written from a loaded model, and read as one that steps can be run on."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pelton_kernels import _native
from pelton_kernels._native import ArenaBytes, KeptFile, Program
from pelton_kernels.script import Caches, ScriptError, rebuild

from pelton import machine
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.kv_shape import Kind, KvShape
from pelton.loading import budget
from pelton.loading.budget import Budget
from pelton.loading.error import LoadError
from pelton.loading.pooling import Pooling
from pelton.loading.ready import Progress
from pelton.loading.wish import Wish

if TYPE_CHECKING:
    from pelton.loading.load import Loaded

log = logging.getLogger("pelton.worker")

TORCH_BYTES_MAX = 400 << 20  # what a worker has taken before it reads weights
MORE_CONTEXT = 16  # A start that has memory for a sixteenth more than the kept model takes that model nevertheless.


@dataclass(frozen=True, slots=True)
class KeptSizes:
    """See `budget.Sizes`."""

    positions: int
    vocab: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int


@dataclass(frozen=True, slots=True)
class Kept:
    """See `Ready`: a model that was kept, over an arena of its own."""

    family: str
    dtype: str
    vocab: int
    shape: KvShape
    budget: Budget
    numerics_id: str
    slots: int
    token_budget: int
    program: Program
    arena: ArenaBytes
    pooling: Pooling | None
    embed_width: int
    embed_scale: float
    is_invariant: bool = True  # what has call-backs is not kept


def keep(folder: KeptFolder, wish: Wish, key: str, loaded: Loaded) -> bool:
    """Writes a loaded model down, if there is room; whether it did. Whatever goes wrong is logged: the model runs without it.

    `key`: the wish's, taken before loading began.
    """
    built = loaded.built
    if built is None or not built.script.is_whole:
        return False
    try:
        if key_of(wish) != key:
            log.warning(
                "the loaded model is not kept: files in %s, or Pelton's own, changed while it was loaded", wish.folder
            )
            return False
        from pelton.layers.rotary import angles_follow_context  # PyTorch is there: it has made the model

        script, sizes = built.script, loaded.model.config
        size = sum(blob.nbytes if isinstance(blob, _native.PackedWeight) else blob[1] for blob in script.blobs)
        if not folder.make_room(key, size):
            return False
        header = {
            "key": key,
            "model": str(wish.folder),
            "family": loaded.family,
            "dtype": loaded.dtype,
            "numerics_id": loaded.numerics_id,
            "sizes": {name: getattr(sizes, name) for name in KeptSizes.__dataclass_fields__},
            "shape": asdict(loaded.shape),
            "pooling": None if loaded.pooling is None else asdict(loaded.pooling),
            "embed_width": loaded.embed_width,
            "embed_scale": loaded.embed_scale,
            "layers": _arena_layers(loaded),
            "weights_bytes": loaded.budget.weights_bytes,
            "longest": loaded.budget.max_model_len,
            "angles_follow_context": angles_follow_context(loaded.model),
            # Of a worker that had another model before it is more than PyTorch takes.
            "held_bytes": min(loaded.held_bytes, TORCH_BYTES_MAX),
            "program": script.data(),
        }
        written = _native.keep(folder.entry(key), folder.part(key), json.dumps(header).encode(), script.blobs)
    except OSError as error:
        log.warning("the loaded model is not kept: %s", error)
        return False
    log.info("the loaded model is kept for the next start: %d bytes in %s", written, folder.entry(key))
    return True


def is_kept(folder: KeptFolder, wish: Wish) -> bool:
    """Whether an entry is there that a start with this wish would take, if its weights are whole: they are looked at when they are read."""
    key = key_of(wish)
    try:
        header = json.loads(KeptFile.open(folder.entry(key)).header)
        return bool(header["key"] == key) and _planned(wish, *_sizes(header), header) is not None
    except (OSError, LoadError, KeyError, TypeError, ValueError):
        return False


def read(folder: KeptFolder, wish: Wish) -> Generator[Progress, None, Kept | None]:
    """The model that was kept for this wish; None: there is none that can be read, or it is damaged and now deleted."""
    key = key_of(wish)
    path = folder.entry(key)
    try:
        found = path.stat()
        _native.set_threads(wish.threads or machine.cores())
        file = KeptFile.open(path)
        kept = yield from _read(file, json.loads(file.header), key, wish)
    except FileNotFoundError:
        return None
    except OSError as error:  # of the disk, or of this moment: the entry may be whole
        log.warning("%s cannot be read (%s): the model is loaded anew", path, error)
        return None
    except (ScriptError, KeyError, TypeError, ValueError) as error:
        log.warning("%s is of no use (%s): the model is loaded anew", path, error)
        folder.forget(key, found)
        return None
    if kept is not None:
        folder.use(key)
    return kept


def _read(file: KeptFile, header: dict[str, Any], key: str, wish: Wish) -> Generator[Progress, None, Kept | None]:
    if header["key"] != key:
        raise ValueError("it is another model's")
    sizes, shape, pooling = _sizes(header)
    planned = _planned(wish, sizes, shape, pooling, header)
    if planned is None:
        log.info("the context is another one than that of the kept model: it is loaded anew")
        return None
    done, total = 0, sum(file.lengths)
    yield Progress("reading the kept model", done, total, planned)
    script = header["program"]
    numbers = {int(blob): list(numbers) for blob, numbers in script["weights"].items()}
    blobs: dict[int, Any] = {}
    for blob, size in enumerate(file.lengths):
        blobs[blob] = file.weight(blob, numbers[blob]) if blob in numbers else file.read(blob)
        done += size
        yield Progress("reading the kept model", done, total)
    yield Progress("allocating KV", total, total)
    arena = ArenaBytes(planned.kv_bytes, shape.parts)
    arena.step(0, 1)  # none is tried here: the arena need not wait for the end of a first step
    layers = [_caches(arena, shape, planned.blocks, layer) for layer in header["layers"]]
    program = rebuild(script, blobs.__getitem__, blobs.__getitem__, layers, arena)
    return Kept(
        family=header["family"],
        dtype=header["dtype"],
        vocab=sizes.vocab,
        shape=shape,
        budget=planned,
        numerics_id=header["numerics_id"],
        slots=wish.slots,
        token_budget=wish.token_budget,
        program=program,
        arena=arena,
        pooling=pooling,
        embed_width=header["embed_width"],
        embed_scale=header["embed_scale"],
    )


def _sizes(header: dict[str, Any]) -> tuple[KeptSizes, KvShape, Pooling | None]:
    shape = KvShape(**{**header["shape"], "kinds": tuple(Kind(**kind) for kind in header["shape"]["kinds"])})
    pooling = None
    if header["pooling"] is not None:
        pooling = Pooling(**{**header["pooling"], "labels": tuple(header["pooling"]["labels"])})
    return KeptSizes(**header["sizes"]), shape, pooling


def _planned(
    wish: Wish, sizes: KeptSizes, shape: KvShape, pooling: Pooling | None, header: dict[str, Any]
) -> Budget | None:
    """As for the model that would be loaded; None: that would be another one, or have a notably longer context."""
    held, limit = machine.memory(wish.memory_limit_bytes)
    # With PyTorch, a start had less memory for the context than one without.
    memory = max(held, header["held_bytes"]), limit
    planned = budget.plan(wish, sizes, shape, header["weights_bytes"], *memory, pooling=pooling)
    longest = header["longest"]
    # What was asked for, room for KV or whole texts of a step, is another matter.
    is_fitted = not wish.first_context and not wish.kv_bytes and (pooling is None or not pooling.is_bidirectional)
    if is_fitted and longest < planned.max_model_len <= longest + longest // MORE_CONTEXT:
        log.info("the context is %d tokens, as in the kept model; %d would fit", longest, planned.max_model_len)
        only = replace(wish, first_context=longest)
        planned = budget.plan(only, sizes, shape, header["weights_bytes"], *memory, pooling=pooling)
    # Of longer tables a shorter context uses the beginning, unless their angles follow from the context.
    fits = planned.max_model_len == longest if header["angles_follow_context"] else planned.max_model_len <= longest
    return planned if fits else None


def _arena_layers(loaded: Loaded) -> list[int]:
    """Which of the arena's layers each of the program's is."""
    assert loaded.built is not None
    addresses = {keys.data_ptr(): at for at, (keys, _) in enumerate(loaded.kv.layers)}
    return [addresses[address] for address in loaded.built.script.layers]


def _caches(arena: ArenaBytes, shape: KvShape, blocks: int, layer: int) -> Caches:
    """As `KvArena` divides its memory: layer by layer, keys before values."""
    if not 0 <= layer < shape.layers:
        raise ValueError(f"it names layer {layer} of {shape.layers}")
    size = blocks * shape.layer_bytes
    start = arena.span[0] + 2 * layer * size
    elements = size // shape.cache_bytes
    sizes = (blocks, shape.heads, shape.block_size, shape.head_dim)
    return (start, elements), (start + size, elements), sizes, shape.cache_dtype
