"""GPTQ (arXiv:2210.17323), as AutoGPTQ and GPTQModel write it.

qweight  int32 [width / 8, height]     eight codes along the inputs (four of 8 bits), the lowest bits first
qzeros   int32 [groups, height / 8]    zero points less one in the format "gptq", as they are in "gptq_v2"
scales         [groups, height]
g_idx    int32 [width]                 each input's group; out of order with `desc_act`
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pelton_kernels.ops import Scheme
from torch import Tensor

from pelton.layers.storage import Kept
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.codes import Coded, Part, read_scheme, unpacked

FORMATS = {"gptq": 1, "gptq_v2": 0}


def read(fields: Fields) -> Callable[[list[str]], Coded | None]:
    """The storage of all layers but the head."""
    if fields.get("dynamic"):
        raise LoadError(
            "`quantization_config.dynamic` in config.json (GPTQ by layer); supported: one scheme for all layers"
        )
    scheme = read_scheme(fields, "bits")
    name = fields.word("checkpoint_format", list(FORMATS), "gptq")
    storage = Gptq(scheme, zero_offset=FORMATS[name])
    has_head = fields.flag("lm_head")
    is_kept = {"lm_head": not has_head}
    return lambda names: None if is_kept.get(names[0]) or "embed" in names[0] else storage


class Gptq(Coded):
    """See above."""

    def __init__(self, scheme: Scheme, zero_offset: int) -> None:
        super().__init__(scheme, has_zeros=True)
        self.zero_offset = zero_offset

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
            Kept("g_idx", (width,), (torch.int32,)),
        ]

    def part(self, tensors: dict[str, Tensor]) -> Part:
        bits = self.scheme.bits
        codes = unpacked(tensors["qweight"], bits, dim=0).T.contiguous()
        zeros = unpacked(tensors["qzeros"], bits, dim=1) + self.zero_offset
        return Part(codes, tensors["scales"].T.contiguous(), zeros.T.contiguous(), tensors["g_idx"])
