"""Ops that know positions and the paged cache, `[blocks, KH, block_size, D]`, or D + 4 where it holds codes."""

from __future__ import annotations

import torch
from torch import Tensor

from pelton_kernels.heads import HeadNorm
from pelton_kernels.reference.codes import codes_of, numbers_of
from pelton_kernels.reference.dense import rms_norm, wide


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, is_interleaved: bool) -> Tensor:
    """x: [T, heads, D]; cos, sin: [T, R/2]. Element i of the first half of R is turned against i of the second, or 2i against 2i + 1."""
    half = cos.shape[1]
    turned, rest = torch.tensor_split(wide(x), [2 * half], dim=2)
    a, b = (turned[..., ::2], turned[..., 1::2]) if is_interleaved else turned.chunk(2, dim=2)
    cos, sin = cos[:, None].to(a.dtype), sin[:, None].to(a.dtype)
    pair = [a * cos - b * sin, b * cos + a * sin]
    together = torch.stack(pair, dim=3).flatten(2) if is_interleaved else torch.cat(pair, dim=2)
    return torch.cat([together, rest], dim=2).to(x.dtype)


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_slots: Tensor,
    is_interleaved: bool = False,
    norm: HeadNorm | None = None,
) -> tuple[Tensor, Tensor]:
    """q and k, normed and rotated; k and v are written into the caches, a later token over an earlier one."""
    if norm is not None:
        q, k = rms_norm(q, norm.q_gain, norm.eps), rms_norm(k, norm.k_gain, norm.eps)
    cos, sin = cos_sin[positions.long()].chunk(2, dim=1)
    q, k = _rotate(q, cos, sin, is_interleaved), _rotate(k, cos, sin, is_interleaved)
    block_size = k_cache.shape[2]
    new_k, new_v = (codes_of(k), codes_of(v)) if k_cache.dtype is torch.int8 else (k, v)
    for token, slot in enumerate(kv_slots.tolist()):
        k_cache[slot // block_size, :, slot % block_size] = new_k[token]
        v_cache[slot // block_size, :, slot % block_size] = new_v[token]
    return q, k


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    row_offsets: Tensor,
    row_starts: Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    is_whole: bool = False,
    slopes: Tensor | None = None,
) -> Tensor:
    """softmax(scale · q·k) · v over each token's own position and all before, row by row; `is_whole`: and all behind.   q: [T, H, D].

    With a window only over the latest so many positions, or so many to both sides; soft cap: cap · tanh(s / cap); a sink is one more score in the
    softmax, of a value of zero; with slopes a score gets slope · (key's position - query's).
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k_cache.shape[1]
    offsets = row_offsets.tolist()
    for row, start in enumerate(row_starts.tolist()):
        tokens = slice(offsets[row], offsets[row + 1])
        count = tokens.stop - tokens.start
        if count == 0:
            continue
        known, size = start + count, k_cache.shape[2]
        first = 0 if window is None else max(0, start + 1 - window) // size * size  # of the first block that is seen
        used = block_table[row, first // size : -(-known // size)].long()
        k, v = (
            numbers_of(cache[used], wide(q).dtype).transpose(0, 1).flatten(1, 2)[:, : known - first]
            for cache in (k_cache, v_cache)
        )  # [KH, known - first, D]
        k, v = (heads.repeat_interleave(group, dim=0) for heads in (k, v))
        scores = torch.einsum("thd,hkd->htk", wide(q[tokens]), k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        position, key = (torch.arange(begin, known, device=q.device) for begin in (start, first))
        if slopes is not None:
            scores = scores + slopes.to(scores.dtype)[:, None, None] * (key - position[:, None]).to(scores.dtype)
        sees = torch.full_like(position, known - 1) if is_whole else position  # to here
        hidden = key > sees[:, None]
        if window is not None:
            hidden |= key >= position[:, None] + window
            hidden |= key <= position[:, None] - window
            v = v.masked_fill(hidden.all(dim=0)[:, None], 0.0)  # else what nobody sees is 0 · NaN
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores.dtype)[:, None, None].expand(-1, count, 1)], dim=2)
        weights = scores.softmax(dim=2)[:, :, : known - first]
        out[tokens] = torch.einsum("htk,hkd->thd", weights, v).to(q.dtype)
    return out


def copy_blocks(k_cache: Tensor, v_cache: Tensor, from_blocks: Tensor, to_blocks: Tensor, tokens: Tensor) -> None:
    """Copies the beginnings of blocks, in order: a target may be a later copy's source."""
    for source, target, count in zip(from_blocks.tolist(), to_blocks.tolist(), tokens.tolist(), strict=True):
        for cache in (k_cache, v_cache):
            cache[target, :, :count] = cache[source, :, :count].clone()
