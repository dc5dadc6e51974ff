"""Serves a random-weight model end to end on the card (dry: on the processor) and compares its tokens with `transformers`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.checkpoints import VARIANTS, greedy, make_checkpoint  # noqa: E402
from support.server import free_port  # noqa: E402

TOKENS = 48
READY_WITHIN_S = 180.0


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """One request; the JSON answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def check(variant: str, device: str, folder: Path) -> None:
    """Greedy tokens of the server and of transformers, in float32, for a few prompts at once."""
    checkpoint = make_checkpoint(folder / variant, next(v for v in VARIANTS if v.name == variant))
    port = free_port()
    command = [sys.executable, "-c", "import sys; from pelton.command import main; sys.exit(main())"]
    server = subprocess.Popen([*command, "serve", str(checkpoint), "--port", str(port), "--device", device])
    try:
        give_up = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                ask(f"http://127.0.0.1:{port}/readyz")
                break
            except OSError as error:
                if server.poll() is not None or time.monotonic() > give_up:
                    raise SystemExit(f"the server of {variant} did not get ready: {error}") from error
                time.sleep(0.1)
        prompts = [[7, 8, 9], list(range(20, 90)), [300], list(range(20, 90))]
        body = {"prompt": prompts, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        answer = ask(f"http://127.0.0.1:{port}/v1/completions", body)
        for prompt, choice in zip(prompts, answer["choices"], strict=True):
            assert choice["token_ids"] == greedy(checkpoint, prompt, TOKENS), f"{variant}: {prompt[:3]}..."
        print(f"{variant} on {device}: {len(prompts)} x {TOKENS} tokens as transformers", flush=True)
    finally:
        server.terminate()
        assert server.wait(timeout=60) == 0, "the server did not end well"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        for variant in ("qwen3",) if args.dry else ("llama-gqa", "qwen3"):
            check(variant, "cpu" if args.dry else "cuda", Path(folder))


if __name__ == "__main__":
    main()
