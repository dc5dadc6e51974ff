"""What a model calls while it runs once, as data: kernels by name, and whatever else torch was asked for.

The model runs for real, on small inputs; the recorder stands in the dispatch table of `ops` and hears every torch op through
torch's dispatch mode. Memory is followed by its storage:

  an input    one of the step's arrays, by name
  a buffer    made while recording; it must be used whole
  fixed       was there before: weights, tables, the KV arena

Views need no call. An allocation is a buffer, zeros are `clear`, a copy of columns is `columns`; any other torch op becomes a
call-back. A model that does what no program can (use a part of a buffer in a kernel, look at a value) raises `RecordingError`.
Never here: sizes that change with the step (`program`), models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from pelton_kernels import cpu, ops
from pelton_kernels.heads import HeadNorm, steps_of
from pelton_kernels.packed import PackedWeight, Scheme
from pelton_kernels.script import Lent

aten = torch.ops.aten

ALLOCATIONS = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided}
ZEROS = {aten.zeros, aten.zeros_like, aten.new_zeros}
COPIES = {aten.clone, aten.contiguous, aten.reshape, aten.flatten}  # where they are no views


class RecordingError(Exception):
    """The model does something that no program can; the message says what."""


@dataclass(frozen=True)
class Buffer:
    """Memory made while recording, counted from 0."""

    number: int


@dataclass(frozen=True)
class Input:
    """One of the step's arrays."""

    name: str


Memory = Buffer | Input


@dataclass(frozen=True)
class Layer:
    """A pair of caches by address."""

    k: Lent
    v: Lent
    sizes: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class View:
    """A tensor as a call-back sees it: which memory, and how it lies there."""

    memory: Memory
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """One kernel: its buffers by argument, and everything that must be the same in every step."""

    name: str
    buffers: dict[str, int]
    fixed: dict[str, Any]
    formats: set[torch.dtype]


