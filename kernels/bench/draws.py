"""From logits to tokens."""

from __future__ import annotations

import torch
from pelton_kernels import admit, ops
from timing import Bench
from torch import Tensor


def sample(bench: Bench) -> None:
    s = bench.sizes
    for name, words in (
        ("greedy", (0.0, 0, 1.0)),
        ("temperature", (1.0, 0, 1.0)),
        ("top-k", (1.0, 50, 1.0)),
        ("top-p", (1.0, 0, 0.9)),
        ("top-k, top-p", (1.0, 50, 0.9)),
        ("penalties", (1.0, 50, 0.9)),
        ("mask", (1.0, 50, 0.9)),
        ("5 log-probabilities", (1.0, 50, 0.9)),
    ):
        rows, shown = 8, 5 if "log" in name else 0
        params = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
        values = params.view(torch.float32)
        values[:, admit.TEMPERATURE], params[:, admit.TOP_K], values[:, admit.TOP_P] = words
        params[:, admit.SEED_LO] = torch.arange(rows)
        logits = 3 * torch.randn(rows, s.vocabulary)
        tokens, flags, slots = (torch.arange(rows, dtype=torch.int32) for _ in range(3))
        empty = torch.zeros(rows, 0)
        counts = masks = mask_of = None
        if name == "penalties":
            params[:, admit.FLAGS], values[:, admit.REPETITION] = admit.PENALTIES, 1.1
            counts = torch.zeros(rows, s.vocabulary, dtype=torch.int32)
            counts[:, torch.randint(0, s.vocabulary, (500,))] = 1
        if name == "mask":
            masks, mask_of = torch.randint(-(1 << 31), 1 << 31, (rows, -(-s.vocabulary // 32))).int(), slots.clone()
        if shown:
            params[:, admit.FLAGS], params[:, admit.TOP_LOGPROBS] = admit.LOGPROBS, shown
        top = torch.zeros(rows, shown)
        nbytes = sum(tensor.nbytes for tensor in (logits, counts, masks) if tensor is not None)

        def call(
            tokens: Tensor = tokens, flags: Tensor = flags, slots: Tensor = slots, params: Tensor = params,
            logits: Tensor = logits, empty: Tensor = empty, counts: Tensor | None = counts, masks: Tensor | None = masks,
            mask_of: Tensor | None = mask_of, top: Tensor = top,
        ) -> Tensor:  # fmt: skip
            none = empty.int()
            chosen = torch.empty(len(slots))
            ops.sample(
                tokens,
                flags,
                chosen,
                top.int(),
                top.clone(),
                logits,
                params,
                slots,
                slots.clone(),
                counts,
                none,
                empty,
                none,
                masks,
                mask_of,
            )
            return tokens

        bench.measure(f"sample {name}", f"[{rows}, {s.vocabulary}]", call, nbytes=nbytes)


def score(bench: Bench) -> None:
    """How likely given tokens were, and the five likeliest."""
    rows, shown, vocabulary = 8, 5, bench.sizes.vocabulary
    ranks, flags = (torch.empty(rows, dtype=torch.int32) for _ in range(2))
    chosen, top_ids, top = torch.empty(rows), torch.empty(rows, shown, dtype=torch.int32), torch.empty(rows, shown)
    logits, given = 3 * torch.randn(rows, vocabulary), torch.randint(0, vocabulary, (rows,), dtype=torch.int32)
    wanted = torch.full((rows,), shown, dtype=torch.int32)

    def call() -> Tensor:
        ops.score(ranks, flags, chosen, top_ids, top, logits, given, wanted)
        return chosen

    bench.measure("score", f"[{rows}, {vocabulary}]", call, nbytes=logits.nbytes)
