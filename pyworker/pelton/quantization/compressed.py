"""compressed-tensors, as llm-compressor writes it, with integers of 4 and 8 bits.

pack-quantized   weight_packed int32 [height, width · bits / 32]   codes along the inputs, the lowest bits first
int-quantized    weight        int8  [height, width]               signed; "naive-quantized" is the same
both             weight_scale        [height, groups]
                 weight_zero_point   int8 [height, groups], or int32 [height · bits / 32, groups]; if asymmetric; absent: all 0
                 weight_g_idx  int32 [width]                       with `actorder` "group"; absent, or -1: no order
                 weight_shape                                      not looked at: the config says it too
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pelton_kernels.ops import Scheme
from torch import Tensor

from pelton.layers.storage import Kept
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization.codes import UNORDERED, Coded, Find, Part, alike, is_table, names_in, read_group, unpacked
from pelton.quantization.patterns import matches

FORMATS = ["pack-quantized", "int-quantized", "naive-quantized"]
# Activations that are rounded as the kernels do it: anew in each call. (With groups a row has a scale for each, not one.)
DYNAMIC = {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
ORDERED = ("group", "dynamic", True)  # three words for one thing
ZEROS = {
    4: 0x88888888 - (1 << 32),
    8: 0x80808080 - (1 << 32),
}  # a word of zero points that are 0: codes begin at the least
CLASS = "Linear"  # the class of all layers here; others have classes that no rule of ours meets


def read(fields: Fields) -> Find:
    """Each group of layers has a storage of its own. A layer that several targets fit has that of a name before that of a pattern, and of
    either before that of its class; of patterns the first in the alphabet: so whoever quantised it chose."""
    if fields.object("sparsity_config").get("format") not in (None, "dense"):
        raise LoadError("`sparsity_config` in config.json (compressed-tensors); supported: dense weights")
    if fields.get("kv_cache_scheme"):
        raise LoadError("`kv_cache_scheme` in config.json (compressed-tensors); supported: KV that is not quantised")
    if fields.object("transform_config").get("config_groups"):
        raise LoadError(
            "`transform_config` in config.json (compressed-tensors); supported: activations that are not turned"
        )
    overall = fields.get("format")
    groups = fields.object("config_groups")
    coded: dict[str, Coded] = {}
    for name in groups.names():
        group = groups.object(name)
        storage = _storage(group, group.get("format") or overall)
        coded |= dict.fromkeys(names_in(group, "targets"), storage)
    targets = sorted(coded, key=lambda target: (target == CLASS, target.startswith("re:"), target))
    ignored = names_in(fields, "ignore")

    def one(name: str) -> Coded | None:
        if is_table(name) or any(_fits(rule, name) for rule in ignored):
            return None
        return next((coded[target] for target in targets if _fits(target, name)), None)

    return lambda _path, names: alike(names, one)


def _storage(group: Fields, layout: object) -> Compressed:
    if "weights" not in group:  # of attention's activations, say
        raise LoadError("a group without `weights` in config.json (compressed-tensors); supported: groups with weights")
    weights = group.object("weights")
    kind, bits = weights.get("type") or "int", weights.get("num_bits")
    if kind != "int" or bits not in (4, 8) or layout not in FORMATS:
        raise LoadError(
            f"the checkpoint is quantised (compressed-tensors, {layout}: {kind} of {bits} bits); supported: "
            f"{', '.join(FORMATS)} with integers of 4 and 8 bits"
        )
    strategy = weights.word("strategy", ["group", "channel"], "none")
    size = read_group(weights.get("group_size")) if strategy == "group" else 0
    if group.get("output_activations"):
        raise LoadError("`output_activations` in config.json (compressed-tensors); supported: none")
    inputs = group.get("input_activations")
    if inputs and any(group.object("input_activations").get(name) != value for name, value in DYNAMIC.items()):
        raise LoadError(
            f"`input_activations` in config.json (compressed-tensors) is {inputs}; supported: none, or at least {DYNAMIC}"
        )
    scheme = Scheme(4 if bits == 4 else 8, size, "int8" if inputs else "float")
    return Compressed(
        scheme, not weights.flag("symmetric", True), layout == FORMATS[0], weights.get("actorder") in ORDERED
    )


@dataclass(frozen=True)
class Compressed(Coded):
    """See above."""

    is_packed: bool
    has_order: bool

    def keeps(self, height: int, width: int) -> list[Kept]:
        groups = -(-width // self.scheme.group) if self.scheme.group else 1
        per_word = 32 // self.scheme.bits
        if self.is_packed and width % per_word:
            raise LoadError(f"a packed weight is {width} wide; supported (compressed-tensors): multiples of {per_word}")
        packed = Kept("weight_packed", (height, width // per_word), (torch.int32,))
        zeros = Kept("weight_zero_point", (height, groups), (torch.int8,), absent=0)
        if self.is_packed:
            words = -(-height // per_word), groups
            zeros = Kept("weight_zero_point", words, (torch.int32,), absent=ZEROS[self.scheme.bits])
        return [
            packed if self.is_packed else Kept("weight", (height, width), (torch.int8,)),
            Kept("weight_scale", (height, groups)),
            *([zeros] if self.has_zeros else []),
            *([Kept("weight_g_idx", (width,), (torch.int32,), absent=UNORDERED)] if self.has_order else []),
        ]

    def part(self, tensors: dict[str, Tensor]) -> Part:
        bits, scales = self.scheme.bits, tensors["weight_scale"]
        zeros = tensors.get("weight_zero_point")
        if self.is_packed:
            codes = unpacked(tensors["weight_packed"], bits, dim=1)
            zeros = None if zeros is None else unpacked(zeros, bits, dim=0)[: scales.shape[0]].contiguous()
        else:
            codes = self._unsigned(tensors["weight"])
            zeros = None if zeros is None else self._unsigned(zeros)
        return Part(codes, scales, zeros, tensors.get("weight_g_idx"))

    def _unsigned(self, signed: Tensor) -> Tensor:
        return signed.view(torch.uint8) + self.scheme.zero  # which wraps around, as it should


def _fits(rule: str, name: str) -> bool:
    """A class, a name, or a regular expression behind `re:`."""
    return matches(rule[3:], name) if rule.startswith("re:") else rule in (CLASS, name)
