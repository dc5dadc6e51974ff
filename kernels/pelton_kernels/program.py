"""Two recordings of one model, at different numbers of tokens and draws, made into one program that serves any.

What is the same in both is fixed; a size that grew with the tokens (or draws) is so much per token (or draw). Any other
difference means that the model does not do the same for every number of rows: `RecordingError`.
Never here: how a model is run and heard (`recording`), weights, steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from pelton_kernels._native import Program, ProgramBuilder
from pelton_kernels.recording import Buffer, Call, CallBack, Layer, Recording, RecordingError, View
from pelton_kernels.script import Lent, Script

# Inputs that a call-back may look at, in the order in which the executor gives their addresses: those that are per token or draw.
CALL_BACK_INPUTS = ("ids", "positions", "drawn_at")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
MIXED = {"linear", "activate", "scale", "soft_cap", "pool_rows"}  # they make results, or change them


@dataclass(frozen=True)
class Counts:
    """Tokens and draws of one recording. Their ratio must differ between two, so that no size is ambiguous."""

    tokens: int
    draws: int


@dataclass(frozen=True)
class Growing:
    """A whole number that is `each` times the tokens or draws."""

    each: int
    per: str  # "token" or "draw"

    def at(self, counts: Counts) -> int:
        """Its value."""
        return self.each * (counts.tokens if self.per == "token" else counts.draws)


@dataclass(frozen=True)
class Built:
    """A program, and the script that builds it again."""

    program: Program
    script: Script


def build(dtype: torch.dtype, recordings: tuple[Recording, Recording], counts: tuple[Counts, Counts]) -> Built:
    """The program that both recordings are runs of."""
    one, other = recordings
    names = [[call.name for call in recording.calls] for recording in recordings]
    if names[0] != names[1] or len(one.buffers) != len(other.buffers) or one.result != other.result:
        raise RecordingError("it does different things for different numbers of tokens")
    lowering = _Lowering(dtype, counts)
    for sizes in zip(one.buffers, other.buffers, strict=True):
        lowering.buffer(*sizes)
    for calls in zip(one.calls, other.calls, strict=True):
        lowering.call(*calls)
    try:
        lowering.script.result = one.result
        return Built(lowering.builder.build(one.result, one.lenders), lowering.script)
    except ValueError as flaw:
        raise RecordingError(str(flaw)) from flaw


class _Lowering:
    """From pairs of recorded calls to the native builder's."""

    def __init__(self, dtype: torch.dtype, counts: tuple[Counts, Counts]) -> None:
        self.builder = ProgramBuilder(DTYPES[dtype])
        self.script = Script(DTYPES[dtype])
        self._dtype = dtype
        self._counts = counts
        self._layers: dict[Layer, int] = {}
        self._bytes: list[int | Growing] = []

    def buffer(self, one: int, other: int) -> None:
        size = self._unified(one, other)
        self._bytes.append(size)
        if isinstance(size, Growing):
            self._say("buffer", each=size.each, per=size.per)
        else:
            self._say("buffer", each=size, per="step")

    def call(self, one: Call | CallBack, other: Call | CallBack) -> None:
        if isinstance(one, CallBack) and isinstance(other, CallBack):
            self._call_back(one, other)
        elif isinstance(one, Call) and one == other:
            self._kernel(one)
        else:
            raise RecordingError(f"`{one.name}` is given something else for another number of tokens")

    def _kernel(self, call: Call) -> None:
        if call.formats != {self._dtype} and call.name not in MIXED:
            raise RecordingError(f"`{call.name}` computes in another format than the weights'")
        fixed = dict(call.fixed)
        if isinstance(layer := fixed.get("layer"), Layer):
            if layer not in self._layers:
                self._layers[layer] = self.builder.layer(layer.k.span, layer.v.span, layer.sizes, layer.dtype)
                self.script.layers.append(layer.k.address)
            fixed["layer"] = self._layers[layer]
        self._say(call.name, **call.buffers, **fixed)

    def _say(self, name: str, **arguments: Any) -> None:
        """To the builder, and to the script."""
        self.script.add(name, arguments)
        native = {key: value.span if isinstance(value, Lent) else value for key, value in arguments.items()}
        getattr(self.builder, name)(**native)

    def _call_back(self, one: CallBack, other: CallBack) -> None:
        parts = [
            tree_flatten(
                (call.args, call.kwargs, call.makes, call.changes), is_leaf=lambda leaf: isinstance(leaf, View)
            )
            for call in (one, other)
        ]
        (leaves, shape), (other_leaves, other_shape) = parts
        if shape != other_shape:
            raise RecordingError(f"`{one.name}` is given something else for another number of tokens")
        unified = [self._leaf(one.name, *pair) for pair in zip(leaves, other_leaves, strict=True)]
        args, kwargs, makes, changes = tree_unflatten(unified, shape)
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, _Place)]
        makes_buffers = [place.buffer for place in makes]
        reads = [place.buffer for place in given if place.buffer is not None]
        writes = [place.buffer for place in [*changes, *makes] if place.buffer is not None]
        assert all(buffer is not None for buffer in makes_buffers), "what an op makes is a buffer"
        order = [*CALL_BACK_INPUTS, *reads, *writes]
        self.script.is_whole = False
        function = _Answer(one.function, args, kwargs, makes, order, self._bytes)
        self.builder.call_back(one.name, function, reads, writes)

    def _leaf(self, name: str, one: Any, other: Any) -> Any:
        if isinstance(one, View) and isinstance(other, View) and (one.memory, one.dtype) == (other.memory, other.dtype):
            if not isinstance(one.memory, Buffer) and one.memory.name not in CALL_BACK_INPUTS:
                raise RecordingError(f"`{name}` looks at the step's `{one.memory.name}`")
            numbers = [
                tuple(self._unified(*pair) for pair in zip(*pairs, strict=True))
                for pairs in ((one.shape, other.shape), (one.stride, other.stride))
            ]
            return _Place(one.memory, one.dtype, numbers[0], numbers[1], self._unified(one.offset, other.offset))
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if _are_one(one, other):
                return one
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            pass
        elif type(one) is int and type(other) is int:
            return self._unified(one, other)
        elif one == other:
            return one
        raise RecordingError(f"`{name}` is given something else for another number of tokens")

    def _unified(self, one: int, other: int) -> int | Growing:
        if one == other:
            return one
        for per, counts in (
            ("token", [count.tokens for count in self._counts]),
            ("draw", [count.draws for count in self._counts]),
        ):
            if one % counts[0] == 0 and one // counts[0] * counts[1] == other:
                return Growing(one // counts[0], per)
        raise RecordingError(f"a size is {one} for {self._counts[0]} and {other} for {self._counts[1]}")


def _are_one(one: Tensor, other: Tensor) -> bool:
    """Whether both are the same part of the same memory: `weight.T` makes a tensor each time. Both are alive, so no address came twice."""

    def part(tensor: Tensor) -> tuple[object, ...]:
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    return one is other or (one.numel() > 0 and part(one) == part(other))


@dataclass(frozen=True)
class _Place:
    """A `View` at any number of tokens."""

    memory: Any
    dtype: torch.dtype
    shape: tuple[int | Growing, ...]
    stride: tuple[int | Growing, ...]
    offset: int | Growing

    @property
    def buffer(self) -> int | None:
        """Its buffer's number; None: it is an input."""
        return self.memory.number if isinstance(self.memory, Buffer) else None


class _Answer:
    """One torch op over the arena, at whatever counts a step has. Called by the executor, which holds the CPU's threads:
    it must not call `ops`."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        makes: list[_Place],
        order: list[str | int],
        sizes: list[int | Growing],
    ) -> None:
        self._function = function
        self._given = args, kwargs
        self._makes = makes
        self._order = order
        self._sizes = sizes

    @torch.inference_mode()
    def __call__(self, tokens: int, draws: int, addresses: list[int]) -> None:
        counts = Counts(tokens, draws)
        where = dict(zip(self._order, addresses, strict=True))

        def tensor(place: _Place) -> Tensor:
            key = place.memory.name if place.buffer is None else place.buffer
            shape, stride = ([_value(number, counts) for number in numbers] for numbers in (place.shape, place.stride))
            offset = _value(place.offset, counts)
            if 0 in shape:
                return torch.empty(shape, dtype=place.dtype)
            reach = 1 + offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            memory = (ctypes.c_byte * (reach * place.dtype.itemsize)).from_address(where[key])
            return torch.frombuffer(memory, dtype=place.dtype).as_strided(shape, stride, offset)

        def present(leaf: Any) -> Any:
            return tensor(leaf) if isinstance(leaf, _Place) else _value(leaf, counts)

        args, kwargs = tree_map(present, self._given)
        out = self._function(*args, **kwargs)
        if self._makes:
            made = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor)]
            for place, values in zip(self._makes, made, strict=True):
                tensor(place).copy_(values)


def _value(number: Any, counts: Counts) -> Any:
    return number.at(counts) if isinstance(number, Growing) else number
