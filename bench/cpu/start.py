"""From the command to the first token over HTTP: without and with a kept model (`--model-cache`), in turns.

    .venv/bin/python bench/cpu/start.py [MODEL] [--repeat 5] [--idle 15] [--json bench/results/start-DATE.json]

Each pair has a cache folder of its own: its first start makes the model from the checkpoint and keeps it, its second one reads it.
Files are in the machine's page cache after the first pair, which is not counted. With `--idle` nothing runs for so long before each
start: some virtual machines give back to their hosts what is free, and get it again slowly.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from pelton import machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.server import Server, client  # noqa: E402

TRY_EVERY_S = 0.005
BODY = {"prompt": "Hello", "max_tokens": 1}


def first_token_s(model: str | None, cache: Path, idle_s: float) -> float:
    """Starts a server, asks until it answers, and ends it once it has kept its model."""
    time.sleep(idle_s)
    began = time.monotonic()
    server = Server(model, "--model-cache", str(cache))
    try:
        while True:
            assert server.process.poll() is None, "\n".join(server.log)
            with contextlib.suppress(httpx.TransportError), client() as one:
                if one.post(f"{server.url}/v1/completions", json=BODY).status_code == 200:
                    break
            time.sleep(TRY_EVERY_S)
        took = time.monotonic() - began
        server.wait_until("the model is kept", lambda: list(cache.glob("*.kept")))
        return took
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a folder in Hugging Face layout; the demo model if not given")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--idle", type=float, default=0.0, help="seconds before each start")
    parser.add_argument(
        "--tiny", action="store_true", help="proves that it runs: one pair, whatever is in the page cache"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    made, kept = [], []
    first = 0 if options.tiny else -1
    for pair in range(first, 1 if options.tiny else options.repeat):
        with tempfile.TemporaryDirectory(prefix="pelton-start-") as folder:
            times = [first_token_s(options.model, Path(folder), options.idle) for _ in range(2)]
        if pair >= 0:
            made.append(times[0])
            kept.append(times[1])
    result = {
        "made_s": round(statistics.median(made), 3),
        "kept_s": round(statistics.median(kept), 3),
        "kept_over_made": round(statistics.median(kept) / statistics.median(made), 3),
        "made_s_all": [round(took, 2) for took in made],
        "kept_s_all": [round(took, 2) for took in kept],
        "pairs": len(made),
        "idle_s": options.idle,
        "model": options.model or "demo",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine.description(),
    }
    print(json.dumps(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
