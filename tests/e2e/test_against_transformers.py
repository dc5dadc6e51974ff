"""Greedy tokens are those of `transformers`: alone, in mixed batches, chunked, from the cache, after a replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import VARIANTS, greedy
from support.load import complete, disturbed, prompts, together
from support.server import serving

TOKENS = 64


@pytest.mark.parametrize("variant", [v.name for v in VARIANTS])
def test_greedy_tokens_are_identical_in_float32(checkpoints: Path, variant: str) -> None:
    folder = checkpoints / variant
    asked = prompts(8, seed=len(variant))
    expected = [greedy(folder, prompt, TOKENS) for prompt in asked]
    # A budget of 40 tokens cuts most prompts into chunks that run beside the others' decoding.
    with serving(folder, "--token-budget", "40", "--max-running", "6") as server:
        jobs = [{"prompt": prompt, "max_tokens": TOKENS} for prompt in asked]
        assert [done.tokens for done in together(server, jobs)] == expected, "in a mixed batch with chunked prefill"
        again = [complete(server, prompt, max_tokens=TOKENS) for prompt in asked]
        assert [done.tokens for done in again] == expected, "with the prefix cached"
        assert sum(done.cached for done in again) > 0, "the second round found nothing in the cache"
        assert all(done.cached < len(prompt) for done, prompt in zip(again, asked, strict=True))


@pytest.mark.parametrize("variant", ["llama-gqa", "qwen3"])
def test_greedy_tokens_are_identical_after_a_replay(checkpoints: Path, variant: str) -> None:
    folder = checkpoints / variant
    asked, tokens = prompts(6, seed=11), 320
    expected = [greedy(folder, prompt, tokens) for prompt in asked]
    with serving(folder, "--token-budget", "40", "--max-running", "6", "--max-model-len", "512") as server:
        jobs = [{"prompt": prompt, "max_tokens": tokens} for prompt in asked]
        assert disturbed(server, jobs, kills=1) == expected
        assert server.metric("pelton_requests_replayed_total") >= 1
