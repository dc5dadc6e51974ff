"""Which class of transformers a config.json means, and whether its models can run here: what cannot is refused by name."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.borrowed.attention import NAME, attention
from pelton.loading.error import LoadError
from pelton.models import named
from pelton.models.config import LAYERS_MAX

log = logging.getLogger("pelton.worker")

LAYERS = ("full_attention", "sliding_attention")  # of `layer_types`
# Turns keys by how long the step's longest request is. So does "dynamic", but behind `max_position_embeddings` alone, where no request goes.
UNSTEADY = "longrope"
# Fields that let tokens see those behind them, and what says that they do not: "vision" is of images alone.
CAUSAL = {
    "use_bidirectional_attention": (None, False, "vision"),
    "is_causal": (None, True),
    "prefix_lm": (None, False),
}
HEAD = "AutoModelForCausalLM"
PARTS = {"images": "vision_config", "sound": "audio_config"}  # of configs, for what is no text


@dataclass(frozen=True, slots=True)
class Architecture:
    """A config of transformers, and the class of its model."""

    config: Any
    model: Any
    version: str
    """Of transformers."""
    code: str = ""
    """Names the folder's own code, if that defines the model."""

    @property
    def name(self) -> str:
        """As it stands in `architectures`."""
        return str(self.model.__name__)

    @property
    def text(self) -> Any:
        """The config of the language model, which may stand within another."""
        return self.config.get_text_config(decoder=True)


def architecture_of(folder: Path, config: dict[str, Any], may_run_code: bool) -> Architecture:
    """`may_run_code`: whether Python code in the folder may define the model."""
    try:
        import transformers
        from transformers.utils import logging as voice
    except ImportError as error:
        raise LoadError(
            f"{named(config)}: Pelton has no such model of its own, and the package `transformers`, which may have it, is not "
            f"installed where the worker runs ({error}): pip install 'pelton[transformers]'"
        ) from error
    transformers.AttentionInterface.register(NAME, attention)
    voice.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not (may_run_code and config.get("auto_map")):
        return _checked(config, None, None)
    try:
        return _checked(config, *_of_folder(folder, config), _digest_of_code(folder))
    except LoadError as refusal:
        # Many models had code of their own before transformers had them, and it was written for a transformers of its day.
        try:
            theirs = _checked(config, None, None)
        except LoadError:
            raise refusal from None
        log.warning("transformers' own %s runs instead of the folder's code: %s", theirs.name, refusal)
        return theirs


def _checked(config: dict[str, Any], make_config: Any, model: Any, code: str = "") -> Architecture:
    """Of these classes, or of transformers' own for this config."""
    import transformers

    try:
        found = (make_config or _config_class(config)).from_dict(config)
    except LoadError:
        raise
    except Exception as error:  # whatever its own checks say
        raise LoadError(f"config.json is none that transformers {transformers.__version__} takes: {error}") from error
    architecture = Architecture(found, model or _model_class(found, config), transformers.__version__, code)
    _refuse_what_cannot_run(architecture)
    return architecture


def _config_class(config: dict[str, Any]) -> Any:
    import transformers

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"`model_type` in config.json is {kind!r}, which neither Pelton nor transformers {transformers.__version__} knows"
        )
    return transformers.CONFIG_MAPPING[kind]


def _model_class(config: Any, stated: dict[str, Any]) -> Any:
    import transformers

    version, given = transformers.__version__, named(stated)
    try:
        model: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        others = [what for what, part in PARTS.items() if getattr(config, part, None) is not None]
        why = (
            f"it takes {' and '.join(others)}; supported: decoders of text"
            if others
            else "supported: its causal language models"
        )
        raise LoadError(f"{given} is no causal language model of transformers {version}: {why}") from None
    if model.__name__ not in given.split(", "):
        raise LoadError(f"`architectures` in config.json: {given}; supported for this `model_type`: {model.__name__}")
    return model


def _of_folder(folder: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    """The classes that `auto_map` names, from files of the folder."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    auto_map = config["auto_map"]
    if not isinstance(auto_map, dict) or HEAD not in auto_map:
        raise LoadError(f"`auto_map` in config.json names no {HEAD}: {json.dumps(auto_map)}")
    found: list[Any] = []
    for part in ("AutoConfig", HEAD):
        reference = auto_map.get(part)
        if reference is None:
            found.append(None)
            continue
        # "ORG/NAME--file.Class" is code of another repository, and "sub/file.Class" none of the folder's own files.
        file, _, name = str(reference).rpartition(".")
        if not (file.isidentifier() and name.isidentifier() and (folder / f"{file}.py").is_file()):
            raise LoadError(
                f"`auto_map.{part}` in config.json is {reference!r}; supported: FILE.CLASS of a file FILE.py in {folder} "
                "(Pelton downloads no code)"
            )
        try:
            found.append(get_class_from_dynamic_module(reference, str(folder), local_files_only=True))
        except Exception as error:
            raise LoadError(f"the model's own code in {folder / file}.py cannot be used: {error}") from error
    return found[0], found[1]


def _digest_of_code(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(hashlib.sha256(path.name.encode(errors="surrogateescape")).digest())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _refuse_what_cannot_run(architecture: Architecture) -> None:
    model, text, name = architecture.model, architecture.text, architecture.name
    lacks = f"{name} of transformers {architecture.version} cannot run on Pelton's KV"
    if name.endswith("ForConditionalGeneration") or getattr(text, "is_encoder_decoder", False):
        raise LoadError(f"{lacks}: it takes more than text, or has an encoder; supported: decoders of text")
    layers = set(getattr(text, "layer_types", None) or ())
    # A class may be stateful for some of its checkpoints alone: Granite 4.0's without Mamba.
    if getattr(model, "_is_stateful", False) and not (layers and layers.issubset(LAYERS)):
        raise LoadError(f"{lacks}: it keeps a recurrent state; supported: layers that keep keys and values alone")
    if not model.is_backend_compatible():
        raise LoadError(f"{lacks}: its attention does not go through transformers' attention interface")
    if kinds := layers.difference(LAYERS):
        raise LoadError(
            f"{lacks}: `layer_types` in config.json has {', '.join(sorted(kinds))}; supported: {', '.join(LAYERS)}"
        )
    if not 0 < text.num_hidden_layers <= LAYERS_MAX:  # each would be built before its weights are missed
        raise LoadError(f"`num_hidden_layers` in config.json is {text.num_hidden_layers}; supported: 1 to {LAYERS_MAX}")
    for field, causal in CAUSAL.items():
        if (said := getattr(text, field, None)) not in causal:
            raise LoadError(f"{lacks}: `{field}` in config.json is {said!r}; supported: causal attention")
    if UNSTEADY in _rope_kinds(getattr(text, "rope_parameters", None)):
        raise LoadError(
            f"{lacks}: `rope_type` in config.json is {UNSTEADY}, whose angles depend on the longest request of the step; "
            "supported: all others"
        )


def _rope_kinds(rope: Any) -> set[str]:
    """Of all layers: where they differ there is an object for each kind of layer."""
    if not isinstance(rope, dict):
        return set()
    within = set[str]().union(*(_rope_kinds(part) for part in rope.values()))
    return within | {str(rope[key]) for key in ("rope_type", "type") if isinstance(rope.get(key), str)}
