"""What an entry depends on: files, wishes, the processor's class, and the code that made it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path

import pelton_kernels
from pelton_kernels import _native

import pelton
from pelton.kv_shape import ELEMENT_BYTES
from pelton.loading.fingerprint import fingerprint
from pelton.loading.wish import Wish

VERSION = 4  # of what a header says
# Wishes that change neither weights nor program. What is not named here does: a new wish is on the safe side.
INDIFFERENT = {
    "folder",  # its fingerprint counts
    "kv_bytes",
    "memory_limit_bytes",
    "first_context",  # how long a context the entry serves is in its header
    "threads",
    "slots",
    "token_budget",
    "scores",
    "device",  # only a CPU's are kept
    "kept_folder",
    "kept_bytes",
}


def key_of(wish: Wish) -> str:
    """A name for the entry of this wish."""
    wishes = {name: str(value) for name, value in dataclasses.asdict(wish).items() if name not in INDIFFERENT}
    classes = [_native.numerics_id(dtype, None) for dtype in ELEMENT_BYTES]  # and so how weights are packed
    parts = [VERSION, fingerprint(wish.folder), wishes, classes, _torch(), sorted(_code())]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _torch() -> str:
    """Its version, without importing it: rotary angles, among others, are its sines. "": there is none, and what is kept needs none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _code() -> Iterator[str]:
    """Every file that could have a say in what is kept: sizes and times, as for a checkpoint; and the kernels' whole, as builds that can be
    repeated give all their files one time."""
    yield hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
    for package in (pelton, pelton_kernels):
        root = Path(str(package.__file__)).parent
        for path in root.rglob("*"):
            if path.suffix in {".py", ".so"} and path.is_file():  # no link of an editor's that leads nowhere
                stat = path.stat()
                yield f"{package.__name__}/{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}"