@dataclass(frozen=True)
class CallBack:
    """One torch op, with `View`s where its tensors were; fixed tensors stand for themselves."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    makes: list[View]
    """What it returned, where that was no view of something known."""
    changes: list[View]
    """What it wrote in place."""

    @property
    def name(self) -> str:
        """As torch calls it."""
        return str(self.function)


@dataclass
class Recording:
    """One run."""

    buffers: list[int] = field(default_factory=list)
    """Bytes of each."""
    calls: list[Call | CallBack] = field(default_factory=list)
    result: int = -1
    lenders: list[Any] = field(default_factory=list)
    """What the fixed addresses point into."""


def record(run: Callable[[], Tensor], inputs: Mapping[str, Tensor]) -> Recording:
    """Runs a model over `inputs`, which it knows already; its result must be a buffer of its own."""
    recorder = Recorder(inputs)
    with ops.watched(recorder), recorder.listening():
        recorder.finish(run())
    return recorder.recording


def span(tensor: Tensor) -> tuple[int, int]:
    """Address and number of elements."""
    return tensor.data_ptr(), tensor.numel()


class Recorder:
    """The CPU's kernels, each written down before it runs."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self.recording = Recording()
        self._inputs = dict(inputs)
        self._memory: dict[int, Memory] = {_storage(tensor): Input(name) for name, tensor in inputs.items()}
        # Everything that was seen stays alive, so that no two storages ever have the same address.
        self._alive: list[Any] = list(inputs.values())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears torch's own ops."""
        with _Ear(self):
            yield

    def finish(self, result: Tensor) -> None:
        """Names the result."""
        self.recording.result = self._whole("result", result)

    # The dispatch table's side; `ops` has checked formats and shapes.

    def embed(self, out: Tensor, table: Tensor, ids: Tensor) -> None:
        if self._buffer(table) is None:
            by = "positions" if span(ids) == span(self._inputs["positions"]) else "ids"
            self._expect(ids, by)
            self._add("embed", {"out": out}, table=self._fixed("table", table), by=by, width=out.shape[1])
        else:
            self._expect(ids, "drawn_at")
            self._add("pick", {"out": out, "x": table}, width=out.shape[1])
        cpu.embed(out, table, ids)

    def embed_packed(self, out: Tensor, table: PackedWeight, ids: Tensor, scale: float) -> None:
        self._expect(ids, "ids")
        self.recording.lenders.append(table)
        self._add("embed_packed", {"out": out}, table=table.data, scale=scale)
        cpu.embed_packed(out, table, ids, scale)

    def embed_segments(
        self, out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None
    ) -> None:
        self._expect(ids, "ids")
        self._expect(row_offsets, "row_offsets")
        lent = self._fixed("table", table)
        self._add("embed_segments", {"out": out}, table=lent, separator=separator, width=out.shape[1])
        cpu.embed_segments(out, table, ids, row_offsets, separator)

    def pool_rows(self, out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: ops.Pooling) -> None:
        self._expect(row_offsets, "row_offsets")
        self._expect(at, "drawn_at")
        fixed = {"width": x.shape[1], "pooling": pooling, "out_dtype": cpu.dtype_name(out)}
        self._add("pool_rows", {"out": out, "x": x}, **fixed)
        cpu.pool_rows(out, x, row_offsets, at, pooling)

    def rms_norm(self, out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
        self._add("rms_norm", {"out": out, "x": x}, gain=self._fixed("gain", gain), eps=eps)
        cpu.rms_norm(out, x, gain, eps)

    def add_rms_norm(self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
        buffers = {"out": out, "residual": residual, "x": x}
        self._add("add_rms_norm", buffers, gain=self._fixed("gain", gain), eps=eps)
        cpu.add_rms_norm(out, residual, x, gain, eps)

    def layer_norm(self, out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int) -> None:
        lent = None if bias is None else self._fixed("bias", bias)
        self._add("layer_norm", {"out": out, "x": x}, gain=self._fixed("gain", gain), bias=lent, eps=eps, group=group)
        cpu.layer_norm(out, x, gain, bias, eps, group)

    def add_layer_norm(
        self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float
    ) -> None:
        buffers = {"out": out, "residual": residual, "x": x}
        lent = None if bias is None else self._fixed("bias", bias)
        self._add("add_layer_norm", buffers, gain=self._fixed("gain", gain), bias=lent, eps=eps)
        cpu.add_layer_norm(out, residual, x, gain, bias, eps)

    def linear(self, out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> None:
        self.recording.lenders.append(weight)
        lent = None if bias is None else self._fixed("bias", bias)
        self._add("linear", {"out": out, "x": x}, weight=weight.data, bias=lent, out_dtype=cpu.dtype_name(out))
        cpu.linear(out, x, weight, bias)

    def silu_mul(self, out: Tensor, gate_up: Tensor) -> None:
        self._add("silu_mul", {"out": out, "gate_up": gate_up}, width=out.shape[1])
        cpu.silu_mul(out, gate_up)

    def gelu_mul(self, out: Tensor, gate_up: Tensor) -> None:
        self._add("gelu_mul", {"out": out, "gate_up": gate_up}, width=out.shape[1])
        cpu.gelu_mul(out, gate_up)

    def gelu_erf_mul(self, out: Tensor, gate_up: Tensor) -> None:
        self._add("gelu_erf_mul", {"out": out, "gate_up": gate_up}, width=out.shape[1])
        cpu.gelu_erf_mul(out, gate_up)

    def activate(self, x: Tensor, function: ops.Function) -> None:
        self._add("activate", {"x": x}, function=function, dtype=cpu.dtype_name(x))
        cpu.activate(x, function)

    def add(self, residual: Tensor, x: Tensor) -> None:
        self._add("add", {"residual": residual, "x": x})
        cpu.add(residual, x)

    def scale(self, x: Tensor, factor: float) -> None:
        self._add("scale", {"x": x}, factor=factor, dtype=cpu.dtype_name(x))
        cpu.scale(x, factor)

    def soft_cap(self, x: Tensor, cap: float) -> None:
        self._add("soft_cap", {"x": x}, cap=cap)
        cpu.soft_cap(x, cap)

    def rope_kv_write(
        self,
        out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        kv_slots: Tensor,
        is_interleaved: bool,
        norm: HeadNorm | None,
    ) -> None:
        self._expect(positions, "positions")
        kind = self._kind(kv_slots, "kv_slots")
        (q_number, q_at), (k_number, k_at), (v_number, v_at) = (
            self._heads(name, heads) for name, heads in (("q", q), ("k", k), ("v", v))
        )
        gains = (None, None) if norm is None else (norm.q_gain, norm.k_gain)
        q_gain, k_gain = (None if gain is None else self._fixed("gain", gain) for gain in gains)
        self._add(
            "rope_kv_write",
            {"out": out},
            q=q_number,
            q_at=q_at,
            k=k_number,
            k_at=k_at,
            v=v_number,
            v_at=v_at,
            q_gain=q_gain,
            k_gain=k_gain,
            eps=0.0 if norm is None else norm.eps,
            angles=self._fixed("cos_sin", cos_sin),
            rotated=cos_sin.shape[1],
            is_interleaved=is_interleaved,
            layer=self._layer(k_cache, v_cache),
            kind=kind,
            heads=out.shape[1],
        )
        cpu.rope_kv_write(out, q, k, v, cos_sin, positions, k_cache, v_cache, kv_slots, is_interleaved, norm)

    def paged_attention(
        self,
        out: Tensor,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        row_offsets: Tensor,
        row_starts: Tensor,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: Tensor | None,
        is_whole: bool,
        slopes: Tensor | None,
    ) -> None:
        kind = self._kind(block_table, "block_table")
        self._expect(row_offsets, "row_offsets")
        self._expect(row_starts, "row_starts")
        self._add(
            "paged_attention",
            {"out": out, "q": q},
            layer=self._layer(k_cache, v_cache),
            kind=kind,
            heads=q.shape[1],
            scale=scale,
            is_whole=is_whole,
            window=window,
            soft_cap=soft_cap,
            sinks=None if sinks is None else self._fixed("sinks", sinks),
            slopes=None if slopes is None else self._fixed("slopes", slopes),
        )
        cpu.paged_attention(
            out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale, window, soft_cap, sinks, is_whole,
            slopes,
        )  # fmt: skip

    def numerics_id(self, dtype: torch.dtype, scheme: Scheme | None) -> str:
        return cpu.numerics_id(dtype, scheme)

    def pack(self, *_: Any) -> PackedWeight:
        raise RecordingError("a weight is packed while the model runs")

    quantize = pack_codes = pack

    def copy_blocks(self, *_: Any) -> None:
        raise RecordingError("blocks are copied while the model runs")

    def save_blocks(self, *_: Any) -> None:
        raise RecordingError("blocks are saved while the model runs")

    def load_blocks(self, *_: Any) -> None:
        raise RecordingError("blocks are loaded while the model runs")

    def sample(self, *_: Any) -> None:
        raise RecordingError("tokens are drawn while the model runs")

    def score(self, *_: Any) -> None:
        raise RecordingError("tokens are scored while the model runs")

    # torch's side.

    def heard(self, function: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One torch op that has run."""
        packet = function.overloadpacket
        tensors = _tensors(out)
        self._alive += tensors
        given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        fresh = [tensor for tensor in tensors if _storage(tensor) not in given]
        is_mutable = function._schema.is_mutable
        if packet in ALLOCATIONS:
            self._make(fresh)
        elif packet in ZEROS:
            self._make(fresh)
            self._add("clear", {"out": tensors[0]})
        elif not is_mutable and tensors and not fresh:
            return  # views
        elif packet in COPIES and self._cut(args[0], *fresh):
            return
        else:
            self._call_back(function, args, kwargs, out, fresh, is_mutable)

    def _cut(self, source: Tensor, copy: Tensor) -> bool:
        """Takes a copy down as `columns`, if it is one: the same range of each row of a buffer, row by row."""
        buffer = self._buffer(source)
        if buffer is None or source.dim() < 2 or not copy.is_contiguous() or copy.dtype != source.dtype:
            return False
        width, stride = math.prod(source.shape[1:]), source.stride(0)
        is_range = source[:1].is_contiguous() and source.storage_offset() + width <= stride
        if not is_range or source.shape[0] * stride * source.itemsize != self.recording.buffers[buffer.number]:
            return False
        self._make([copy])
        numbers = {"out": self._whole("out", copy), "x": buffer.number}
        fixed = {"start": int(source.storage_offset()), "width": width, "stride": stride}
        self.recording.calls.append(Call("columns", numbers, fixed, {source.dtype}))
        return True

    def _call_back(
        self, function: Any, args: Any, kwargs: Any, out: Any, fresh: list[Tensor], is_mutable: bool
    ) -> None:
        if any(isinstance(leaf, int | float | bool) for leaf in tree_flatten(out)[0]):
            raise RecordingError(f"{function} looks at a value")
        self._make(fresh)
        given = _tensors((args, kwargs))
        returned = {_storage(tensor) for tensor in _tensors(out)}
        changed = [tensor for tensor in given if is_mutable and _storage(tensor) in returned]
        if is_mutable and not changed:
            raise RecordingError(f"{function} writes something that it does not return")
        for tensor in changed:
            if not isinstance(self._memory.get(_storage(tensor)), Buffer):
                raise RecordingError(f"{function} writes memory that is not the step's own")
        args, kwargs = tree_map(self._view_or_fixed, (args, kwargs))
        views = [self._view(tensor) for tensor in fresh], [self._view(tensor) for tensor in changed]
        self.recording.calls.append(CallBack(function, args, kwargs, *views))

    def _view_or_fixed(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and _storage(leaf) in self._memory:
            return self._view(leaf)
        return leaf

    def _view(self, tensor: Tensor) -> View:
        memory = self._memory[_storage(tensor)]
        return View(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _make(self, fresh: list[Tensor]) -> None:
        for tensor in fresh:
            self._memory[_storage(tensor)] = Buffer(len(self.recording.buffers))
            self.recording.buffers.append(tensor.untyped_storage().nbytes())

    def _buffer(self, tensor: Tensor) -> Buffer | None:
        memory = self._memory.get(_storage(tensor))
        return memory if isinstance(memory, Buffer) else None

    def _whole(self, name: str, tensor: Tensor) -> int:
        buffer = self._buffer(tensor)
        if buffer is None:
            raise RecordingError(f"`{name}` is no activation of this step")
        if tensor.nbytes != self.recording.buffers[buffer.number]:
            raise RecordingError(f"`{name}` is a part of a larger tensor")
        return buffer.number

    def _heads(self, name: str, heads: Tensor) -> tuple[int, tuple[int, int, int]]:
        """The buffer in whose rows they lie, and where: of the first token's, from one token to the next, from one head to the next."""
        buffer = self._buffer(heads)
        if buffer is None:
            raise RecordingError(f"`{name}` is no activation of this step")
        by_token, by_head = steps_of(heads)
        if heads.shape[0] * by_token * heads.itemsize != self.recording.buffers[buffer.number]:
            raise RecordingError(f"`{name}` is no part of each row of a tensor")
        return buffer.number, (int(heads.storage_offset()), by_token, by_head)

    def _fixed(self, name: str, tensor: Tensor) -> Lent:
        if _storage(tensor) in self._memory:
            raise RecordingError(f"`{name}` is computed anew in each step")
        self.recording.lenders.append(tensor)
        return Lent(*span(tensor), tensor.itemsize)

    def _layer(self, k_cache: Tensor, v_cache: Tensor) -> Layer:
        lent = self._fixed("k_cache", k_cache), self._fixed("v_cache", v_cache)
        return Layer(*lent, cpu.cache_sizes(k_cache), cpu.dtype_name(k_cache))

    def _expect(self, tensor: Tensor, name: str) -> None:
        whole = self._inputs[name]
        if span(tensor) != span(whole) or tensor.dtype != whole.dtype:
            raise RecordingError(f"a kernel is given something else than the step's `{name}`")

    def _kind(self, tensor: Tensor, name: str) -> int:
        """Of which kind of layers the tensor is `name`: the input has a part for each."""
        whole = self._inputs[name]
        for kind, part in enumerate(whole.unbind()):
            if span(tensor) == span(part) and tensor.dtype == whole.dtype:
                return kind
        raise RecordingError(f"a kernel is given something else than a kind's part of the step's `{name}`")

    def _add(self, name: str, buffers: Mapping[str, Tensor], **fixed: Any) -> None:
        numbers = {argument: self._whole(argument, tensor) for argument, tensor in buffers.items()}
        formats = {tensor.dtype for tensor in buffers.values()}
        self.recording.calls.append(Call(name, numbers, fixed, formats))


class _Ear(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Runs each op of torch, then tells the recorder."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler at the first op, to tell it to stay away: some seconds of every start."""
        return False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        self._recorder.heard(function, args, kwargs, out)
        return out


def _tensors(tree: Any) -> list[Tensor]:
    """Of what an op takes or gives, in which lists and tables are all that has an inside. A model has a thousand ops, and a start waits."""
    if isinstance(tree, Tensor):
        return [tree]
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
