"""The tokens among which top-k and top-p draw their line: few of the vocabulary, gathered in a list."""

from __future__ import annotations

import triton
import triton.language as tl

from pelton_kernels.triton.sampling.parts import GREATEST, NUMBERS, greatest_of, line_of, pivot, scores_of
from pelton_kernels.triton.sampling.record import TEMPERATURE, is_searched, number, record_of
from pelton_kernels.triton.sampling.search import key_of


@triton.jit(do_not_specialize_on_alignment=["slots"])
def collect(
    keys, lengths, sums, numbers, ids, logits, adjusted, rules, slots, vocabulary, chunks,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keys[row] = all tokens above the highest pivot that has enough above it; lengths[row]: how many.   Grid: chunks × rows.

    Chunks append as they come: what is made of the list does not depend on its order.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    record = record_of(rules, slots, row)
    temperature = number(record, TEMPERATURE)
    if (temperature > 0.0) & is_searched(record, vocabulary):
        line, _ = line_of(sums, record, row, vocabulary, chunks, CHUNKS)
        least = pivot(line)
        greatest = greatest_of(numbers, row, chunks, CHUNKS)
        nearest = tl.load(numbers + (row * chunks + chunk) * NUMBERS + GREATEST)
        if tl.div_rn(nearest - greatest, temperature) >= least:
            token = chunk * BLOCK + tl.arange(0, BLOCK)
            score = scores_of(logits, adjusted, ids, row, chunk, token, vocabulary, chunks, greatest, temperature)
            is_near = score >= least
            rank = tl.cumsum(is_near.to(tl.int32), 0)
            start = tl.atomic_add(lengths + row, tl.max(rank, 0))
            to = keys + row.to(tl.int64) * vocabulary + start + rank - 1
            tl.store(to, key_of(score, token), mask=is_near)
