"""Pelton's way from a text to tokens against Hugging Face's `tokenizers` on one thread (goal W6).

Run by `frontend.py`; as a program it is the peer: `python bench/frontend/tokenise.py TOKENIZER.json DOCUMENTS.json PASSES`. Both sides are
processes of their own that tokenise the same documents of some 4 KB, one after the other, and tell their thread's processor time, which
depends less on what else the machine does than the clock.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
DOCUMENT_BYTES: Final = 4096
KIND_BYTES_MAX: Final = 1 << 20
PASSES: Final = 3
OURS, FAST, USUAL = "pelton", "encode_batch_fast", "encode_batch"


def texts() -> dict[str, list[str]]:
    """Documents by kind, from the repository itself."""
    code = [path for room in ("router", "pyworker") for path in sorted((ROOT / room).rglob("*.[rp][sy]"))]
    prose = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    # The first article of the Universal Declaration of Human Rights in eleven languages, in any order.
    article, draw = (HERE / "languages.txt").read_text().splitlines(), random.Random(7)
    many = " ".join(draw.choice(article) for _ in range(KIND_BYTES_MAX // 250))
    return {
        "prose": _documents(path.read_text() for path in prose),
        "code": _documents(path.read_text() for path in code),
        "json": _documents(path.read_text() for path in sorted((ROOT / "bench/results").glob("*.json"))),
        "languages": [many[at : at + DOCUMENT_BYTES // 2] for at in range(0, len(many), DOCUMENT_BYTES // 2)],
    }


def _documents(files: Iterable[str]) -> list[str]:
    """Whole lines, until they are long enough."""
    documents, current, size = [], "", 0
    for text in files:
        for line in text.splitlines(keepends=True):
            current += line
            if len(current) >= DOCUMENT_BYTES:
                documents.append(current)
                size += len(current)
                current = ""
                if size > KIND_BYTES_MAX:
                    return documents
    return [*documents, current] if current else documents


def compare(model: Path, folder: Path, rounds: int, documents_max: int | None = None) -> dict[str, Any]:
    """Medians over the rounds, of each kind of text."""
    # With the features of the whole workspace, as the tests have built it.
    build = ["cargo", "build", "--release", "--locked", "-q", "--workspace", "--example", "bench_tokenise"]
    subprocess.run(build, check=True, cwd=ROOT)
    one_thread = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    kinds = {kind: documents[:documents_max] for kind, documents in texts().items()}
    rates: dict[str, dict[str, list[float]]] = {kind: {OURS: [], FAST: [], USUAL: []} for kind in kinds}
    for kind, documents in kinds.items():
        (folder / f"{kind}.json").write_text(json.dumps(documents, ensure_ascii=False))
    for number in range(rounds):
        for kind, documents in kinds.items():
            size, tail = sum(len(text.encode()) for text in documents), [str(folder / f"{kind}.json"), str(PASSES)]
            ours = _told([str(ROOT / "target/release/examples/bench_tokenise"), str(model), *tail], one_thread)
            theirs = _told([sys.executable, __file__, str(model / "tokenizer.json"), *tail], one_thread)
            assert (ours["tokens"], ours["sum"]) == (theirs["tokens"], theirs["sum"]), f"{kind}: other tokens"
            for way, times in ((OURS, ours["ns"]), (FAST, theirs[FAST]), (USUAL, theirs[USUAL])):
                rates[kind][way].append(size / median(times) * 1e3)
        print(f"tokeniser {number + 1}/{rounds}", file=sys.stderr, flush=True)
    result = {}
    for kind, ways in rates.items():
        rate = {way: round(median(of_it), 3) for way, of_it in ways.items()}
        # The rounds' own ratios, and their median: both sides of a round met the same machine.
        over = {
            way: round(median(ours / theirs for ours, theirs in zip(ways[OURS], ways[way], strict=True)), 3)
            for way in (FAST, USUAL)
        }
        size = sum(len(text.encode()) for text in kinds[kind])
        result[kind] = {"bytes": size, "mb_per_cpu_s": rate, "pelton_over": over}
    return result


def _told(command: list[str], env: dict[str, str]) -> Any:
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def peer(tokenizer_file: str, documents_file: str, passes: int) -> dict[str, Any]:
    """Its fastest way, and the one that `transformers` goes, in turns; each without making Python lists of the ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)
    documents: list[str] = json.loads(Path(documents_file).read_text())
    ways = {FAST: tokenizer.encode_batch_fast, USUAL: tokenizer.encode_batch}
    told: dict[str, Any] = {way: [] for way in ways}
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    told["tokens"] = sum(len(one.ids) for one in encoded)
    told["sum"] = 0
    for one in encoded:
        for token in one.ids:
            told["sum"] = (told["sum"] * 31 + token) % (1 << 64)
    for _ in range(passes):
        for way, encode in ways.items():
            began = time.thread_time_ns()
            for document in documents:
                encode([document], add_special_tokens=False)
            told[way].append(time.thread_time_ns() - began)
    return told


if __name__ == "__main__":
    print(json.dumps(peer(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
