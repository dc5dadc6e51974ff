"""Which tensor of the checkpoint goes into which layer: all compared before any is read, then handed over by layer.

After a layer has taken its tensors their pages are given back, so that no weight stands in memory twice for longer than
its layer takes to pack it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pelton.layers.leaf import Leaf, Wanted
from pelton.layers.linear import Linear
from pelton.loading.checkpoint import Checkpoint
from pelton.loading.error import LoadError
from pelton.models.config import DecoderConfig
from pelton.models.encoder_config import EncoderConfig
from pelton.quantization import Quantization, skips

NAMED_MAX = 8  # names in one message


@dataclass(frozen=True, slots=True)
class Holding:
    """A layer, what the checkpoint calls it (or the first of what it is made of), and its tensors' names there."""

    name: str
    leaf: Leaf
    wanted: list[tuple[str, Wanted]]


def holdings(model: nn.Module, names: dict[str, list[str]], quantization: Quantization) -> list[Holding]:
    """Every layer with weights, in the order in which the model runs, told how its weights are stored. `names`: of their tensors."""
    leaves = [(path.removeprefix("trunk."), leaf) for path, leaf in model.named_modules() if isinstance(leaf, Leaf)]
    for path, leaf in leaves:
        if isinstance(leaf, Linear):
            leaf.storage = quantization.storage(_storage_path(path), _parts(path, names))
    _refuse_idle_skips(
        quantization, [(_storage_path(path), _parts(path, names)) for path, leaf in leaves if isinstance(leaf, Linear)]
    )
    return [_holding(leaf, _parts(path, names)) for path, leaf in leaves]


def _storage_path(path: str) -> str:
    """Whatever a head is made of, it is one thing to whoever names layers."""
    return "head" if path.startswith("head.") else path


def _refuse_idle_skips(quantization: Quantization, layers: list[tuple[str, list[str]]]) -> None:
    """Whoever names layers that are not there would have them rounded, and not know it."""
    idle = [rule for rule in quantization.skips if not any(skips(rule, *layer) for layer in layers)]
    if idle:
        paths = some(list(dict.fromkeys(path for path, _ in layers)))
        raise LoadError(
            f"--quantize-skip {','.join(idle)} fits no layer; supported: wildcards over layers ({paths}), or over what the checkpoint "
            "calls their weights; none"
        )


def check_sizes(config: DecoderConfig | EncoderConfig, called: Mapping[str, str], checkpoint: Checkpoint) -> None:
    """Refuses sizes that no tensor of the files has, before anything is built of them: a config.json may say any number.
    `called`: what it calls its fields."""
    stored = checkpoint.tensors
    layers = {found[1] for name in stored if (found := re.search(r"(?:^|\.)(?:layers?|h)\.(\d+)\.", name))}
    if config.layers > len(layers):
        raise LoadError(
            f"`{called.get('num_hidden_layers', 'num_hidden_layers')}` in config.json is {config.layers}; the files in {checkpoint.folder} have {len(layers)}"
        )
    largest = max((side for tensor in stored.values() for side in tensor.shape), default=0)
    for name, size in (
        ("vocab_size", config.vocab),
        ("hidden_size", config.width),
        ("intermediate_size", config.mlp_width),
        ("num_attention_heads head_dim", config.heads * config.head_dim),
        ("num_key_value_heads head_dim", config.kv_heads * config.head_dim),
    ):
        if size > largest:
            fields = "` times `".join(called.get(field, field) for field in name.split())
            raise LoadError(
                f"`{fields}` in config.json is {size}; the largest side of a tensor in {checkpoint.folder} is {largest}"
            )


