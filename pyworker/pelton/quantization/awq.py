"""AWQ (arXiv:2306.00978), as AutoAWQ's "gemm" version writes it: 4 bits.

qweight  int32 [width, height / 8]     eight codes along the outputs, in the order 0, 2, 4, 6, 1, 3, 5, 7
qzeros   int32 [groups, height / 8]    zero points, likewise; all 8 where `zero_point` is false
scales         [groups, height]

Of some families (StarCoder2, GPT-NeoX) it scales what a function has made, too, and `mlp.act.scales` divides that again. These are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pelton.layers.storage import Kept
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.codes import (
    Coded,
    Find,
    Part,
    alike,
    excluded,
    is_table,
    names_in,
    read_scheme,
    refuse,
    unpacked,
)

PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # where in its word each of eight neighbours stands
SCALES = r".*\.(act|gelu_impl)\.scales"  # divide activations


def read(fields: Fields) -> Find:
    """The storage of the layers of blocks but those that `modules_to_not_convert` names; and of the head if `lm_head` says so."""
    refuse(fields, "rotation", "activation")
    version = fields.get("version")
    if version is not None and str(version).lower() != "gemm":
        raise LoadError(f"`quantization_config.version` in config.json is {version} (AWQ); supported: gemm")
    scheme = read_scheme(fields, "bits")
    if scheme.bits != 4:
        raise LoadError(f"the checkpoint is quantised with {scheme.bits} bits (AWQ); supported: 4")
    kept = names_in(fields, "modules_to_not_convert")
    is_kept, has_head = excluded(fields), fields.flag("lm_head")
    storage = Awq(scheme, has_zeros=True, is_symmetric=not fields.flag("zero_point", True))

    def one(name: str) -> Coded | None:
        is_float = any(part in name for part in kept) or is_kept(name)
        return None if is_float or is_table(name) else storage

    def find(path: str, names: list[str]) -> Coded | None:
        if not path.startswith("blocks.") and not (path == "head" and has_head):
            return None
        return alike(names, one)

    return find


@dataclass(frozen=True)
class Awq(Coded):
    """See above."""

    is_symmetric: bool

    def keeps(self, height: int, width: int) -> list[Kept]:
        groups = -(-width // self.scheme.group) if self.scheme.group else 1
        if height % 8:
            raise LoadError(f"a weight of {height} by {width} is no AWQ weight: its height is no multiple of 8")
        return [
            Kept("qweight", (width, height // 8), (torch.int32,)),
            Kept("qzeros", (groups, height // 8), (torch.int32,)),
            Kept("scales", (groups, height)),
        ]

    def part(self, tensors: dict[str, Tensor]) -> Part:
        codes, zeros = (unpacked(tensors[kind].T, 4, dim=0, places=PLACES) for kind in ("qweight", "qzeros"))
        if self.is_symmetric and not bool((zeros == self.scheme.zero).all()):
            # Some programs read these, others take 8, so that the weights would be two different things.
            raise LoadError(
                "`zero_point` in config.json is false (AWQ), but not all of `qzeros` are 8; supported: false where all are, and true"
            )
        return Part(codes, tensors["scales"].T.contiguous(), zeros)
