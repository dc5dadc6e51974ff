"""What a checkpoint is for: text, or one vector for each request; and of those, which."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from pelton_kernels.ops import Pooling as How

from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.loading.pooling import Pooling
from pelton.loading.sentence import Sentence, cross_encoder_activation, draws_for_scores, sentence_of
from pelton.loading.separator import separator_of
from pelton.loading.wish import Wish
from pelton.models import ARCHITECTURES, named
from pelton.models.config import DecoderConfig
from pelton.models.encoder_config import EncoderConfig
from pelton.models.encoder_family import ENCODERS, EncoderFamily
from pelton.models.family import Family
from pelton.models.pooled import HeadLayer, Plan, width_of

log = logging.getLogger("pelton.worker")

Task = Literal["generate", "embed", "classify"]
TASKS: tuple[Task, ...] = ("generate", "embed", "classify")
POOLINGS: dict[str, How] = {"cls": "first", "last": "last", "mean": "mean"}
CLASSES_MAX = 1 << 16  # the widest vector that a frame carries
ENCODER_ENDS = ("Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification")
CLASSIFIES = "ForSequenceClassification"
# Whole decoders, by the first word of what they are called without the head that draws. Gemma 3 has a word of its own for text alone.
DECODERS = {
    **{re.sub("(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", "", name): name for name in ARCHITECTURES},
    "Gemma3": "Gemma3ForConditionalGeneration",
    "Gemma3Text": "Gemma3ForCausalLM",
}


@dataclass(frozen=True, slots=True)
class Vectors:
    """A checkpoint whose requests become vectors."""

    family: EncoderFamily | Family
    config: EncoderConfig | DecoderConfig
    plan: Plan
    dense: tuple[str, ...]
    """Folders of layers behind the pooling, whose tensors are named `FOLDER.` and as they are there."""


def vectors_of(wish: Wish, config: dict[str, Any]) -> Vectors | None:
    """None: it draws tokens. Refuses a task that the checkpoint is not for."""
    asked = wish.task or "auto"
    if asked not in ("auto", *TASKS):
        raise LoadError(f"--task {asked}; supported: auto, {', '.join(TASKS)}")
    if wish.pooling and wish.pooling not in POOLINGS:
        raise LoadError(f"--pooling {wish.pooling}; supported: {', '.join(POOLINGS)}")
    name = (named(config).split(", ") or [""])[0]
    encoder, decoder = _encoder(name), _decoder(name)
    draws = asked == "generate" or (asked == "auto" and name in ARCHITECTURES and draws_for_scores(wish.folder))
    sentence = None if name.endswith(CLASSIFIES) or draws else sentence_of(wish.folder)
    gives_vectors = asked in ("embed", "classify") or name.endswith(CLASSIFIES)
    if encoder is None and decoder is None and (gives_vectors or (asked == "auto" and sentence is not None)):
        heads = ", ".join(sorted({*ENCODERS, *DECODERS}))
        raise LoadError(
            f"`architectures` in config.json: {named(config)}; supported for vectors and classes: models of {heads}; any other that is a "
            "decoder with --task generate"
        )
    possible = _possible(name, encoder, decoder)
    usual: Task = "embed" if sentence is not None and "embed" in possible else possible[0]
    task = usual if asked == "auto" else cast(Task, asked)
    if task not in possible:
        raise LoadError(f"--task {task}: {named(config)} cannot; supported for it: {', '.join(possible)}")
    if wish.pooling and task != "embed":
        raise LoadError(f"--pooling {wish.pooling}: {named(config)} is there to {task}; supported: with --task embed")
    if task == "generate":
        return None
    if wish.model_backend == "transformers":
        raise LoadError("--model-backend transformers gives no vectors; supported for them: auto, native")
    if encoder is not None:
        sizes = encoder.read_config(Fields(config), separator_of(wish.folder, config))
        if task == "classify":
            return _classifier(wish.folder, encoder, sizes, config)
        # Each text stands alone: a separator within one ("TITLE [SEP] ABSTRACT") parts no pair.
        return _embedder(wish, encoder, replace(sizes, separator=None), sentence, usual="mean", is_causal=False)
    assert decoder is not None, "it would not be possible"
    read = _seeing(decoder.read_config(Fields(config, called=decoder.fields)).within(wish.max_model_len), config)
    if task == "classify":
        classes, report = _classes(wish.folder, config, is_bidirectional=not read.is_causal)
        return Vectors(decoder, read, Plan("last", (HeadLayer("out", classes, False),), report), ())
    return _embedder(wish, decoder, read, sentence, usual="last", is_causal=read.is_causal)


def _seeing(read: DecoderConfig, config: dict[str, Any]) -> DecoderConfig:
    """What each token of a decoder's text sees: what is before it, or all of it, as models are that were trained on for vectors."""
    own = config.get("auto_map")
    if (
        isinstance(own, dict)
        and {"AutoModel", "AutoModelForSequenceClassification"} & own.keys()
        and "is_causal" not in config
    ):
        raise LoadError(
            "the checkpoint has code of its own for vectors (`auto_map` in config.json), which is not run, and may let each token see the whole "
            "text; say in config.json whether it does: `is_causal` false or true"
        )
    is_causal = Fields(config).flag("is_causal", default=True)
    if not is_causal and (read.has_slopes or any(read.windows)):
        raise LoadError(
            "`is_causal` in config.json is false; supported for models without windows and ALiBi, and for others true"
        )
    return replace(read, is_causal=is_causal)