def compare(found: list[Holding], ignored: Sequence[str], quantization: Quantization, checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint with missing, unexpected or misshaped tensors, and names them. `ignored`: patterns of names that may be there."""
    stored = checkpoint.tensors
    for rule, what in quantization.refused.items():
        refused = next((name for name in stored if re.fullmatch(rule, name)), None)
        if refused is not None:
            raise LoadError(f"{what}, `{refused}`; supported: none")
    wanted = {name: want for holding in found for name, want in holding.wanted}
    ignored = [*ignored, *quantization.ignored]

    def is_idle(name: str) -> bool:
        return any(re.fullmatch(rule, name) for rule in ignored) or (
            any(re.fullmatch(rule, name) for rule in quantization.ignored_zeros)
            and not bool(checkpoint.tensor(name).any())
        )

    troubles = {
        "missing": [name for name, want in wanted.items() if name not in stored and want.absent is None],
        "unexpected": [name for name in stored if name not in wanted and not is_idle(name)],
        "of another shape": [
            f"{name} {list(stored[name].shape)} instead of {list(want.shape)}"
            for name, want in wanted.items()
            if name in stored and stored[name].shape != want.shape
        ],
        "of another format": [
            f"{name} {_dtype(stored[name].dtype)} instead of {' or '.join(map(_dtype, want.dtypes))}"
            for name, want in wanted.items()
            if name in stored and stored[name].dtype not in want.dtypes
        ],
    }
    said = [f"{len(names)} {kind}: {some(names)}" for kind, names in troubles.items() if names]
    if said:
        raise LoadError(f"the tensors in {checkpoint.folder} are not those of its config.json; " + "; ".join(said))


def may_be_one(name: str, other: str, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint that should have one tensor has the same bytes under both names, or lacks one of them."""
    stored = checkpoint.tensors
    if name not in stored or other not in stored:
        return True
    alike = (stored[name].shape, stored[name].dtype) == (stored[other].shape, stored[other].dtype)
    tensors = [checkpoint.tensor(each) for each in (name, other)]
    is_one = alike and torch.equal(tensors[0][:1], tensors[1][:1]) and torch.equal(*tensors)
    for each in (name, other):
        checkpoint.forget(each)
    return is_one


def stored_bytes(found: list[Holding], checkpoint: Checkpoint) -> int:
    """Bytes that `read` goes through. The table of a tied head that is quantised is read twice, and counts twice."""
    stored = checkpoint.tensors
    return sum(stored[name].bytes for holding in found for name, _ in holding.wanted if name in stored)


def needed_bytes(found: list[Holding], dtype: torch.dtype) -> int:
    """Bytes that the layers hold afterwards."""
    return sum(holding.leaf.held_bytes(dtype) for holding in found)


def read(found: list[Holding], checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Iterator[int]:
    """Fills the layers; yields the bytes gone through so far after each."""
    stored, done = checkpoint.tensors, 0
    for holding in found:
        lent = [checkpoint.tensor(name) if name in stored else _absent(want) for name, want in holding.wanted]
        with _said_of(holding.name):
            holding.leaf.take(lent, dtype, device)
        for name in (name for name, _ in holding.wanted if name in stored):
            checkpoint.forget(name)
            done += stored[name].bytes
        yield done


def _absent(want: Wanted) -> Tensor:
    assert want.absent is not None, "compared"
    return torch.full(want.shape, want.absent, dtype=want.dtypes[0])


@contextmanager
def _said_of(name: str) -> Iterator[None]:
    """A layer does not know what it is called; who reads its refusal has to."""
    try:
        yield
    except LoadError as error:
        raise LoadError(f"`{name}`: {error}") from error


def _parts(path: str, names: dict[str, list[str]]) -> list[str]:
    if path in names:
        return names[path]
    number = next(iter(re.findall(r"\d+", path)), "")
    return [name.replace("*", number) for name in names[re.sub(r"\d+", "*", path)]]


def _holding(leaf: Leaf, parts: list[str]) -> Holding:
    with _said_of(parts[0]):
        return Holding(parts[0], leaf, [(f"{parts[want.part]}.{want.kind}", want) for want in leaf.wants()])


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def some(names: list[str]) -> str:
    """The first few of them, and how many more there are."""
    rest = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")
