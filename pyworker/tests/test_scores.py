"""Prompts that are scored: each token behind the first by its logits, in any chunks, and nothing else is drawn for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from pelton.loading.load import Loaded
from plans import CAPACITIES, Admit
from random_checkpoints import VOCAB, write
from tiny_router import Request, TinyRouter, eagerly, load_whole
from transformers import AutoModelForCausalLM

TOP = 3


def requests() -> list[Request]:
    """Some that are scored, under rules that change what is drawn and no score; and some that are not."""
    source = random.Random(4)
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in (9, 33, 1, 2, 21)]
    rules = [
        Admit(0),
        Admit(0, biases={5: 30.0}, score_top=TOP),
        Admit(0),
        Admit(0, repetition=1.3),
        Admit(0, logprobs=2),
    ]
    made = [Request(rule, prompt, 4) for rule, prompt in zip(rules, prompts, strict=True)]
    for request in made[:4]:
        request.is_scored = True
    return made


def expected(folder: Path, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities of all tokens behind each of the prompt's."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt])).logits[0]
    return logits.double().log_softmax(dim=-1)


@pytest.mark.parametrize("path", ["program", "eager"])
@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_prompts_are_scored_as_transformers_does(tmp_path: Path, variant: str, path: str) -> None:
    folder = write(tmp_path / variant, variant)
    loaded: Loaded = load_whole(folder)
    loaded = loaded if path == "program" else eagerly(loaded)
    plain = [Request(request.rules, request.prompt, 4) for request in requests()]
    TinyRouter(loaded, seed=1).run(*plain)
    for chunk in (None, 3, CAPACITIES["tokens"]):
        got = requests()
        TinyRouter(loaded, chunk, seed=2).run(*got)
        assert [request.output for request in got] == [request.output for request in plain], "scores draw nothing"
        for request in got:
            assert len(request.scores) == (len(request.prompt) - 1 if request.is_scored else 0)
        for request in got[:4]:
            exact = expected(folder, request.prompt)
            for at, (rank, chosen, top) in enumerate(request.scores):
                token = request.prompt[at + 1]
                assert chosen == pytest.approx(float(exact[at, token]), abs=2e-4)
                better = int((exact[at] > exact[at, token] + 1e-4).sum())
                assert better < rank <= 1 + int((exact[at] >= exact[at, token] - 1e-4).sum())
                for (_, logprob), true in zip(top[: request.rules.score_top], exact[at].topk(TOP).values, strict=False):
                    assert logprob == pytest.approx(float(true), abs=2e-4)
