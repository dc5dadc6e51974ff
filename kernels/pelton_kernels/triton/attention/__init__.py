"""Attention over the paged cache, for any mix of prefill chunks and decoding rows; or of whole rows, to both sides.

A token's sum is walked in the same order in every chunking and beside any other rows as long as its row has more tokens than
`few.most_tokens`. Rows with so many or fewer share the work by how many keys there are, so their last bits depend on the rows beside them.
"""

from __future__ import annotations

from torch import Tensor

from pelton_kernels.checks import refuse
from pelton_kernels.triton.attention.few import attend_few, most_tokens
from pelton_kernels.triton.attention.tiles import attend_tiles

__all__ = ["attend_few", "attend_tiles", "most_tokens", "paged_attention"]


def paged_attention(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor,
    block_table: Tensor, row_offsets: Tensor, row_starts: Tensor, scale: float,
    window: int | None = None, soft_cap: float | None = None, sinks: Tensor | None = None,
    is_whole: bool = False, slopes: Tensor | None = None,
) -> None:  # fmt: skip
    """See `ops.paged_attention`."""
    if slopes is not None:
        raise refuse("slopes", "given", "None on a GPU")
    if not scale > 0:
        raise refuse("scale", scale, "a number above 0 on a GPU")
    tokens, rows = q.shape[0], row_starts.shape[0]
    if tokens == 0:
        return
    few = 0 if is_whole else most_tokens(q.shape[1], k_cache.shape[1])
    inputs = (out, q, k_cache, v_cache, block_table, row_offsets, row_starts, scale, window, soft_cap, sinks)
    if few:
        attend_few(*inputs)
    # How many tokens each row has, only the card knows; but where there are as many as rows, no row has more than one (`ops`).
    if is_whole or (tokens > few and tokens != rows):
        attend_tiles(*inputs, is_whole, few + 1)
