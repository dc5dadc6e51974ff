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

# Of `--quantize-skip`: what is skipped unless something is said, how checkpoints call it, and nothing.
HEAD, HEAD_STORED, NONE = "head", "lm_head", "none"
# What config.json calls it, now and in the first versions of compressed-tensors.
STORED = ("quantization_config", "compression_config")

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
    refused: dict[str, str] = field(default_factory=dict)
    """Tensors that a checkpoint must not have, as patterns, and what they are."""
    skips: tuple[str, ...] = ()
    """Of `--quantize-skip`, the wildcards that have to fit some layer."""


def quantization_of(config: dict[str, Any], wish: str, skipped: str) -> Quantization:
    """`wish` is `--quantize`, `skipped` `--quantize-skip`: wildcards over layers, with commas between."""
    wish = wish or "auto"
    if wish != "auto" and wish not in ROUNDED:
        raise LoadError(f"--quantize {wish}; supported: auto, {', '.join(ROUNDED)}")
    rules = tuple(rule.strip() for rule in skipped.split(",") if rule.strip())
    stored_as = next((name for name in STORED if config.get(name)), None)
    if rules not in ((), (HEAD,)) and (stored_as or wish == "auto"):
        why = "the checkpoint is quantised already" if stored_as else "nothing is rounded"
        raise LoadError(
            f"--quantize-skip {skipped}: {why}; supported: together with --quantize {', '.join(ROUNDED)}, of weights that are floats"
        )
    if stored_as:
        return _of_checkpoint(Fields(config).object(stored_as), wish)
    if wish == "auto":
        return Quantization("unquantised", False, lambda _path, _names: Plain())

    def storage(path: str, names: list[str]) -> Storage:
        return Plain() if any(skips(rule, path, names) for rule in rules) else Rounded(ROUNDED[wish])

    have_to_fit = tuple(rule for rule in rules if rule not in (HEAD, HEAD_STORED, NONE))
    return Quantization(wish, True, storage, skips=have_to_fit)


def skips(rule: str, path: str, names: list[str]) -> bool:
    """Whether a wildcard fits a layer: its path in the model, or what the checkpoint calls any of its weights."""
    # A tied head lies under another name.
    called = [path, *names, *([HEAD_STORED] if path == HEAD else [])]
    return any(fnmatch.fnmatchcase(name, rule) for name in called)


def _of_checkpoint(fields: Fields, wish: str) -> Quantization:
    method = fields.get("quant_method")
    if method is None and "config_groups" in fields:  # as old ones were written
        method = "compressed-tensors"
    if not isinstance(method, str) or method not in METHODS:
        raise LoadError(
            f"the checkpoint is quantised ({method or 'config.json has no `quant_method`'}); supported: {', '.join(METHODS)} with integers of 4 and 8 bits, "
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
                f"rounded again; supported: auto, and int{found.scheme.bits} and int{found.scheme.bits}-a16 where all layers have "
                f"{found.scheme.bits} bits"
            )
        return found.with_scheme(replace(found.scheme, activations=asked.activations))

    return Quantization(
        method,
        True,
        storage,
        ignored=[r".*\.weight_shape"] if method == "compressed-tensors" else [],
        ignored_zeros=[r".*\.bias"] if method == "gptq" else [],
        refused={awq.SCALES: "scaled activations (AWQ)"} if method == "awq" else {},
    )
