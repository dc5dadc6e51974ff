"""What the formats of quantised checkpoints have in common: codes, scales, zero points, and an order along K."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from pelton_kernels import ops
from pelton_kernels.ops import PackedWeight, Scheme
from torch import Tensor

from pelton.layers.storage import Kept, coded_bytes
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.patterns import matches

# Of the layer at a path of the model, with these names in the checkpoint; None: its weights are floats.
Find = Callable[[str, list[str]], "Coded | None"]
# What tables of embeddings are called, each by the last word. A head that is tied to one is no weight of its own, so nobody quantises it.
TABLES = ("embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings")

# What a pattern of `dynamic` may say of its layers, if it says it of all.
OVERRIDES = ("bits", "group_size", "sym", "desc_act")
UNORDERED = -1  # in the place of a group

Said = TypeVar("Said")


@dataclass(frozen=True)
class Part:
    """One weight: (codes - zeros) · scales. `codes` uint8 [height, width]; scales, zeros [height, groups]."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None  # None: the middle code
    groups_of: Tensor | None = None  # [width]: each column's group; None: in order


@dataclass(frozen=True)
class Coded:
    """A weight in codes of 4 or 8 bits."""

    scheme: Scheme
    has_zeros: bool

    def with_scheme(self, scheme: Scheme) -> Self:
        """The same, multiplied otherwise."""
        return replace(self, scheme=scheme)

    def keeps(self, height: int, width: int) -> list[Kept]:
        """The tensors of one weight."""
        raise NotImplementedError

    def part(self, tensors: dict[str, Tensor]) -> Part:
        """One weight out of its tensors."""
        raise NotImplementedError

    def pack(self, parts: list[dict[str, Tensor]], dtype: torch.dtype, device: torch.device) -> PackedWeight:
        """See `Storage`."""
        read = [self.part(tensors) for tensors in parts]
        orders = [self._order(part) for part in read]
        if any(not _same(order, orders[0]) for order in orders):
            raise LoadError(
                "weights that share their inputs (queries, keys and values, or gate and up) are quantised in different orders "
                "of activations (act-order); supported: one order for all of them"
            )
        order = orders[0]
        codes = _above([part.codes for part in read])
        zeros = None
        if any(part.zeros is not None for part in read):
            zeros = _above([self._zeros(part) for part in read])
            if bool((zeros == self.scheme.zero).all()):
                zeros = None  # symmetric, whatever the format says
        return ops.pack_codes(
            codes if order is None else codes[:, order.long()].contiguous(),
            _above([part.scales.float() for part in read]),
            zeros,
            order,
            dtype,
            self.scheme,
        )

    def bytes(self, height: int, width: int, dtype: torch.dtype) -> int:
        """See `Storage`."""
        return coded_bytes(self.scheme, height, width, self.has_zeros) + 4 * width

    def _zeros(self, part: Part) -> Tensor:
        if part.zeros is not None:
            return part.zeros
        return torch.full(part.scales.shape, self.scheme.zero, dtype=torch.uint8)

    def _order(self, part: Part) -> Tensor | None:
        """Columns sorted by group (act-order); None if they are. All groups -1: no order was looked for."""
        if part.groups_of is None or not self.scheme.group or bool((part.groups_of == UNORDERED).all()):
            return None
        groups, width = part.groups_of.long(), part.codes.shape[1]
        if torch.equal(groups, torch.arange(width) // self.scheme.group):
            return None
        order = torch.argsort(groups, stable=True)
        if not torch.equal(groups[order], torch.arange(width) // self.scheme.group):
            raise LoadError(f"`g_idx` names groups of other sizes than `group_size` {self.scheme.group}")
        return order.int()


def read_scheme(fields: Fields, bits: str) -> Scheme:
    """`bits` and `group_size`, for activations as they are."""
    said = int(fields.word(bits, ["4", "8"])) if isinstance(fields.get(bits), str) else fields.count(bits)
    if said not in (4, 8):
        raise LoadError(f"the checkpoint is quantised with {said} bits; supported: 4, 8")
    group = fields.get("group_size")
    return Scheme(4 if said == 4 else 8, read_group(-1 if group is None else group), "float")


def read_group(size: object) -> int:
    """-1 is a whole column."""
    if size == -1:
        return 0
    if type(size) is not int or not 8 <= size <= 2048 or size % 8:
        raise LoadError(
            f"the checkpoint is quantised in groups of {size}; supported: -1, and multiples of 8 up to 2048"
        )
    return size


def alike(names: list[str], one: Callable[[str], Said]) -> Said:
    """What is said of each of the weights of one product, which has one storage."""
    said = [one(name) for name in names]
    if any(other != said[0] for other in said):
        raise LoadError(f"{', '.join(names)} are not quantised alike; supported: one scheme for all of them")
    return said[0]


def is_table(name: str) -> bool:
    """Whether it is a table of embeddings."""
    return name.rpartition(".")[2] in TABLES


def refuse(fields: Fields, *names: str) -> None:
    """Of fields that mean other tensors, or activations that are turned or rounded first: GPTQModel writes them for all its methods."""
    for name in names:
        if fields.get(name):
            raise LoadError(f"`quantization_config.{name}` in config.json is {fields.get(name)!r}; supported: none")


def excluded(fields: Fields) -> Callable[[str], bool]:
    """Whether `dynamic` (GPTQModel, AutoRound) leaves a weight as floats. Of its patterns the first that fits decides: `-:` are for floats,
    others for a scheme of their own, which has to be that of all."""
    overrides = fields.object("dynamic")
    rules = list(fields.get("dynamic") or {})  # with those that have null for an override
    for rule in rules:
        own = overrides.object(rule)
        if not rule.startswith("-:") and any(
            name not in OVERRIDES or own.get(name) != fields.get(name) for name in own.names()
        ):
            raise LoadError(
                f"`quantization_config.dynamic` in config.json has a scheme for {rule!r}; supported: one scheme, and `-:` patterns "
                "for what is not quantised"
            )

    def is_float(name: str) -> bool:
        first = next((rule for rule in rules if matches(re.sub(r"^[-+]:", "", rule), name)), "")
        return first.startswith("-:")

    return is_float


def names_in(fields: Fields, name: str) -> list[str]:
    """A list of names; empty if absent."""
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise LoadError(f"`{name}` in config.json is {value!r}; supported: a list of names")
    return value


def unpacked(words: Tensor, bits: int, dim: int, places: Sequence[int] | None = None) -> Tensor:
    """int32 words to their codes, along `dim`: uint8, 32 / bits times as many. `places`: where in its word each of these neighbours
    stands; the first in the lowest bits, unless said. One place after the other, so that no more than one is wide at a time."""
    per_word = 32 // bits
    codes = words.new_empty(
        [side * (per_word if at == dim else 1) for at, side in enumerate(words.shape)], dtype=torch.uint8
    )
    for neighbour, place in enumerate(places or range(per_word)):
        here = (slice(None),) * dim + (slice(neighbour, None, per_word),)
        codes[here] = (words >> (bits * place)).bitwise_and_((1 << bits) - 1)
    return codes


def _above(tensors: list[Tensor]) -> Tensor:
    """One above the other; one alone is no copy."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
