"""Whose definition of a model runs: Pelton's own, or that of transformers."""

from __future__ import annotations

import logging

import torch

from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError, UnservedError
from pelton.loading.native import NativeSource
from pelton.loading.source import Source
from pelton.loading.task import vectors_of
from pelton.loading.vectors import VectorSource
from pelton.loading.wish import Wish
from pelton.models import family_of, named, resolve
from pelton.quantization import Quantization

log = logging.getLogger("pelton.worker")

BACKENDS = ("auto", "native", "transformers")


def source_of(
    wish: Wish, checkpoint: Checkpoint, quantization: Quantization, device: torch.device, dtype: torch.dtype
) -> Source:
    """By `--model-backend` and config.json."""
    backend, config = wish.model_backend or "auto", checkpoint.config
    if backend not in BACKENDS:
        raise LoadError(f"--model-backend {backend}; supported: {', '.join(BACKENDS)}")
    if config.get("auto_map") and not wish.trust_remote_code:  # B:A7: on every path, whatever else the config says
        raise LoadError(
            "the model brings Python code of its own (`auto_map` in config.json), and Pelton runs none unless told so: read it, then "
            "set --trust-remote-code"
        )
    vectors = vectors_of(wish, config)
    if vectors is not None:
        return VectorSource(vectors, quantization, checkpoint.with_modules(vectors.dense), device, dtype)
    if backend == "native" or (backend == "auto" and family_of(config) is not None) or named(config) == "none":
        try:
            family, sizes = resolve(config)
        except UnservedError as unserved:
            if backend == "native" or quantization.is_quantised:
                raise
            return _instead(unserved, wish, checkpoint, device, dtype)
        family, checkpoint = family.as_stored(checkpoint.tensors), checkpoint.without(family.ignored)
        return NativeSource(family, sizes.within(wish.max_model_len), quantization, checkpoint, device, dtype)
    if quantization.is_quantised:
        raise LoadError(
            f"{named(config)} would run through transformers, which here takes weights that are not quantised; this is "
            f"{quantization.name}: give a checkpoint of bfloat16, and leave --quantize away"
        )
    return _borrowed(wish, checkpoint, device, dtype)


def _instead(
    unserved: UnservedError, wish: Wish, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> Source:
    """A model of a family of ours, but of a variant that it lacks, as transformers defines it; or our own reason, if it does not either."""
    try:
        source = _borrowed(wish, checkpoint, device, dtype)
    except LoadError as theirs:
        raise UnservedError(f"{unserved}; nor does it run through transformers: {theirs}") from theirs
    log.warning("not native: %s", unserved)
    return source


def _borrowed(wish: Wish, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Source:
    # Imported for such models alone: the package takes seconds, and need not be there.
    from pelton.borrowed.architecture import architecture_of
    from pelton.borrowed.source import BorrowedSource

    architecture = architecture_of(checkpoint.folder, checkpoint.config, wish.trust_remote_code)
    return BorrowedSource(architecture, checkpoint, wish.max_model_len, device, dtype)
