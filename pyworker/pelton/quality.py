"""`python -m pelton.quality FOLDER --quantize X < ids`: what quantised weights change about a model's predictions. Called by `pelton bench
quality`, which tokenises a text.

The text is cut into windows; both models predict every token of a window from those before it. Of two distributions the KL
divergence KL(plain ‖ quantised) is how many nats a code made for the quantised model wastes on what the plain one draws. One
model is in memory at a time: the plain one's log-probabilities wait in a temporary file.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from pelton.command_line import Parser, end_when_told
from pelton.inspect import decode_rows
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load, load_whole
from pelton.loading.wish import Wish
from pelton.models.model import LanguageModel

BLOCK = 32
ROWS = 32  # of a window that stand in float64 at a time: 64 MB of a vocabulary of 256,000


@dataclass(frozen=True)
class Quality:
    """Over all predictions."""

    quantize: str
    plain: str
    quantised: str
    predictions: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    agreement: float
    """Share of the predictions whose likeliest token is the same."""
    perplexity_plain: float
    perplexity_quantised: float
    weights_bytes_plain: int
    weights_bytes_quantised: int


def main(arguments: list[str] | None = None, ids_from: IO[str] = sys.stdin) -> int:
    """Prints; 1 if the model cannot be loaded so."""
    parser = Parser("pelton bench quality", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quantize", required=True)
    parser.add_argument("--quantize-skip", default="head")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.read(arguments)
    ids = [int(word) for word in ids_from.read().split()]
    if len(ids) < 2:
        print("pelton bench quality: the text has fewer than 2 tokens; give a longer one (--text)")
        return 1
    wishes = [
        Wish(
            options.folder,
            dtype=options.dtype,
            threads=options.threads,
            max_model_len=min(options.window, len(ids)),
            slots=1,
            token_budget=options.window,
            block_size=BLOCK,
            device="cpu",
            quantize=quantize,
            quantize_skip=skipped,
            trust_remote_code=options.trust_remote_code,
            task="generate",
        )
        for quantize, skipped in (("auto", ""), (options.quantize, options.quantize_skip))
    ]
    try:
        quality = compare(wishes[0], wishes[1], ids)
    except LoadError as error:
        # Loading calls the context what a server does; here it is the window.
        print(f"pelton bench quality: {error}".replace("--max-model-len", "--window"))
        return 1
    print(table(quality))
    if options.json:
        options.json.write_text(json.dumps(asdict(quality), indent=1) + "\n")
    return 0


def compare(plain: Wish, quantised: Wish, ids: list[int]) -> Quality:
    """Both models over `ids`, one after the other."""
    _refuse_early(quantised)
    count = sum(len(window) - 1 for window in windows(ids, plain.max_model_len))
    loaded = load_whole(plain)
    about, size = loaded.numerics_id, loaded.budget.weights_bytes
    stored = _kept(count, loaded.model.config.vocab)
    done, losses = 0, []
    for logs, window in predictions(loaded, ids):
        stored[done : done + len(logs)] = logs.numpy()
        done += len(logs)
        losses.append(_losses(logs, window))
    del loaded
    gc.collect()
    loaded = load_whole(quantised)
    done, divergences, other_losses, same = 0, [], [], 0
    for logs, window in predictions(loaded, ids):
        for start in range(0, len(logs), ROWS):
            rows = logs[start : start + ROWS].double()
            expected = torch.from_numpy(stored[done : done + len(rows)]).double()
            done += len(rows)
            divergences.append((expected.exp() * (expected - rows)).sum(dim=1))
            same += int((expected.argmax(dim=1) == rows.argmax(dim=1)).sum())
        other_losses.append(_losses(logs, window))
    kl = torch.cat(divergences)
    return Quality(
        quantize=quantised.quantize,
        plain=about,
        quantised=loaded.numerics_id,
        predictions=count,
        kl_mean=float(kl.mean()),
        kl_median=float(kl.median()),
        kl_p99=float(kl.quantile(0.99)),
        agreement=same / count,
        perplexity_plain=math.exp(float(torch.cat(losses).mean())),
        perplexity_quantised=math.exp(float(torch.cat(other_losses).mean())),
        weights_bytes_plain=size,
        weights_bytes_quantised=loaded.budget.weights_bytes,
    )


def windows(ids: list[int], length: int) -> Iterator[list[int]]:
    """Pieces of at most so many tokens; one token alone predicts nothing that is known."""
    for start in range(0, len(ids), length):
        window = ids[start : start + length]
        if len(window) > 1:
            yield window


@torch.inference_mode()
def predictions(loaded: Loaded, ids: list[int]) -> Iterator[tuple[Tensor, list[int]]]:
    """Log-probabilities after each token of a window but its last: float32 [tokens - 1, vocab]."""
    model = loaded.model
    assert isinstance(model, LanguageModel), "loaded to generate"
    for window in windows(ids, loaded.budget.max_model_len):
        rows = decode_rows(loaded, rows=1, tokens=len(window), context=0)
        rows.step.ids.copy_(torch.tensor(window))
        yield torch.log_softmax(model.logits(rows.step, torch.arange(len(window) - 1)), dim=1), window


def table(quality: Quality) -> str:
    """For a reader."""
    smaller = quality.weights_bytes_plain / quality.weights_bytes_quantised
    return "\n".join(
        [
            f"{quality.quantised} against {quality.plain}, {quality.predictions} predictions",
            f"  KL divergence         mean {quality.kl_mean:.5f}, median {quality.kl_median:.5f}, p99 {quality.kl_p99:.5f} nats",
            f"  likeliest token       the same in {quality.agreement:.2%}",
            f"  perplexity            {quality.perplexity_quantised:.4f} against {quality.perplexity_plain:.4f}",
            f"  weights, with tables  {quality.weights_bytes_quantised / 1e6:.1f} MB, {smaller:.2f} times smaller",
        ]
    )


def _refuse_early(wish: Wish) -> None:
    """Raises what loading would, as far as it knows before it reads weights."""
    for progress in load(wish):
        if progress.budget is not None:
            return


def _kept(rows: int, vocab: int) -> np.memmap[tuple[int, int], np.dtype[np.float32]]:
    """Room in a file without a name. It is taken at once: writing to a map of a disk that has become full ends the process."""
    size = rows * vocab * np.dtype(np.float32).itemsize
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.float32, "r+", shape=(rows, vocab))
    except OSError as error:
        raise LoadError(
            f"a temporary file for {size / 1e6:.1f} MB of log-probabilities: {error.strerror}; set TMPDIR to a folder with room, or "
            "--tokens to fewer"
        ) from error


def _losses(logs: Tensor, window: list[int]) -> Tensor:
    return -logs.gather(1, torch.tensor(window[1:])[:, None])[:, 0].double()


if __name__ == "__main__":
    end_when_told()
    raise SystemExit(main())
