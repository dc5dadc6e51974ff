"""Who stays in the prefix cache when there is not room for all: what a client wants to be kept, and each tenant's share."""

from __future__ import annotations

import random
from pathlib import Path

from support.checkpoints import SPECIALS, VOCAB
from support.server import Server, serving

MODEL = "llama-gqa"
PREFIX = 241
WHOLE_BLOCKS = 240  # all but the last token
# 3 layers, keys and values, 2 heads of 16 float32: 6 KiB a block of 8 tokens, 80 blocks, of which one request here takes 32.
FLAGS = ("--max-model-len", "512", "--block-size", "8", "--kv-memory", str(80 * 6144), "--device", "cpu")


def cached(server: Server, seed: int, key: str = "", **fields: object) -> int:
    """Asks with a prompt of the seed's, and says how much of it was there."""
    rng = random.Random(seed)
    prompt = [rng.randrange(len(SPECIALS), VOCAB) for _ in range(PREFIX)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **fields}
    answer = server.post("/v1/completions", body, headers={"x-api-key": key} if key else {})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_prompt_is_kept_if_its_client_wants_it(checkpoints: Path) -> None:
    with serving(checkpoints / MODEL, *FLAGS, "--kv-keep-share", "50") as server:
        assert cached(server, 1, prompt_cache_retention="24h") == 0
        assert cached(server, 2, prompt_cache_retention="in_memory") == 0
        for seed in range(100, 106):
            assert cached(server, seed) == 0
        assert cached(server, 2) == 0
        assert cached(server, 1) >= WHOLE_BLOCKS
        assert server.metric("pelton_kept_prompts") == 1
        assert server.metric("pelton_kept_blocks") == WHOLE_BLOCKS // 8


def test_a_tenant_has_its_share_and_takes_nobody_elses(checkpoints: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\nother\n")
    flags = (*FLAGS, "--kv-tenant-share", "30", "--kv-keep-share", "0", "--api-key-file", str(keys))
    with serving(checkpoints / MODEL, *flags) as server:
        assert cached(server, 1, "one") == 0
        for seed in range(100, 106):
            assert cached(server, seed, "other") == 0
        assert cached(server, 1, "one") == 8 * (80 * 30 // 100), "its own share of what it left, and all of that"
        body = {"model": MODEL, "prompt": "a", "prompt_cache_retention": "24h"}
        refused = server.post("/v1/completions", body, headers={"x-api-key": "one"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_cache_retention")
