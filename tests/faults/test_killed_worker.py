"""A worker that dies is replaced; nobody gets an error and no token changes."""

from __future__ import annotations

from pathlib import Path

from support.load import disturbed, prompts, together
from support.server import serving

STREAMS = 32
WORDS = "start: WORD{200,}\nWORD: /[a-z]{1,6}[ ,.]/"
TOKENS = 360  # enough for three deaths in the midst of them


def test_32_streams_survive_the_worker(checkpoints: Path) -> None:
    jobs: list[dict[str, object]] = [{"prompt": p, "max_tokens": TOKENS} for p in prompts(STREAMS, seed=3)]
    for job in jobs[::4]:
        job["structured_outputs"] = {"grammar": WORDS}  # a grammar's state outlives the worker, or is made anew
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512") as server:
        undisturbed = [done.tokens for done in together(server, jobs)]
        for kills in (1, 3):
            assert disturbed(server, jobs, kills) == undisturbed, f"{kills} kills"
        assert server.metric("pelton_worker_restarts_total") == 4
        assert server.get("/readyz").status_code == 200
