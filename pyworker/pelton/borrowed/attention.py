"""The attention that transformers' models call by name, `pelton`: keys and values go to the step's blocks.

What a layer asks for stands in the call: heads, scale, window, cap, sinks. A model is run once without weights to hear what each of
its calls asks (`heard`), and from then on every step must ask the same in the same order (`Paged`): the n-th call of a step is the
n-th layer of the KV, whatever the model calls its layers, and one that runs the same module twice has KV for both.

Never here: masks. A request's tokens see those before them, or a window; what asks for anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.kv import DTYPES, Place
from pelton.loading.error import LoadError
from pelton.step import Step

NAME = "pelton"
# Arguments that say nothing about what attention computes here: dropout is off, positions are in the queries and keys already.
SILENT = {
    "dropout",
    "position_ids",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "labels",
    "num_items_in_batch",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a layer wants of attention."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    soft_cap: float | None
    has_sinks: bool


class Attending(Protocol):
    """Answers the calls of a model that runs."""

    def attend(self, ask: Ask, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """q, k, v: [1, heads, tokens, columns]; the result: [1, tokens, heads, columns of v]."""


_ATTENDING: ContextVar[Attending] = ContextVar("attending")


@contextmanager
def attending(by: Attending) -> Iterator[None]:
    """Within this block, and this thread, `by` answers."""
    before = _ATTENDING.set(by)
    try:
        yield
    finally:
        _ATTENDING.reset(before)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that is registered with transformers."""
    ask = _ask(module, query, key, value, attention_mask, scaling, others)
    return _ATTENDING.get().attend(ask, query, key, value, others.get("s_aux")), None


def _ask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    others: dict[str, Any],
) -> Ask:
    who = type(module).__name__
    if mask is not None:
        raise LoadError(
            f"{who} brings an attention mask of its own; supported: causal attention, to all tokens or to a window"
        )
    is_causal = others.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise LoadError(f"{who} sees the tokens behind a token, too; supported: causal attention")
    if key.shape[2] != query.shape[2] or query.shape[0] != 1:
        raise LoadError(f"{who} looks at other tokens than those of the step; supported: self-attention of decoders")
    known = SILENT | {"is_causal", "sliding_window", "softcap", "s_aux"}
    for name, given in others.items():
        if name not in known and given is not None:
            raise LoadError(
                f"{who} asks attention for `{name}`, which Pelton's has not; supported: windows, soft caps, sinks"
            )
    if query.shape[1] % key.shape[1]:
        raise LoadError(f"{who} has {query.shape[1]} heads for {key.shape[1]} of keys; supported: a multiple")
    window, cap = others.get("sliding_window"), others.get("softcap")
    return Ask(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
        window=None if window is None else int(window),
        soft_cap=None if cap is None else float(cap),
        has_sinks=others.get("s_aux") is not None,
    )


class Heard:
    """Notes what is asked, and answers with the right shape."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    def attend(self, ask: Ask, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        self.asks.append(ask)
        return q.new_zeros(1, q.shape[2], ask.heads, ask.value_dim)


@dataclass(frozen=True, slots=True)
class Layer:
    """A call of each step: what it asks, where its keys and values lie, and the window that a context leaves of its own."""

    ask: Ask
    place: Place
    window: int | None


class Paged:
    """Answers the calls of one step from the blocks. Heads of fewer columns, or fewer heads, than the blocks have places for are filled up
    with zeros: so layers of several sizes, and keys that are wider than values (multi-head latent attention), fit into equal blocks."""

    def __init__(self, layers: Sequence[Layer], step: Step) -> None:
        self._layers = layers
        self._step = step
        self._calls = 0
        device = step.ids.device
        # One pair of columns, turned by nothing: positions are in the queries and keys already.
        self._still = torch.tensor([[1.0, 0.0]], device=device)
        self._nowhere = torch.zeros_like(step.positions)

    @property
    def calls(self) -> int:
        """How many were answered."""
        return self._calls

    def attend(self, ask: Ask, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        layer, step = self._layers[self._calls], self._step
        self._calls += 1
        assert ask == layer.ask, "a step asks what the model asked when it was heard"
        keys, values = step.kv.layers[layer.place.at]
        shape = step.kv.shape
        kv_heads, width, dtype = shape.heads, shape.head_dim, DTYPES[shape.dtype]
        heads = ask.heads // ask.kv_heads * kv_heads
        queries = _filled(q, heads, width, dtype)
        new_keys, new_values = (_filled(part, kv_heads, width, dtype) for part in (k, v))
        slots, table = step.kv_slots[layer.place.kind], step.block_table[layer.place.kind]
        still = torch.empty_like(queries)
        ops.rope_kv_write(still, queries, new_keys, new_values, self._still, self._nowhere, keys, values, slots)
        out = torch.empty_like(queries)
        if sinks is not None:
            sinks = F.pad(sinks.float(), (0, heads - ask.heads)).contiguous()
        ops.paged_attention(
            out,
            still,
            keys,
            values,
            table,
            step.row_offsets,
            step.row_starts,
            ask.scale,
            layer.window,
            ask.soft_cap,
            sinks,
        )
        return out[None, :, : ask.heads, : ask.value_dim].to(v.dtype)


def _filled(x: Tensor, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    """[1, heads, tokens, columns] as [tokens, heads, columns], with zeros for what is not there."""
    x = x[0].transpose(0, 1).to(dtype)
    return F.pad(x, (0, width - x.shape[2], 0, heads - x.shape[1])).contiguous()
