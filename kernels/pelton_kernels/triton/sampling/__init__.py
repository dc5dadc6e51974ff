"""Drawing tokens without sorting the vocabulary: what `reference.sample` says, by four kernels and without waiting for the card.

1. `adjust` (chunks × rows): the request's changes; each chunk's greatest, and what log-probabilities need.
2. `draw` (chunks × rows): noise, and each chunk's best; of rows with top-k or top-p how much lies above some scores.
3. `collect` (chunks × rows): of rows with top-k or top-p the few tokens between which the line may lie.
4. `choose` (rows): top-k, top-p and min-p of that list; the row's token, and its log-probabilities.

Why that is fast: chunks share a row among many processors, a row pays only for what it asks for, and all that is left for the one
program per row are lists of a few hundred. Grids follow from shapes alone, so that a CUDA graph can hold the call.
What each row draws does not depend on the rows beside it: every sum that decides is one of integers.

In a distribution so flat that top-p keeps tens of thousands, one program per row goes through them several times over: rare, and
the one case that is not fast. Scratch is 12 bytes per row and token.

Within kernels the requests' `params` are `rules`: Triton 3.6 cannot take an argument of that name.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
from torch import Tensor

from pelton_kernels.triton.sampling.adjust import adjust
from pelton_kernels.triton.sampling.choose import choose
from pelton_kernels.triton.sampling.collect import collect
from pelton_kernels.triton.sampling.draw import draw
from pelton_kernels.triton.sampling.parts import IDS, NUMBERS, PIVOTS

CHUNK: Final = 4096  # tokens: 38 chunks of Qwen's vocabulary, and 16 tokens for each of 256 threads
LISTED: Final = 1024  # keys that the search looks at together


def sample(
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
    chunk: int = CHUNK,
    listed: int = LISTED,
) -> None:
    """See `ops.sample`. `chunk` is a multiple of 64, and both are powers of two."""
    rows, vocabulary = logits.shape
    top = out_top_ids.shape[1]
    chunks = triton.cdiv(vocabulary, chunk)
    padded = triton.next_power_of_2(chunks)
    if rows == 0:
        return

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    numbers = empty(rows, chunks, NUMBERS.value, dtype=torch.float32)
    ids = empty(rows, chunks, IDS.value, dtype=torch.int32)
    sums = empty(rows, chunks, PIVOTS.value, dtype=torch.int64)
    adjusted = empty(rows, vocabulary, dtype=torch.float32)
    keys = empty(rows, vocabulary, dtype=torch.int64)
    lengths = empty(rows, dtype=torch.int32)
    top_values = empty(rows, chunks, top, dtype=torch.float32)
    top_ids = empty(rows, chunks, top, dtype=torch.int32)
    adjust[(chunks, rows)](
        numbers, ids, adjusted, top_values, top_ids, lengths,
        logits, params, slots, positions, params if counts is None else counts, int(counts is not None),
        bias_ids, bias_values, bias_ids.shape[1], suppressed, suppressed.shape[1], masks, mask_of, vocabulary, chunks,
        TOP=top, BLOCK=chunk, num_warps=8, enable_fp_fusion=False,  # as the reference rounds, so that ties are the same
    )  # fmt: skip
    draw[(chunks, rows)](
        numbers, ids, sums, logits, adjusted, params, slots, positions, vocabulary, chunks,
        CHUNKS=padded, BLOCK=chunk, num_warps=8,
    )  # fmt: skip
    collect[(chunks, rows)](
        keys, lengths, sums, numbers, ids, logits, adjusted, params, slots, vocabulary, chunks,
        CHUNKS=padded, BLOCK=chunk, num_warps=8,
    )  # fmt: skip
    choose[(rows,)](
        out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs,
        numbers, ids, sums, keys, lengths, top_values, top_ids,
        logits, params, slots, positions, suppressed, suppressed.shape[1], vocabulary, chunks,
        CHUNKS=padded, TOP=top, PADDED_TOP=triton.next_power_of_2(max(top, 1)), BLOCK=listed, num_warps=8,
    )  # fmt: skip
