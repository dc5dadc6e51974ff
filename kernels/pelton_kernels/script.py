"""A program as data: the calls that built it, with the numbers of blobs in place of memory; and the program built again.

    {"dtype": ..., "calls": [[name, arguments], ...], "weights": {blob: numbers}, "result": buffer}

An argument that stood in memory is {"lent": blob, "elements": count}, a packed weight {"weight": blob}. Layers of the KV
arena are not kept: the reader has an arena of its own. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pelton_kernels._native import ArenaBytes, HeldBytes, PackedWeight, Program, ProgramBuilder

# What a script may ask of a builder: everything but call-backs, which are code.
BUILDER_CALLS = frozenset(
    name for name in dir(ProgramBuilder) if not name.startswith("_") and name not in {"build", "call_back", "layer"}
)
Address = tuple[int, int]  # and elements
Caches = tuple[Address, Address, tuple[int, ...], str]  # keys, values, sizes of each and dtype


class ScriptError(Exception):
    """What was read is no script."""


@dataclass(frozen=True)
class Lent:
    """Fixed memory: where it lies and what it has."""

    address: int
    elements: int
    element_bytes: int

    @property
    def span(self) -> Address:
        """As the native side takes it."""
        return self.address, self.elements


@dataclass
class Script:
    """Collected while a program is built."""

    dtype: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    blobs: list[PackedWeight | Address] = field(default_factory=list)
    """Packed weights; or addresses and bytes."""
    weights: dict[int, list[int]] = field(default_factory=dict)
    """Which blobs are weights, and their numbers."""
    layers: list[int] = field(default_factory=list)
    """Where the keys of each layer of the arena lie, by the layers' numbers in calls."""
    result: int = -1
    is_whole: bool = True
    """False: it has call-backs, which no script can have."""
    _known: dict[Any, int] = field(default_factory=dict)

    def add(self, name: str, arguments: dict[str, Any]) -> None:
        """One call of the builder."""
        self.calls.append((name, {key: self._data(value) for key, value in arguments.items()}))

    def data(self) -> dict[str, Any]:
        """What JSON takes. Floats come back as they were."""
        weights = {str(blob): numbers for blob, numbers in self.weights.items()}
        return {"dtype": self.dtype, "calls": self.calls, "weights": weights, "result": self.result}

    def _data(self, value: Any) -> Any:
        if isinstance(value, Lent):
            blob = self._blob(value, (value.address, value.elements * value.element_bytes))
            return {"lent": blob, "elements": value.elements}
        if isinstance(value, PackedWeight):
            blob = self._blob(id(value), value)  # the blob holds it: its id stays its own
            self.weights[blob] = value.numbers
            return {"weight": blob}
        return value

    def _blob(self, key: Any, blob: PackedWeight | Address) -> int:
        if key not in self._known:
            self._known[key] = len(self.blobs)
            self.blobs.append(blob)
        return self._known[key]


def rebuild(
    data: Any,
    held: Callable[[int], HeldBytes],
    weight: Callable[[int], PackedWeight],
    layers: Sequence[Caches],
    arena: ArenaBytes,
) -> Program:
    """The program that `data` tells of, over blobs as `held` and `weight` give them and over these layers of an arena.
    `ScriptError`: it tells of none."""
    try:
        return _rebuild(data, held, weight, layers, arena)
    except (AttributeError, KeyError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise ScriptError(f"{type(error).__name__}: {error}") from error


def _rebuild(
    data: Any,
    held: Callable[[int], HeldBytes],
    weight: Callable[[int], PackedWeight],
    layers: Sequence[Caches],
    arena: ArenaBytes,
) -> Program:
    builder = ProgramBuilder(data["dtype"])
    for caches in layers:
        builder.layer(*caches)
    owners: dict[int, HeldBytes] = {}

    def present(value: Any) -> Any:
        match value:
            case {"lent": int(blob), "elements": int(elements)}:
                if blob not in owners:
                    owners[blob] = held(blob)
                address, size = owners[blob].span
                if elements < 0 or size % max(elements, 1) or size // max(elements, 1) not in {2, 4}:
                    raise ScriptError(f"blob {blob} has {size} bytes for {elements} elements")
                return address, elements
            case {"weight": int(blob)}:
                return weight(blob)
            case _:
                return value

    for name, arguments in data["calls"]:
        if name not in BUILDER_CALLS:
            raise ScriptError(f"`{name}` is no call of a script")
        getattr(builder, name)(**{key: present(value) for key, value in arguments.items()})
    return builder.build(data["result"], [arena, *owners.values()])
