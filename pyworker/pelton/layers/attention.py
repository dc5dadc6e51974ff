"""Attention over the KV arena: rotate, write this step's keys and values, look at all that came before, or at a window."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.kv import Place
from pelton.layers.rotary import Rotary
from pelton.step import Step


def slopes_of(heads: int) -> tuple[float, ...]:
    """By how much each head's scores fall with each position (ALiBi, arXiv:2108.12409): 2^(-8/n), 2^(-16/n) ... for a power of two; the
    heads beyond the nearest one below take every second of the next one's."""

    def powers(count: int) -> list[float]:
        return [2.0 ** (-8 * (head + 1) / count) for head in range(count)]

    nearest = 1 << (heads.bit_length() - 1)
    return tuple(powers(nearest) + powers(2 * nearest)[::2][: heads - nearest])


class CachedAttention(nn.Module):
    """softmax(scale · q · kᵀ) · v, causal or, if `is_whole`, over the whole row, in the request's blocks. Without weights of its own."""

    slopes: Tensor | None

    def __init__(
        self,
        place: Place,
        rotary: Rotary,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        is_whole: bool = False,
        slopes: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("slopes", None if slopes is None else torch.tensor(slopes))
        self.place = place
        self.rotary = rotary
        self.scale = scale
        self.window = window
        self.soft_cap = soft_cap
        self.is_whole = is_whole

    def forward(  # [tokens, heads, head_dim] each, as parts of what made them
        self, q: Tensor, k: Tensor, v: Tensor, step: Step, norm: ops.HeadNorm | None = None
    ) -> Tensor:
        keys, values = step.kv.layers[self.place.at]
        kv_slots, block_table = step.kv_slots[self.place.kind], step.block_table[self.place.kind]
        turned = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        ops.rope_kv_write(
            turned,
            q,
            k,
            v,
            self.rotary.cos_sin,
            step.positions,
            keys,
            values,
            kv_slots,
            self.rotary.is_interleaved,
            norm,
        )
        out = torch.empty_like(turned)
        ops.paged_attention(
            out,
            turned,
            keys,
            values,
            block_table,
            step.row_offsets,
            step.row_starts,
            self.scale,
            self.window,
            self.soft_cap,
            is_whole=self.is_whole,
            slopes=self.slopes,
        )
        return out.flatten(1)  # [tokens, heads x head_dim]
