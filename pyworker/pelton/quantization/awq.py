"""AWQ (arXiv:2306.00978), as AutoAWQ's "gemm" version writes it: 4 bits.

qweight  int32 [width, height / 8]     eight codes along the outputs, in the order 0, 2, 4, 6, 1, 3, 5, 7
qzeros   int32 [groups, height / 8]    zero points, likewise
scales         [groups, height]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pelton.layers.storage import Kept
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.codes import Coded, Part, read_scheme, unpacked

PLACES = [0, 4, 1, 5, 2, 6, 3, 7]  # where in its word each of eight neighbours stands


def read(fields: Fields) -> Callable[[list[str]], Coded | None]:
    """The storage of all layers but the head and those that `modules_to_not_convert` names."""
    version = fields.get("version")
    if version is not None and str(version).lower() != "gemm":
        raise LoadError(f"`quantization_config.version` in config.json is {version} (AWQ); supported: gemm")
    scheme = read_scheme(fields, "bits")
    if scheme.bits != 4:
        raise LoadError(f"the checkpoint is quantised with {scheme.bits} bits (AWQ); supported: 4")
    kept = [str(name) for name in fields.get("modules_to_not_convert") or []]
    storage = Awq(scheme, has_zeros=True)

    def find(names: list[str]) -> Coded | None:
        is_kept = [name == "lm_head" or "embed" in name or any(part in name for part in kept) for name in names]
        if any(is_kept) and not all(is_kept):
            raise LoadError(
                f"some of {', '.join(names)} are quantised and some are not; supported: all or none of them"
            )
        return None if all(is_kept) else storage

    return find


class Awq(Coded):
    """See above."""

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
        codes, zeros = (_in_order(unpacked(tensors[kind], 4, dim=1)) for kind in ("qweight", "qzeros"))
        return Part(codes.T.contiguous(), tensors["scales"].T.contiguous(), zeros.T.contiguous())


def _in_order(codes: Tensor) -> Tensor:
    return codes.view(codes.shape[0], -1, 8)[:, :, PLACES].reshape(codes.shape)
