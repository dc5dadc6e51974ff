"""From config.json and the wish to the storage of each layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pelton_kernels.ops import Scheme

from pelton.layers.storage import Plain, Rounded, Storage
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.quantization import awq, compressed, gptq
from pelton.quantization.codes import Find

# What `--quantize` rounds to. Groups of 64 with scales of 32 bits are 4.5 bits a weight.
ROUNDED = {
    "int8": Scheme(8, 0, "int8"),
    "int8-a16": Scheme(8, 0, "float"),
    "int4": Scheme(4, 64, "int8"),
    "int4-a16": Scheme(4, 64, "float"),
}

# By `quant_method`.
METHODS: dict[str, Callable[[Fields], Find]] = {
    "gptq": gptq.read,
    "awq": awq.read,
    "compressed-tensors": compressed.read,
}


@dataclass(frozen=True)
class Quantization:
    """What is quantised. `ignored`: tensors of the checkpoint that nobody wants."""

    name: str
    is_quantised: bool
    storage: Callable[[str, list[str]], Storage]
    """Of the layer at a path of the model, with these names in the checkpoint."""
    ignored: list[str] = field(default_factory=list)
    ignored_zeros: list[str] = field(default_factory=list)
    """Those that nobody wants as long as they are 0: AutoGPTQ gave all its layers biases (its issue 555)."""


def quantization_of(config: dict[str, Any], wish: str, skipped: str) -> Quantization:
    """`wish` is `--quantize`, `skipped` `--quantize-skip`: wildcards over paths in the model, with commas between."""
    wish = wish or "auto"
    if wish != "auto" and wish not in ROUNDED:
        raise LoadError(f"--quantize {wish}; supported: auto, {', '.join(ROUNDED)}")
    if config.get("quantization_config"):
        return _of_checkpoint(Fields(config).object("quantization_config"), wish)
    if wish == "auto":
        return Quantization("unquantised", False, lambda _path, _names: Plain())
    rules = [rule.strip() for rule in skipped.split(",") if rule.strip()]

    def storage(path: str, _names: list[str]) -> Storage:
        is_skipped = any(fnmatch.fnmatchcase(path, rule) for rule in rules)
        return Plain() if is_skipped else Rounded(ROUNDED[wish])

    return Quantization(wish, True, storage)


def _of_checkpoint(fields: Fields, wish: str) -> Quantization:
    method = fields.get("quant_method")
    if method not in METHODS:
        raise LoadError(
            f"the checkpoint is quantised ({method}); supported: {', '.join(METHODS)} with integers of 4 and 8 bits, "
            "and bfloat16, float16 and float32 weights, which --quantize rounds when they are loaded"
        )
    find = METHODS[method](fields)

    def storage(path: str, names: list[str]) -> Storage:
        found = find(path, names)
        if found is None:
            return Plain()
        if wish == "auto":
            return found
        asked = ROUNDED[wish]
        if asked.bits != found.scheme.bits:
            raise LoadError(
                f"--quantize {wish}: the checkpoint is quantised ({method}) with {found.scheme.bits} bits, and codes are not "
                f"rounded again; supported: auto, int{found.scheme.bits}, int{found.scheme.bits}-a16"
            )
        return found.with_scheme(replace(found.scheme, activations=asked.activations))

    shapes = [r".*\.weight_shape"] if method == "compressed-tensors" else []
    return Quantization(str(method), True, storage, shapes, [r".*\.bias"] if method == "gptq" else [])
