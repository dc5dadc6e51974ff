"""From logits to tokens, every row as if it were alone.

1. Log-probabilities of the raw logits.
2. Repetition penalty (tokens of prompt and output), frequency and presence penalties (tokens of the output).
3. Biases; tokens outside of the row's mask become -inf; so do suppressed tokens while the position lies below the row's limit,
   unless the mask allows no other.
4. Temperature 0: the greatest logit. Else scores s = (logit - greatest) / temperature.
5. top-k, then top-p among what is left, then min-p. Better is the greater score, and of equals the lower id.
6. The greatest s + g among what is left, with Gumbel noise g of (seed, position, token). Of equals the lowest id wins.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pelton_kernels import admit
from pelton_kernels.reference.philox import philox4x32


class Sampled(NamedTuple):
    """What `ops.sample` writes, and what each token scored, so that a test can see how close a second token came."""

    tokens: Tensor
    flags: Tensor
    chosen: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    noisy_scores: Tensor


def sample(
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
    top: int,
) -> Sampled:
    """Shapes as in `ops.sample`; `top` is the width of the likeliest tokens' lists."""
    slot = slots.long()
    words = params[slot]
    values = words.view(torch.float32)
    adjusted = _adjust(
        logits,
        words,
        values,
        slot,
        positions,
        counts,
        bias_ids,
        bias_values,
        suppressed,
        _allowed(logits, masks, mask_of),
        mask_of >= 0,
    )
    greatest = adjusted.amax(dim=1, keepdim=True)
    is_good = logits.isfinite().all(dim=1) & greatest.isfinite()[:, 0]

    temperature = values[:, admit.TEMPERATURE, None]
    is_greedy = ~(temperature > 0)
    scores = (adjusted - greatest) / temperature.masked_fill(is_greedy, 1.0)
    kept = _select(scores, words, values)
    noise = gumbel(words, positions, logits.shape[1])
    noisy = torch.where(is_greedy, scores, (scores + noise).masked_fill(~kept, -torch.inf))
    tokens = torch.where(is_good, _lowest_of_greatest(noisy), 0)

    logprobs = logits.double().log_softmax(dim=1)
    wants = (words[:, admit.FLAGS] & admit.LOGPROBS != 0) & is_good
    chosen = torch.where(wants, logprobs.gather(1, tokens[:, None])[:, 0], 0.0)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :top]
    order = _told_or(torch.nn.functional.pad(order, (0, top - order.shape[1])), words, slot, suppressed)
    is_asked = wants[:, None] & (torch.arange(top, device=logits.device) < words[:, admit.TOP_LOGPROBS, None])
    is_told = words[:, admit.TOLD_COUNT, None] > 0
    is_asked &= is_told | (torch.arange(top, device=logits.device) < logits.shape[1])
    return Sampled(
        tokens.int(),
        torch.where(is_good, 0, admit.NOT_FINITE).int(),
        chosen.float(),
        torch.where(is_asked, order, 0).int(),
        torch.where(is_asked, logprobs.gather(1, order), 0.0).float(),
        noisy,
    )


def _told_or(order: Tensor, words: Tensor, slot: Tensor, suppressed: Tensor) -> Tensor:
    """The ids of a row's own choice, where it has any: they stand behind the suppressed ones. [R, top]"""
    if suppressed.shape[1] == 0:
        return order
    columns = torch.arange(order.shape[1], device=order.device)[None]
    at = (words[:, admit.SUPPRESS_COUNT, None] + columns).clamp(max=suppressed.shape[1] - 1).long()
    told = suppressed[slot].long().gather(1, at)
    return torch.where(columns < words[:, admit.TOLD_COUNT, None], told, order)


class Scored(NamedTuple):
    """What `ops.score` writes."""

    ranks: Tensor
    flags: Tensor
    chosen: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def score(logits: Tensor, given: Tensor, wanted: Tensor, top: int) -> Scored:
    """Shapes as in `ops.score`; `top` is the width of the likeliest tokens' lists."""
    is_good = logits.isfinite().all(dim=1)
    at = given.long()[:, None]
    logprobs = logits.double().log_softmax(dim=1)
    ids = torch.arange(logits.shape[1], device=logits.device)
    own = logits.gather(1, at)
    ranks = 1 + ((logits > own) | ((logits == own) & (ids < at))).sum(dim=1)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :top]
    order = torch.nn.functional.pad(order, (0, top - order.shape[1]))
    columns = torch.arange(top, device=logits.device)
    is_asked = is_good[:, None] & (columns < wanted[:, None]) & (columns < logits.shape[1])
    return Scored(
        torch.where(is_good, ranks, 0).int(),
        torch.where(is_good, 0, admit.NOT_FINITE).int(),
        torch.where(is_good, logprobs.gather(1, at)[:, 0], 0.0).float(),
        torch.where(is_asked, order, 0).int(),
        torch.where(is_asked, logprobs.gather(1, order), 0.0).float(),
    )


