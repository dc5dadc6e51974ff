"""Which kernels an op goes to: those of the device, or who watches this thread's ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

import torch
from torch import Tensor

from pelton_kernels import cpu
from pelton_kernels.checks import refuse
from pelton_kernels.heads import HeadNorm
from pelton_kernels.packed import PackedWeight, Scheme

Caches = tuple[Tensor, Tensor]  # keys and values of a layer
Function = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "tanh"]
Pooling = Literal["first", "last", "mean"]


class Kernels(Protocol):
    """What a device brings."""

    def numerics_id(self, dtype: torch.dtype, scheme: Scheme | None) -> str: ...
    def embed(self, out: Tensor, table: Tensor, ids: Tensor) -> None: ...
    def embed_packed(self, out: Tensor, table: PackedWeight, ids: Tensor, scale: float) -> None: ...
    def embed_segments(
        self, out: Tensor, table: Tensor, ids: Tensor, row_offsets: Tensor, separator: int | None
    ) -> None: ...
    def pool_rows(self, out: Tensor, x: Tensor, row_offsets: Tensor, at: Tensor, pooling: Pooling) -> None: ...
    def rms_norm(self, out: Tensor, x: Tensor, gain: Tensor, eps: float) -> None: ...
    def add_rms_norm(self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None: ...
    def layer_norm(self, out: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, group: int) -> None: ...
    def add_layer_norm(
        self, out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float
    ) -> None: ...
    def pack(self, parts: Sequence[Tensor], dtype: torch.dtype) -> PackedWeight: ...
    def quantize(self, parts: Sequence[Tensor], dtype: torch.dtype, scheme: Scheme) -> PackedWeight: ...
    def pack_codes(
        self,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        order: Tensor | None,
        dtype: torch.dtype,
        scheme: Scheme,
    ) -> PackedWeight: ...
    def linear(self, out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> None: ...
    def silu_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def gelu_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def gelu_erf_mul(self, out: Tensor, gate_up: Tensor) -> None: ...
    def activate(self, x: Tensor, function: Function) -> None: ...
    def add(self, residual: Tensor, x: Tensor) -> None: ...
    def scale(self, x: Tensor, factor: float) -> None: ...
    def soft_cap(self, x: Tensor, cap: float) -> None: ...

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
    ) -> None: ...

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
    ) -> None: ...

    def copy_blocks(
        self, k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor
    ) -> None: ...

    def save_blocks(self, host: Tensor, caches: Sequence[Caches], blocks: Tensor, host_blocks: Tensor) -> None: ...
    def load_blocks(self, caches: Sequence[Caches], host: Tensor, host_blocks: Tensor, blocks: Tensor) -> None: ...

    def sample(
        self,
        out_tokens: Tensor,
        out_flags: Tensor,
        out_chosen: Tensor,
        out_top_ids: Tensor,
        out_top_logprobs: Tensor,
        logits: Tensor,
        params: Tensor,
        slots: Tensor,
        positions: Tensor,
        counts: Tensor | None,
        bias_ids: Tensor,
        bias_values: Tensor,
        suppressed: Tensor,
        masks: Tensor,
        mask_of: Tensor,
    ) -> None: ...
    def score(
        self,
        out_ranks: Tensor,
        out_flags: Tensor,
        out_chosen: Tensor,
        out_top_ids: Tensor,
        out_top_logprobs: Tensor,
        logits: Tensor,
        given: Tensor,
        wanted: Tensor,
    ) -> None: ...


_WATCHER: ContextVar[Kernels | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Kernels) -> Iterator[None]:
    """Within this block, and this thread, ops on a CPU go to `watcher` instead of the kernels."""
    before = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(before)


def kernels(device: torch.device) -> Kernels:
    """Those that tensors of this device go to."""
    if device.type == "cpu":
        return _WATCHER.get() or cpu
    if device.type == "cuda":
        from pelton_kernels import cuda  # Triton is imported where there is a GPU only

        return cuda
    raise refuse("device", device, "cpu, cuda")


def set_threads(threads: int) -> None:
    """How many threads the CPU kernels use, the caller's among them."""
    cpu.set_threads(threads)


def available_isas() -> list[str]:
    """The instruction-set classes that this processor has, the best first."""
    return cpu.available_isas()


def force_isa(name: str | None) -> None:
    """Uses this class, not the best (None: the best). Weights packed for one of another width are refused then."""
    cpu.force_isa(name)


def numerics_id(device: torch.device | str, dtype: torch.dtype, scheme: Scheme | None = None) -> str:
    """What bits depend on besides the inputs: within one id a row's result is always the same."""
    return kernels(torch.device(device)).numerics_id(dtype, scheme)
