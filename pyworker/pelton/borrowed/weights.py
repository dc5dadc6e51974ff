"""A checkpoint's tensors into a model of transformers, by its own rules of what a tensor was called before and how several become one.

It gets our tensors and nothing else: views of the mapped safetensors files, each copied when it is asked for. No other file is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from pelton.borrowed.architecture import Architecture
from pelton.borrowed.attention import NAME
from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError
from pelton.loading.weights import some

LOOK_S = 0.1  # between two looks at how far it is


class Reading:
    """How far it is, and whether anybody still wants it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.is_wanted = True
        self.done = 0
        self._lock = threading.Lock()  # transformers reads with several threads

    def take(self, name: str) -> Tensor:
        """A copy; the pages of the file are given back."""
        if not self.is_wanted:
            raise LoadError("nobody wants the model any more")
        copy = self.checkpoint.tensor(name).clone()
        with self._lock:
            self.checkpoint.forget(name)
            self.done += self.checkpoint.tensors[name].bytes
        return copy


class Lent:
    """A tensor that is read when it is looked at, as transformers takes them from safetensors files."""

    def __init__(self, reading: Reading, name: str) -> None:
        self._reading = reading
        self._name = name

    def __getitem__(self, _all: object) -> Tensor:
        return self._reading.take(self._name)


def stored_bytes(checkpoint: Checkpoint) -> int:
    """What `read` goes through."""
    return sum(stored.bytes for stored in checkpoint.tensors.values())


def read(
    architecture: Architecture, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device
) -> Generator[int, None, nn.Module]:
    """Makes the model with its weights; yields the bytes gone through so far. Closed before its end, it stops."""
    reading = Reading(checkpoint)
    with ThreadPoolExecutor(1, thread_name_prefix="weights") as pool:
        outcome = pool.submit(_made, architecture, reading, dtype)
        try:
            while not outcome.done():
                yield reading.done
                wait([outcome], timeout=LOOK_S)
        finally:
            reading.is_wanted = False
        return outcome.result().to(device)


def _made(architecture: Architecture, reading: Reading, dtype: torch.dtype) -> nn.Module:
    checkpoint = reading.checkpoint
    try:
        model, said = architecture.model.from_pretrained(
            None,
            config=architecture.config,
            state_dict={name: Lent(reading, name) for name in checkpoint.tensors},
            dtype=dtype,
            attn_implementation=NAME,
            ignore_mismatched_sizes=True,  # they are refused below, all at once
            output_loading_info=True,
        )
    except NotImplementedError as error:  # it compares a tied head with its table before it says that neither fits
        raise LoadError(
            f"the tensors in {checkpoint.folder} are not those of its config.json: a head and the table that it is tied to are both of "
            f"another shape (transformers {architecture.version}: {error})"
        ) from error
    _refuse_what_does_not_fit(checkpoint, said)
    made: nn.Module = model.eval().requires_grad_(False)
    return made


def _refuse_what_does_not_fit(checkpoint: Checkpoint, said: dict[str, Any]) -> None:
    troubles = {
        "missing": sorted(said["missing_keys"]),
        "unexpected": sorted(said["unexpected_keys"]),
        "of another shape": [
            f"{name} {list(stored)} instead of {list(wanted)}"
            for name, stored, wanted in sorted(said["mismatched_keys"])
        ],
    }
    found = [f"{len(names)} {kind}: {some(names)}" for kind, names in troubles.items() if names]
    found += [str(error) for error in said.get("error_msgs") or []]
    if found:
        raise LoadError(f"the tensors in {checkpoint.folder} are not those of its config.json; " + "; ".join(found))
