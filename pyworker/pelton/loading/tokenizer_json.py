"""`python -m pelton.loading.tokenizer_json FOLDER`: what a `tokenizer.json` of this model would say, on standard output.

The router calls it for checkpoints that have none: `transformers` reads their SentencePiece, tiktoken, tekken or
vocabulary files, never code of theirs. Exit code 1: standard error says why there is none, in its last line.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

SECONDS_MAX = 300  # what a hostile file may take; the largest of known vocabularies takes some 20


def tokenizer_json(folder: Path) -> str:
    """Raises `ValueError` with the reason."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"making one needs the package transformers: pip install 'pelton[transformers]' ({error})"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, use_fast=True)
    except Exception as error:  # whatever its readers stumble over is the file's fault
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"transformers cannot make one of the files here: {said}") from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.get_vocab_size() == 0:
        raise ValueError(
            f"transformers reads it by Python code alone ({type(tokenizer).__name__}), which is not served"
        )
    text: str = backend.to_str()
    return text


def main() -> int:
    """See the top of the file."""
    signal.alarm(SECONDS_MAX)
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries may print
    try:
        text = tokenizer_json(Path(sys.argv[1]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        out.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
