"""Folders of sentence-transformers: `modules.json` names what follows the model, each module with a folder of its own."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton_kernels.ops import Function, Pooling

from pelton.loading.checkpoint import read_json
from pelton.loading.config import Fields
from pelton.loading.error import LoadError

log = logging.getLogger("pelton.worker")

MODULES, TOKENIZER_CONFIG = "modules.json", "tokenizer_config.json"
OWN_CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# By the last word of torch's name of it; None: nothing is done.
ACTIVATIONS: dict[str, Function | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu_erf",
    "SiLU": "silu",
}
# What config.json of a pooling calls those that are served.
MODES: dict[str, Pooling] = {"cls_token": "first", "lasttoken": "last", "mean_tokens": "mean"}
SHORT: dict[str, Pooling] = {"cls": "first", "lasttoken": "last", "mean": "mean"}


@dataclass(frozen=True, slots=True)
class Dense:
    """A layer behind the pooling, in the folder of this name."""

    folder: str
    width: int
    height: int
    has_bias: bool
    activation: Function | None


@dataclass(frozen=True, slots=True)
class Sentence:
    """What follows the model."""

    pooling: Pooling
    dense: tuple[Dense, ...]
    normalizes: bool
    longest: int | None
    """Tokens of a text, special ones included; None: as many as the model takes."""


def sentence_of(folder: Path) -> Sentence | None:
    """None: the folder is none of sentence-transformers."""
    if not (folder / MODULES).exists():
        return None
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    dense = kinds.count("Dense")
    ends = {True: ["Normalize"], False: []}
    allowed = [["Transformer", "Pooling", *["Dense"] * dense, *end] for end in ends.values()]
    if kinds not in allowed:
        raise LoadError(
            f"`{MODULES}` is {', '.join(kinds) or 'empty'}; supported: Transformer, Pooling, then Dense any number of times, "
            "then Normalize or not"
        )
    if prompt := _default_prompt(folder):
        log.warning("%s: texts are taken as they come; the model's authors begin them with %r", OWN_CONFIG, prompt)
    if modules[0][1]:
        raise LoadError(f"the Transformer in `{MODULES}` is in `{modules[0][1]}`; supported: the folder itself")
    return Sentence(
        pooling=_pooling(folder / modules[1][1]),
        dense=tuple(_dense(folder, path) for kind, path in modules if kind == "Dense"),
        normalizes=kinds[-1] == "Normalize",
        longest=_longest(folder),
    )


def draws_for_scores(folder: Path) -> bool:
    """Whether its scores are made of the logits of two tokens (rerankers as Qwen3's): such a model draws tokens."""
    return (folder / MODULES).exists() and [kind for kind, _ in _modules(folder)][1:2] == ["LogitScore"]


def cross_encoder_activation(folder: Path, config: dict[str, Any]) -> str | None:
    """What follows the classes, by torch's name, where the library wrote it down: in a file of its own since 5.4, before in config.json."""
    own = config.get("sentence_transformers")
    places = [
        own if isinstance(own, dict) else {},
        {"activation_fn": config.get("sbert_ce_default_activation_function")},
    ]
    if (folder / OWN_CONFIG).exists():
        places.insert(0, read_json(folder / OWN_CONFIG))
    said = (place.get("activation_fn") for place in places)
    return next((name for name in said if isinstance(name, str)), None)


def _default_prompt(folder: Path) -> str:
    """What its own library puts before texts of which nothing else is said."""
    said = read_json(folder / OWN_CONFIG) if (folder / OWN_CONFIG).exists() else {}
    prompts, name = said.get("prompts"), said.get("default_prompt_name")
    return str(prompts.get(name) or "") if isinstance(prompts, dict) and isinstance(name, str) else ""


def _longest(folder: Path) -> int | None:
    """What the Transformer's own config says, the first of its names that there is."""
    name = next((name for name in TRANSFORMER_CONFIGS if (folder / name).exists()), None)
    if name is None:
        return None
    config = read_json(folder / name)
    if config.get("do_lower_case") and not _lowers(folder):
        raise LoadError(
            f"`do_lower_case` in {name} is true; supported: false, or a tokenizer that lowers letters itself"
        )
    longest = config.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise LoadError(f"`max_seq_length` in {name} is {longest!r}; supported: a whole number from 1, or null")
    return longest


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer makes small letters of large ones. A `vocab.txt` alone is BERT's, which does unless its config says no."""
    if (folder / "tokenizer.json").exists():
        steps = json.dumps(read_json(folder / "tokenizer.json").get("normalizer"))
        return '"lowercase": true' in steps or '"type": "Lowercase"' in steps
    said = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).exists() else {}
    return (folder / "vocab.txt").exists() and said.get("do_lower_case", True) is True


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each, in order."""
    listed = read_json(folder / MODULES, list)
    found = []
    for module in listed:
        kind, path = (module.get(name) for name in ("type", "path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or (path and Path(path).name != path):
            raise LoadError(f"`{MODULES}` has {module!r}; supported: objects with a `type` and the `path` of a folder")
        found.append((kind.rpartition(".")[2], path))
    return found


def _pooling(folder: Path) -> Pooling:
    config = read_json(folder / "config.json")
    if config.get("include_prompt") is False:
        raise LoadError(f"`include_prompt` in {folder}/config.json is false; supported: true")
    short = config.get("pooling_mode")
    if isinstance(short, str):
        if short not in SHORT:
            raise LoadError(f"`pooling_mode` in {folder}/config.json is {short}; supported: {', '.join(SHORT)}")
        return SHORT[short]
    modes = [
        name.removeprefix("pooling_mode_")
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    if len(modes) != 1 or modes[0] not in MODES:
        raise LoadError(
            f"{folder}/config.json pools by {', '.join(modes) or 'nothing'}; supported: one of {', '.join(MODES)}"
        )
    return MODES[modes[0]]


def _dense(folder: Path, path: str) -> Dense:
    config: dict[str, Any] = read_json(folder / path / "config.json")
    fields = Fields(config, f"{path}/")
    name = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise LoadError(f"`{path}/activation_function` is {name}; supported: {', '.join(ACTIVATIONS)}")
    return Dense(
        path,
        fields.count("in_features"),
        fields.count("out_features"),
        fields.flag("bias", default=True),
        ACTIVATIONS[name],
    )
