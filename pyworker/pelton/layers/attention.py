"""Attention over the KV arena: rotate, write this step's keys and values, look at all that came before."""

from __future__ import annotations

import torch
from pelton_kernels import ops
from torch import Tensor, nn

from pelton.layers.rotary import Rotary
from pelton.step import Step


class CachedAttention(nn.Module):
    """softmax(q · kᵀ / √dim) · v, causal, over the request's blocks. Without weights of its own."""

    def __init__(self, layer: int, head_dim: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer = layer
        self.scale = head_dim**-0.5
        self.rotary = rotary

    def forward(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:  # [tokens, heads, head_dim] each
        keys, values = step.kv.layers[self.layer]
        ops.rope_kv_write(q, k, v, self.rotary.cos_sin, step.positions, keys, values, step.kv_slots)
        out = torch.empty_like(q)
        ops.paged_attention(out, q, keys, values, step.block_table, step.row_offsets, step.row_starts, self.scale)
        return out.flatten(1)  # [tokens, heads x head_dim]
