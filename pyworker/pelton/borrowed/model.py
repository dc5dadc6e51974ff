"""A model of transformers as the worker runs it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pelton.borrowed.architecture import Architecture
from pelton.borrowed.attention import NAME, Ask, Heard, Paged, attending
from pelton.borrowed.config import BorrowedConfig
from pelton.loading.error import LoadError
from pelton.models.model import LanguageModel
from pelton.step import Embeds, Step

HEARD_TOKENS = 5
QUIET = "pelton_quiet"


class Borrowed(LanguageModel):
    """All rows of a step are one request to it, whose positions begin anew: what tells them apart is attention alone."""

    config: BorrowedConfig

    def __init__(self, config: BorrowedConfig, causal: nn.Module) -> None:
        super().__init__()
        self.config = config
        keep_angles(causal)
        self.causal = causal
        self.embed_width = 0  # until it is tried whether the model takes what is given
        self._layers = config.layers

    def logits(self, step: Step, drawn_at: Tensor) -> Tensor:  # [draws, vocab] float32
        paged = Paged(self._layers, step)
        with attending(paged):
            out = run(self.causal, step.ids, step.positions, drawn_at, step.embeds)
        assert paged.calls == len(self._layers), "a step calls attention as often as the model did when it was heard"
        return out.float().contiguous()


def run(causal: Any, ids: Tensor, positions: Tensor, drawn_at: Tensor, embeds: Embeds | None = None) -> Tensor:
    """Logits after some of the tokens: [draws, vocab]."""
    if embeds is None:
        tokens = {"input_ids": ids[None].long()}
    else:
        all_embeds = causal.get_input_embeddings()(ids.long())
        tokens = {"inputs_embeds": all_embeds.index_copy(0, embeds.at, embeds.values.to(all_embeds.dtype))[None]}
    out = causal(**tokens, position_ids=positions[None].long(), use_cache=False, logits_to_keep=drawn_at.long())
    logits: Tensor = out.logits[0]
    return logits


def bare(architecture: Architecture, dtype: torch.dtype) -> nn.Module:
    """The model without weights, which takes no memory. For `hear` alone: its experts say nothing."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    taken = inspect.signature(architecture.model.forward).parameters
    for name in ("position_ids", "logits_to_keep"):
        if name not in taken:
            raise LoadError(f"{architecture.name} cannot run on Pelton's KV: its `forward` takes no `{name}`")
    # Experts are chosen by values, which a model without weights has not.
    ALL_EXPERTS_FUNCTIONS.register(QUIET, lambda _experts, x, *_chosen, **_others: torch.zeros_like(x))
    config = copy.deepcopy(architecture.config)
    try:
        with torch.device("meta"):
            made: nn.Module = architecture.model._from_config(
                config, attn_implementation=NAME, experts_implementation=QUIET, dtype=dtype
            )
    except Exception as error:  # whatever its own code says to values that it cannot use
        raise LoadError(
            f"{architecture.name} cannot be made of its config.json: {type(error).__name__}: {error}"
        ) from error
    keep_angles(made)
    return made.eval()


def keep_angles(model: nn.Module) -> None:
    """Has "dynamic" ropes keep their first angles, which are those of every request within the context, instead of looking at each step's
    positions, which a model without weights has not."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            setattr(module, "rope_type", "steady")  # noqa: B010 -- what transformers looks at; and no kind that it knows


def hear(architecture: Architecture, model: nn.Module) -> tuple[list[Ask], int]:
    """What each layer asks of attention, and how many logits there are, from a run of `bare`."""
    heard = Heard()
    tokens = torch.arange(HEARD_TOKENS, device="meta")
    try:
        with attending(heard):
            vocab = run(model, tokens, tokens, tokens[-1:]).shape[1]
    except LoadError as error:
        raise LoadError(f"{architecture.name} cannot run on Pelton's KV: {error}") from error
    except Exception as error:
        name = f"{architecture.name} of transformers {architecture.version}"
        if "meta" not in str(error):  # the device of what has no values
            raise LoadError(f"{name} cannot be tried without weights: {type(error).__name__}: {error}") from error
        said = str(error).partition(". ")[0]
        raise LoadError(
            f"{name} cannot run on Pelton's KV: what its layers ask of attention is found out without weights, and its code needs values there "
            f"({said}); supported: layers that run on shapes alone, with experts behind transformers' interface for them"
        ) from error
    layers = architecture.text.num_hidden_layers
    if len(heard.asks) < layers:
        raise LoadError(
            f"{architecture.name} cannot run on Pelton's KV: {len(heard.asks)} of its {layers} layers ask for attention through "
            "transformers' interface; supported: all of them"
        )
    _refuse_windows_that_only_a_mask_would_know(architecture, heard.asks)
    return heard.asks, vocab


def _refuse_windows_that_only_a_mask_would_know(architecture: Architecture, asks: Sequence[Ask]) -> None:
    """A layer's window stands in its call; transformers says it to the mask, too, and some models might say it there alone."""
    text = architecture.text
    stated = getattr(text, "layer_types", None)
    has = [ask.window is not None for ask in asks]
    if stated is not None and len(stated) == len(asks):
        fits = has == [kind == "sliding_attention" for kind in stated]
    else:
        fits = any(has) or stated is not None or getattr(text, "sliding_window", None) is None
    if not fits:
        raise LoadError(
            f"{architecture.name} cannot run on Pelton's KV: which layers have a window is another thing in config.json than in what they "
            "ask of attention"
        )
