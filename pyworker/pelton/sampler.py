"""Drawing tokens: each slot's rules and counts, kept on the device, and the call of the sampling kernel.

Never here: which rows sample, forward passes. Tables grow to the largest request so far; the counts that penalties need
are made when the first request with penalties is admitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pelton_kernels import ops
from torch import Tensor

from pelton.frames import (
    ADMIT_FLAGS,
    ADMIT_PROMPT_LEN,
    ADMIT_SCORE_TOP,
    ADMIT_SLOT,
    ADMIT_WORDS,
    BIAS_COUNT,
    BIAS_OFFSET,
    HAS_PENALTIES,
    HISTORY_COUNT,
    HISTORY_OFFSET,
    SUPPRESS_COUNT,
    SUPPRESS_OFFSET,
    TOLD_COUNT,
    UNSAMPLED,
    Frame,
    Ints,
)
from pelton.masks import RowMasks
from pelton.ragged import Indices, spread
from pelton.transfer import Transfer, transfer_for

IN_PROMPT = -(1 << 31)  # top bit of a count; the others count occurrences in the output


@dataclass(frozen=True, slots=True)
class Drawn:
    """What rows drew, in the order in which they were asked for. Of those that were scored the ranks stand in `tokens`."""

    tokens: Tensor  # [rows] int32
    flags: Tensor  # [rows] int32
    chosen_logprob: Tensor  # [rows] float32
    top_ids: Tensor  # [rows, top_logprobs] int32
    top_logprobs: Tensor  # [rows, top_logprobs] float32


class Sampler:
    """Rules by slot: `params` holds the Admit records as they came."""

    def __init__(self, slots: int, vocab: int, top_logprobs: int, device: torch.device, transfer: Transfer) -> None:
        self._vocab = vocab
        self._top_logprobs = top_logprobs
        self._transfer = transfer
        # Masks come while what the step sent is still read: a transfer's next call would write over it.
        self._mask_transfer = transfer_for(device)
        self._params = torch.zeros(slots, ADMIT_WORDS, dtype=torch.int32, device=device)
        self._bias_ids = torch.zeros(slots, 1, dtype=torch.int32, device=device)
        self._bias_values = torch.zeros(slots, 1, dtype=torch.float32, device=device)
        self._suppressed = torch.zeros(slots, 1, dtype=torch.int32, device=device)
        self._counts: Tensor | None = None  # [slots, vocab] int32
        self.latest = torch.zeros(slots, dtype=torch.int32, device=device)  # what each slot drew last

    def admit(self, frame: Frame) -> None:
        """Takes in the rules of all requests that enter a slot."""
        if len(frame.admits) == 0:
            return
        slots, records = self._transfer.up([frame.admits[:, ADMIT_SLOT].astype(np.int64), frame.admits.copy()])
        self._params.index_copy_(0, slots, records)
        if self._counts is None and (frame.admits[:, ADMIT_FLAGS] & HAS_PENALTIES).any():
            self._counts = torch.zeros(
                self._params.shape[0], self._vocab, dtype=torch.int32, device=self._params.device
            )
        if self._counts is not None:
            self._counts.index_fill_(0, slots, 0)
        if len(frame.biases):
            self._admit_biases(frame)
        if len(frame.suppressed):
            self._admit_suppressed(frame)
        if self._counts is not None and len(frame.history):
            self._count_history(frame, self._counts)

    def draw(self, logits: Tensor, slots: Tensor, positions: Tensor, masks: RowMasks | None = None) -> Drawn:
        """Draws a token for each row of `logits` [rows, vocab], and remembers it as its slot's latest. A row whose mask is
        missing comes back without a token, and nothing of it is remembered."""
        drawn = self._room(logits)
        words = mask_of = is_missing = None
        if masks is not None:
            words, mask_of, missing = self._mask_transfer.up([masks.masks, masks.mask_of, masks.is_missing])
            is_missing = missing if masks.is_missing.any() else None
        ops.sample(
            drawn.tokens,
            drawn.flags,
            drawn.chosen_logprob,
            drawn.top_ids,
            drawn.top_logprobs,
            logits,
            self._params,
            slots,
            positions,
            self._counts,
            self._bias_ids,
            self._bias_values,
            self._suppressed,
            words,
            mask_of,
        )
        if is_missing is not None:
            drawn.flags.masked_fill_(is_missing, UNSAMPLED)
            for part in (drawn.chosen_logprob, drawn.top_ids, drawn.top_logprobs):
                part[is_missing] = 0
            # What was drawn without the mask is nobody's token: the slot keeps the one before.
            drawn.tokens.copy_(torch.where(is_missing, self.latest[slots.long()], drawn.tokens))
        self.latest.index_copy_(0, slots.long(), drawn.tokens)
        if self._counts is not None:
            counted = self._params[slots.long(), ADMIT_FLAGS] & HAS_PENALTIES
            if is_missing is not None:
                counted = counted.masked_fill(is_missing, 0)
            self._counts.index_put_((slots.long(), drawn.tokens.long()), counted, accumulate=True)
        return drawn

    def score(self, logits: Tensor, tokens: Tensor, slots: Tensor) -> Drawn:
        """How likely each of these tokens was by its row of `logits` [rows, vocab]. Nothing is drawn."""
        scored = self._room(logits)
        ops.score(
            scored.tokens,
            scored.flags,
            scored.chosen_logprob,
            scored.top_ids,
            scored.top_logprobs,
            logits,
            tokens,
            self._params[slots.long(), ADMIT_SCORE_TOP].contiguous(),
        )
        return scored

    def _room(self, logits: Tensor) -> Drawn:
        rows, device = logits.shape[0], logits.device
        return Drawn(
            tokens=torch.empty(rows, dtype=torch.int32, device=device),
            flags=torch.empty(rows, dtype=torch.int32, device=device),
            chosen_logprob=torch.zeros(rows, dtype=torch.float32, device=device),
            top_ids=torch.zeros(rows, self._top_logprobs, dtype=torch.int32, device=device),
            top_logprobs=torch.zeros(rows, self._top_logprobs, dtype=torch.float32, device=device),
        )

    def _admit_biases(self, frame: Frame) -> None:
        slots, within, source = _entries(frame.admits, BIAS_OFFSET, frame.admits[:, BIAS_COUNT])
        self._bias_ids = _widened(self._bias_ids, within)
        self._bias_values = _widened(self._bias_values, within)
        ids = np.ascontiguousarray(frame.biases[source, 0])
        values = np.ascontiguousarray(frame.biases[source, 1]).view(np.float32)
        at_slot, at, put_ids, put_values = self._transfer.up([slots, within, ids, values])
        self._bias_ids[at_slot, at] = put_ids
        self._bias_values[at_slot, at] = put_values

    def _admit_suppressed(self, frame: Frame) -> None:
        counts = frame.admits[:, SUPPRESS_COUNT] + frame.admits[:, TOLD_COUNT]
        slots, within, source = _entries(frame.admits, SUPPRESS_OFFSET, counts)
        self._suppressed = _widened(self._suppressed, within)
        at_slot, at, ids = self._transfer.up([slots, within, frame.suppressed[source]])
        self._suppressed[at_slot, at] = ids

    def _count_history(self, frame: Frame, counts: Tensor) -> None:
        """Marks the prompt's tokens, then counts the output's: a request that resumes has both."""
        slots, within, source = _entries(frame.admits, HISTORY_OFFSET, frame.admits[:, HISTORY_COUNT])
        is_prompt = within < np.repeat(frame.admits[:, ADMIT_PROMPT_LEN], frame.admits[:, HISTORY_COUNT])
        places = slots * self._vocab + frame.history[source]
        prompt, output = self._transfer.up([places[is_prompt], places[~is_prompt]])
        flat = counts.view(-1)
        flat[prompt] = IN_PROMPT
        flat.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))


def _entries(admits: Ints, offset: int, counts: Ints) -> tuple[Indices, Indices, Indices]:
    """Every entry that the admits own in another region: whose slot, which of the slot's, and where it stands there."""
    owner, within = spread(counts)
    return admits[owner, ADMIT_SLOT].astype(np.int64), within, admits[owner, offset] + within


def _widened(table: Tensor, within: NDArray[np.int64]) -> Tensor:
    """The table, wide enough for these columns: the next power of two, so that it grows a few times in all."""
    needed = int(within.max()) + 1
    if needed <= table.shape[1]:
        return table
    wider = table.new_zeros(table.shape[0], 1 << (needed - 1).bit_length())
    wider[:, : table.shape[1]] = table
    return wider