def _encoder(name: str) -> EncoderFamily | None:
    return next((family for first, family in ENCODERS.items() if name in [first + end for end in ENCODER_ENDS]), None)


def _decoder(name: str) -> Family | None:
    """By the name of the whole model, of the model without head, or of that with a head for classes."""
    headless = {first + end: whole for first, whole in DECODERS.items() for end in ("Model", CLASSIFIES)}
    return ARCHITECTURES.get(headless.get(name, name))


def _possible(name: str, encoder: EncoderFamily | None, decoder: Family | None) -> list[Task]:
    """What such a checkpoint can be for, the usual first."""
    if encoder is None and decoder is None:
        return ["generate"]  # by way of transformers, if at all
    if name.endswith(CLASSIFIES):
        return ["classify"]
    return ["embed"] if encoder is not None or name not in ARCHITECTURES else ["generate", "embed"]


def _embedder(
    wish: Wish,
    family: EncoderFamily | Family,
    config: EncoderConfig | DecoderConfig,
    sentence: Sentence | None,
    usual: How,
    is_causal: bool,
) -> Vectors:
    how = POOLINGS.get(wish.pooling) or (usual if sentence is None else sentence.pooling)
    longest = sentence.longest if sentence is not None and not wish.max_model_len else None
    if longest is not None and longest < config.positions:
        log.info(
            "texts have %d tokens at most, as the checkpoint says (`max_seq_length`); --max-model-len %d takes more",
            longest,
            config.positions,
        )
        config = config.for_texts_of(longest)
    dense = () if sentence is None else sentence.dense
    width = config.width
    for layer in dense:
        if layer.width != width:
            raise LoadError(f"`in_features` in {layer.folder}/config.json is {layer.width}; supported: {width}")
        width = layer.height
    layers = tuple(HeadLayer(layer.folder, layer.height, layer.has_bias, layer.activation) for layer in dense)
    report = Pooling(
        width=width_of(config.width, layers),
        kind="embedding",
        # What stands alone says nothing about its length; whoever compares vectors by their cosine loses nothing.
        normalize=True if sentence is None else sentence.normalizes,
        # Of a decoder whose first token or mean is wanted, a part of the prompt would not do either.
        is_bidirectional=not is_causal or how != "last",
    )
    return Vectors(family, config, Plan(how, layers, report), tuple(layer.folder for layer in dense))


def _classifier(folder: Path, family: EncoderFamily, sizes: EncoderConfig, config: dict[str, Any]) -> Vectors:
    classes, report = _classes(folder, config, is_bidirectional=True)
    how, layers = family.classifier(Fields(config), sizes, classes)
    return Vectors(family, sizes, Plan(how, layers, report), ())


def _classes(folder: Path, config: dict[str, Any], is_bidirectional: bool) -> tuple[int, Pooling]:
    labels = _labels(config)
    return len(labels), Pooling(
        width=len(labels),
        kind="classes",
        normalize=False,
        is_bidirectional=is_bidirectional,
        labels=labels,
        activation=_activation(folder, config, len(labels)),
    )


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    """By index: `id2label`, or as transformers calls them, which has two where nothing is said."""
    named_classes = config.get("id2label")
    if named_classes is None:
        count = Fields(config).count("num_labels", 2)
        if count > CLASSES_MAX:
            raise LoadError(f"`num_labels` in config.json is {count}; supported: up to {CLASSES_MAX}")
        return tuple(f"LABEL_{number}" for number in range(count))
    keys = [str(number) for number in range(len(named_classes))] if isinstance(named_classes, dict) else []
    if not 1 <= len(keys) <= CLASSES_MAX or set(named_classes) != set(keys):
        raise LoadError(
            f"`id2label` in config.json is no object with a name for each number from 0, at most {CLASSES_MAX}"
        )
    return tuple(str(named_classes[key]) for key in keys)


def _activation(folder: Path, config: dict[str, Any], classes: int) -> str:
    """What sentence-transformers wrote down for a cross-encoder, then what the problem is, then what is usual."""
    said = cross_encoder_activation(folder, config)
    if said is not None:
        found = {"Identity": "none", "Sigmoid": "sigmoid"}.get(said.rpartition(".")[2])
        if found is None:
            raise LoadError(f"the activation of classes in config.json is {said}; supported: Identity, Sigmoid")
        return found
    problems = {
        "regression": "none", "multi_label_classification": "sigmoid", "single_label_classification": "softmax",
    }  # fmt: skip
    problem = config.get("problem_type")
    if problem is not None and problem not in problems:
        raise LoadError(f"`problem_type` in config.json is {problem}; supported: {', '.join(problems)}")
    return problems[problem] if problem is not None else ("sigmoid" if classes == 1 else "softmax")
