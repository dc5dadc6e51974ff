"""`python -m pelton.loading.tokenizer_json FOLDER`: what a `tokenizer.json` of this model would say, on standard output.

The router calls it for checkpoints that have none: `transformers` reads their SentencePiece, tiktoken, tekken or
vocabulary files, never code of theirs. Its added tokens have a member more, `names`, for what the router reads elsewhere of other
checkpoints: `bos_token` and the like. Exit code 1: standard error says why there is none, in its last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

SECONDS_MAX = 300  # what a hostile file may take; the largest of known vocabularies takes some 20
TEKKEN = "tekken.json"
TEKKEN_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""What its own library takes for these, whatever the file says; `transformers` takes nothing for them."""


def tokenizer_json(folder: Path) -> str:
    """Raises `ValueError` with the reason."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"making one needs the package transformers: pip install 'pelton[transformers]' ({error})"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_fast=True,
            mistral_format=False,  # the package mistral-common, where it is installed, makes no tokenizer.json
        )
    except Exception as error:  # whatever its readers stumble over is the file's fault
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"transformers cannot make one of the files here: {said}") from None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.get_vocab_size() == 0:
        raise ValueError(
            f"transformers reads it by Python code alone ({type(tokenizer).__name__}), which is not served"
        )
    names = {**(TEKKEN_NAMES if (folder / TEKKEN).exists() else {}), **tokenizer.special_tokens_map}
    made = json.loads(backend.to_str())
    for token in made["added_tokens"]:
        token["names"] = [name for name, content in names.items() if content == token["content"]]
    return json.dumps(made, ensure_ascii=False)


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
