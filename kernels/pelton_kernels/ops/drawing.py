"""Ops on logits: drawing a token per row, and how likely given ones were."""

from __future__ import annotations

import torch
from torch import Tensor

from pelton_kernels import admit
from pelton_kernels.checks import expect, expect_dimensions, refuse
from pelton_kernels.ops.dispatch import kernels


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
    masks: Tensor | None = None,
    mask_of: Tensor | None = None,
) -> None:
    """Draws one token per row, each row as if it were alone; see `reference.sample` for the exact order of things.

    out_tokens, out_flags: int32 [R]; out_chosen: float32 [R]; out_top_ids, out_top_logprobs: [R, K];
    logits: float32 [R, V]; params: int32 [S, 24] (`admit`); slots, positions (of the tokens drawn): int32 [R];
    counts: int32 [S, V] or None; bias_ids, bias_values: [S, B]; suppressed: int32 [S, U]. K, B and U may be 0.
    masks: int32 [M, ceil(V / 32)], a bit per token, lowest first; mask_of: int32 [R], which mask a row is drawn within, or below
    0. None: no row has one.
    """
    expect_dimensions("logits", logits, 2)
    expect_dimensions("out_top_ids", out_top_ids, 2)
    expect_dimensions("params", params, 2)
    expect_dimensions("bias_ids", bias_ids, 2)
    expect_dimensions("suppressed", suppressed, 2)
    rows, vocabulary = logits.shape
    count, device = params.shape[0], logits.device
    if vocabulary == 0:
        raise refuse("logits", "empty", "a vocabulary of at least one token")
    expect("out_tokens", out_tokens, torch.int32, (rows,), device)
    expect("out_flags", out_flags, torch.int32, (rows,), device)
    expect("out_chosen", out_chosen, torch.float32, (rows,), device)
    expect("out_top_ids", out_top_ids, torch.int32, (rows, out_top_ids.shape[1]), device)
    expect("out_top_logprobs", out_top_logprobs, torch.float32, (rows, out_top_ids.shape[1]), device)
    expect("logits", logits, torch.float32, (rows, vocabulary), device)
    expect("params", params, torch.int32, (count, admit.WORDS), device)
    expect("slots", slots, torch.int32, (rows,), device)
    expect("positions", positions, torch.int32, (rows,), device)
    if counts is not None:
        expect("counts", counts, torch.int32, (count, vocabulary), device)
    expect("bias_ids", bias_ids, torch.int32, (count, bias_ids.shape[1]), device)
    expect("bias_values", bias_values, torch.float32, (count, bias_ids.shape[1]), device)
    expect("suppressed", suppressed, torch.int32, (count, suppressed.shape[1]), device)
    width = -(-vocabulary // 32)
    if masks is None:
        masks = torch.zeros(0, width, dtype=torch.int32, device=device)
    if mask_of is None:
        mask_of = torch.full((rows,), -1, dtype=torch.int32, device=device)
    expect_dimensions("masks", masks, 2)
    expect("masks", masks, torch.int32, (masks.shape[0], width), device)
    expect("mask_of", mask_of, torch.int32, (rows,), device)
    kernels(device).sample(
        out_tokens, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, params, slots, positions,
        counts, bias_ids, bias_values, suppressed, masks, mask_of,
    )  # fmt: skip


def score(
    out_ranks: Tensor,
    out_flags: Tensor,
    out_chosen: Tensor,
    out_top_ids: Tensor,
    out_top_logprobs: Tensor,
    logits: Tensor,
    given: Tensor,
    wanted: Tensor,
) -> None:
    """How likely each row's given token was by the raw logits, and which ones were likeliest.

    out_ranks, out_flags: int32 [R]; out_chosen: float32 [R]; out_top_ids, out_top_logprobs: [R, K]; logits: float32 [R, V];
    given: int32 [R]; wanted: int32 [R], how many of the likeliest are asked for, at most K. A rank is counted from 1, of equals
    the lower id comes first; what was not asked for is zero, and so is all of a row that is not finite, but for its flag.
    """
    expect_dimensions("logits", logits, 2)
    expect_dimensions("out_top_ids", out_top_ids, 2)
    (rows, vocabulary), device, top = logits.shape, logits.device, out_top_ids.shape[1]
    if vocabulary == 0:
        raise refuse("logits", "empty", "a vocabulary of at least one token")
    expect("out_ranks", out_ranks, torch.int32, (rows,), device)
    expect("out_flags", out_flags, torch.int32, (rows,), device)
    expect("out_chosen", out_chosen, torch.float32, (rows,), device)
    expect("out_top_ids", out_top_ids, torch.int32, (rows, top), device)
    expect("out_top_logprobs", out_top_logprobs, torch.float32, (rows, top), device)
    expect("logits", logits, torch.float32, (rows, vocabulary), device)
    expect("given", given, torch.int32, (rows,), device)
    expect("wanted", wanted, torch.int32, (rows,), device)
    kernels(device).score(
        out_ranks, out_flags, out_chosen, out_top_ids, out_top_logprobs, logits, given, wanted
    )  # fmt: skip
