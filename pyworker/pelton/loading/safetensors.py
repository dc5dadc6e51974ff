"""One safetensors file: its header, checked, and its tensors, mapped.

A file is a claim until checked: the header's length is bounded before it is read, and every tensor's bytes must be
exactly what its dtype and shape say, inside the file, side by side. After `open` nothing points outside.

    | 8 bytes: length of the header | header: JSON, name -> dtype, shape, [begin, end) | tensors' bytes, without gaps |

Nothing is copied or executed: tensors are views of a private mapping, and `forget` gives their pages back.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pelton.loading.error import LoadError
from pelton.loading.files import size_of

HEADER_BYTES_MAX = 100_000_000  # the format's own bound

# What weights may be stored in; the integers are those of quantised ones, booleans those of masks. The format has more.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one tensor lies in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # bytes from the file's begin
    end: int

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return self.end - self.begin


class SafetensorsFile:
    """A mapped file and what is in it."""

    def __init__(self, path: Path, tensors: dict[str, Stored], mapping: mmap.mmap) -> None:
        self.path = path
        self.tensors = tensors
        self._mapping = mapping

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Reads and checks the header. The tensors' bytes are not touched."""
        try:
            size = size_of(path)
            with path.open("rb") as file:
                if size < 8:
                    raise _damaged(path, f"it has {size} bytes")
                # Private and writable, so that torch takes it without a warning; nobody writes.
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise LoadError(f"cannot read {path}: {error.strerror}") from error
        length = int.from_bytes(mapping[:8], "little")
        if length > min(HEADER_BYTES_MAX, size - 8):
            raise _damaged(path, f"its header would have {length} bytes; the file has {size}")
        return cls(path, _read_header(path, mapping[8 : 8 + length], data=8 + length, size=size), mapping)

    def tensor(self, name: str) -> Tensor:
        """A view of the mapping; nothing is read until it is looked at."""
        stored = self.tensors[name]
        count = math.prod(stored.shape)
        if count == 0:
            return torch.empty(stored.shape, dtype=stored.dtype)
        flat = torch.frombuffer(self._mapping, dtype=torch.uint8, count=stored.bytes, offset=stored.begin)
        if stored.begin % stored.dtype.itemsize:  # allowed by the format, if never written
            flat = flat.clone()
        return flat.view(stored.dtype).view(stored.shape)

    def forget(self, name: str) -> None:
        """Gives the tensor's pages back: they were read once, and count as ours until then."""
        stored = self.tensors[name]
        begin = stored.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if stored.end > begin:
            self._mapping.madvise(mmap.MADV_DONTNEED, begin, stored.end - begin)


def _read_header(path: Path, header: bytes, data: int, size: int) -> dict[str, Stored]:
    try:
        entries = json.loads(header, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is no JSON") from error
    if not isinstance(entries, dict):
        raise _damaged(path, "its header is no JSON object")
    entries.pop("__metadata__", None)
    tensors = {name: _read_entry(path, name, entry, data) for name, entry in entries.items()}
    end = data
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.begin != end:
            raise _damaged(path, f"`{name}` begins at byte {stored.begin}; the tensor before it ends at {end}")
        end = stored.end
    if end != size:
        raise _damaged(path, f"its tensors end at byte {end}; the file has {size}: was it cut off while copied?")
    return tensors


def _read_entry(path: Path, name: str, entry: Any, data: int) -> Stored:
    if not isinstance(entry, dict):
        raise _damaged(path, f"the entry of `{name}` is no object")
    dtype = entry.get("dtype")
    shape, offsets = (_counts(entry.get(key)) for key in ("shape", "data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise _damaged(path, f"the entry of `{name}` has no shape and offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise LoadError(f"`{name}` in {path} is stored as {dtype}; supported: {', '.join(DTYPES)}")
    stored = Stored(DTYPES[dtype], tuple(shape), data + offsets[0], data + offsets[1])
    if stored.bytes != math.prod(stored.shape) * stored.dtype.itemsize:
        raise _damaged(path, f"`{name}` of shape {list(shape)} in {dtype} cannot have {stored.bytes} bytes")
    return stored


def _counts(value: Any) -> list[int] | None:
    """The value, if it is a list of whole numbers from 0. (`type`, since True is an int too.)"""
    is_counts = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return value if is_counts else None


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _damaged(path, "its header names something twice")
    return entries


def _damaged(path: Path, why: str) -> LoadError:
    return LoadError(f"{path} is no intact safetensors file: {why}")
