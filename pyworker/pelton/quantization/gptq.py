"""GPTQ (arXiv:2210.17323), as AutoGPTQ, GPTQModel and AutoRound write it.

qweight  int32 [width / 8, height]     eight codes along the inputs (four of 8 bits), the lowest bits first
qzeros   int32 [groups, height / 8]    zero points along the outputs, likewise: as they are in the format "gptq_v2"; in "gptq" each
                                       word less 0x11111111 (0x01010101 of 8 bits), so that a zero point of 0 borrows from the next
scales         [groups, height]
g_idx    int32 [width]                 each input's group; out of order with `desc_act`, and not always there where that is false
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pelton.layers.storage import Kept
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.codes import (
    UNORDERED,
    Coded,
    Find,
    Part,
    alike,
    excluded,
    is_table,
    read_scheme,
    refuse,
    unpacked,
)

FORMATS = ["gptq", "gptq_v2"]
ONES = {4: 0x11111111, 8: 0x01010101}  # 1 at each place of a word


def read(fields: Fields) -> Find:
    """The storage of the layers of blocks, all or those that `modules_in_block_to_quantize` names; and of the head if `lm_head` says so."""
    refuse(fields, "is_marlin_format", "rotation", "activation")
    is_kept, named, has_head = excluded(fields), _named(fields), fields.flag("lm_head")
    scheme = read_scheme(fields, "bits")
    storage = Gptq(
        scheme,
        has_zeros=True,
        is_less=fields.word("checkpoint_format", FORMATS, fields.get("format") or "gptq") == "gptq",
        is_in_order=fields.get("desc_act") is False,  # who says nothing may have meant either
    )

    def find(path: str, names: list[str]) -> Coded | None:
        is_head = path == "head"
        if (is_head and not has_head) or not (is_head or path.startswith("blocks.")):
            return None

        def one(name: str) -> Coded | None:
            is_coded = is_head or not named or any(name.endswith(f".{word}") for word in named)
            return None if not is_coded or is_table(name) or is_kept(name) else storage

        return alike(names, one)

    return find


def _named(fields: Fields) -> list[str]:
    """A list of names in a block, or of lists of them: those that are quantised one after the other."""
    value = fields.get("modules_in_block_to_quantize") or []
    flat = (
        [name for item in value for name in (item if isinstance(item, list) else [item])]
        if isinstance(value, list)
        else [value]
    )
    if not all(isinstance(name, str) for name in flat):
        raise LoadError(f"`modules_in_block_to_quantize` in config.json is {value!r}; supported: lists of names")
    return flat


@dataclass(frozen=True)
class Gptq(Coded):
    """See above."""

    is_less: bool
    is_in_order: bool

    def keeps(self, height: int, width: int) -> list[Kept]:
        per_word = 32 // self.scheme.bits
        groups = -(-width // self.scheme.group) if self.scheme.group else 1
        if width % per_word or height % per_word:
            raise LoadError(
                f"a weight of {height} by {width} is no GPTQ weight: its sides are no multiples of {per_word}"
            )
        return [
            Kept("qweight", (width // per_word, height), (torch.int32,)),
            Kept("qzeros", (groups, height // per_word), (torch.int32,)),
            Kept("scales", (groups, height)),
            Kept("g_idx", (width,), (torch.int32,), absent=UNORDERED if self.is_in_order else None),
        ]

    def part(self, tensors: dict[str, Tensor]) -> Part:
        bits = self.scheme.bits
        codes = unpacked(tensors["qweight"].T, bits, dim=1)
        words = tensors["qzeros"]  # sums of int32 wrap around, as they should
        zeros = unpacked((words + ONES[bits] if self.is_less else words).T, bits, dim=0)
        return Part(codes, tensors["scales"].T.contiguous(), zeros, tensors["g_idx"])