def gumbel(words: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """-ln(-ln(1 - v)) for every row and token: [R, V], float32.

    v is made of the upper 31 bits of a word of Philox, whose key is the seed. 64 tokens share 16 counters: token t has word
    `t // 16 % 4` at the counter (t // 64 * 16 + t % 16, position, 0, 0). v stands for 1 - u, because great noise comes
    from u near 1, where v has more bits.
    """
    blocks = (vocabulary + 63) // 64
    first = torch.arange(16 * blocks, device=words.device)[None]
    position = positions.long()[:, None] & 0xFFFF_FFFF
    zero = torch.zeros_like(position)
    seed = words[:, admit.SEED_LO, None].long() & 0xFFFF_FFFF, words[:, admit.SEED_HI, None].long() & 0xFFFF_FFFF
    four = philox4x32((first, position, zero, zero), seed)
    word = torch.stack([word.expand(len(words), -1).reshape(-1, blocks, 16) for word in four], dim=2)
    v = ((word.flatten(1)[:, :vocabulary] >> 1).float() + 0.5) * 2.0**-31
    v = v.clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-v.double())).float()


def _adjust(
    logits: Tensor,
    words: Tensor,
    values: Tensor,
    slot: Tensor,
    positions: Tensor,
    counts: Tensor | None,
    bias_ids: Tensor,
    bias_values: Tensor,
    suppressed: Tensor,
    allowed: Tensor,
    is_masked: Tensor,
) -> Tensor:
    adjusted = logits.clone()
    if counts is not None:
        count = torch.where(words[:, admit.FLAGS, None] & admit.PENALTIES != 0, counts[slot], 0)
        written = count & ~admit.IN_PROMPT
        repetition, presence, frequency = (
            values[:, word, None] for word in (admit.REPETITION, admit.PRESENCE, admit.FREQUENCY)
        )
        repeated = torch.where(adjusted > 0, adjusted / repetition, adjusted * repetition)
        adjusted = torch.where(count != 0, repeated, adjusted)
        adjusted = torch.where(written > 0, adjusted - frequency * written.float() - presence, adjusted)
    for column in range(bias_ids.shape[1]):  # one by one, so that an id that stands twice counts twice, in order
        rows = (column < words[:, admit.BIAS_COUNT]).nonzero()[:, 0]
        adjusted[rows, bias_ids[slot[rows], column].long()] += bias_values[slot[rows], column]
    is_suppressing = positions < words[:, admit.SUPPRESS_UNTIL]
    is_suppressed = torch.zeros_like(allowed)
    for column in range(suppressed.shape[1]):
        rows = (is_suppressing & (column < words[:, admit.SUPPRESS_COUNT])).nonzero()[:, 0]
        is_suppressed[rows, suppressed[slot[rows], column].long()] = True
    leaves_none = is_masked[:, None] & ~(allowed & ~is_suppressed).any(dim=1, keepdim=True)
    return adjusted.masked_fill(~allowed | (is_suppressed & ~leaves_none), -torch.inf)


def _allowed(logits: Tensor, masks: Tensor, mask_of: Tensor) -> Tensor:
    """What each row's mask allows: bool [R, V]; all where it has none."""
    bits = (masks[:, :, None] >> torch.arange(32, device=masks.device)) & 1
    whole = torch.ones(1, logits.shape[1], dtype=torch.bool, device=logits.device)
    table = torch.cat([whole, bits.flatten(1)[:, : logits.shape[1]].bool()])
    return table[mask_of.long().clamp(min=-1) + 1]


def _select(scores: Tensor, words: Tensor, values: Tensor) -> Tensor:
    """Which tokens top-k, top-p and min-p leave: bool [R, V]."""
    ordered, ids = scores.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(scores.shape[1], device=scores.device)[None]
    top_k = words[:, admit.TOP_K, None].long() & 0xFFFF_FFFF
    kept = (ordered > -torch.inf) & ((top_k == 0) | (rank < top_k))
    # Weights are whole numbers, multiples of 2^-40 of the greatest, so that their sums are exact in any order.
    weights = torch.where(kept, (torch.exp(ordered).double() * 2.0**40).long(), 0)
    total = weights.sum(dim=1, keepdim=True)
    top_p = values[:, admit.TOP_P, None].double()
    enough = torch.ceil(top_p * total.double()).long().clamp(min=1)
    kept &= (top_p >= 1) | (weights.cumsum(dim=1) - weights < enough)
    min_p = values[:, admit.MIN_P, None]
    least = torch.log(min_p.double().clamp(min=1e-300)).clamp(max=0).float()
    kept &= (min_p <= 0) | (ordered >= least)
    return torch.zeros_like(kept).scatter(1, ids, kept)


def _lowest_of_greatest(values: Tensor) -> Tensor:
    ids = torch.arange(values.shape[1], device=values.device)
    is_greatest = values == values.amax(dim=1, keepdim=True)
    return torch.where(is_greatest, ids, values.shape[1]).amin(dim=1).clamp(max=values.shape[1] - 1)
