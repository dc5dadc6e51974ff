"""Prompts that are given as embeddings: the tokens of the same prompt as ids, and those of transformers, in any chunks and any company."""

from __future__ import annotations

import random
from pathlib import Path

import borrowed_checkpoints
import pytest
import torch
from pelton.loading.load import Loaded
from plans import Admit
from random_checkpoints import VOCAB, write
from tiny_router import EMBEDS, Request, TinyRouter, eagerly, load_whole
from transformers import AutoModelForCausalLM

TOKENS = 32
# A plain one; scaled tables whose scale is part of what is given; one that scales what is given, too; learned positions.
VARIANTS = ["llama", "gemma2", "gemma3", "granite", "gpt2", "cohere-normed"]


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The oracle."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def own(folder: Path, ids: list[int], dtype: torch.dtype) -> list[list[float]]:
    """What the model itself puts in the place of tokens."""
    with torch.inference_mode():
        table = transformers_model(folder, dtype).get_input_embeddings()  # type: ignore[operator]
        rows: list[list[float]] = table(torch.tensor(ids)).float().tolist()
    return rows


def like(folder: Path, count: int, seed: int) -> list[list[float]]:
    """Embeddings that no token has, of the size of those that tokens have."""
    rows = torch.tensor(own(folder, list(range(VOCAB)), torch.float32))
    noise = torch.randn(count, rows.shape[1], generator=torch.Generator().manual_seed(seed))
    made: list[list[float]] = (noise * rows.std()).tolist()
    return made


@torch.inference_mode()
def greedy(folder: Path, embeds: list[list[float]], ids: list[int]) -> list[int]:
    """`TOKENS` greedy tokens of transformers behind embeddings and tokens."""
    model = transformers_model(folder)
    table = model.get_input_embeddings()  # type: ignore[operator]
    known = torch.tensor(embeds)[None]
    output: list[int] = []
    for token in [*ids, *[None] * TOKENS]:
        if token is None:
            logits = model(inputs_embeds=known).logits[0, -1]
            output.append(token := int(logits.argmax()))
        known = torch.cat([known, table(torch.tensor([[token]]))], dim=1)
    return output


def given(rules: Admit, embeds: list[list[float]], ids: list[int], tokens: int = TOKENS) -> Request:
    """A request whose prompt is embeddings, then tokens."""
    return Request(rules, [0] * len(embeds) + ids, tokens, embeds=embeds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_models_own_embeddings_give_the_tokens_of_the_same_prompt(
    tmp_path: Path, variant: str, dtype: torch.dtype
) -> None:
    folder = write(tmp_path / variant, variant, dtype)
    loaded: Loaded = load_whole(folder)
    assert loaded.embed_width == 64
    source = random.Random(variant)
    prompts = [[source.randrange(VOCAB) for _ in range(length)] for length in (1, 5, EMBEDS, 40, 71)]
    rules = [Admit(0), Admit(0, temperature=0.8, seed=5, logprobs=2), Admit(0), Admit(0, biases={7: 2.0}), Admit(0)]
    plain = [Request(rule, prompt, 12) for rule, prompt in zip(rules, prompts, strict=True)]
    expected = TinyRouter(loaded, seed=1).run(*plain)
    for runs in (loaded, eagerly(loaded)):
        for chunk in (None, 3, 48):
            # The third is given as tokens beside the others, the last as embeddings and tokens.
            cuts = [1, 5, 0, 40, 30]
            requests = [
                given(rule, own(folder, prompt[:cut], dtype), prompt[cut:], 12) if cut else Request(rule, prompt, 12)
                for rule, prompt, cut in zip(rules, prompts, cuts, strict=True)
            ]
            assert TinyRouter(runs, chunk, seed=2).run(*requests) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_embeddings_give_the_tokens_of_transformers(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / variant, variant)
    loaded: Loaded = load_whole(folder)
    prompts = [(like(folder, 23, 1), []), (like(folder, 7, 2), [5, 9, 100]), (like(folder, 60, 3), [])]
    expected = [greedy(folder, *prompt) for prompt in prompts]
    for runs in (loaded, eagerly(loaded)):
        assert TinyRouter(runs, seed=4).run(*(given(Admit(0), *prompt) for prompt in prompts)) == expected


@pytest.mark.parametrize("variant", borrowed_checkpoints.VARIANTS)
def test_a_borrowed_model_takes_them_too(tmp_path: Path, variant: str) -> None:
    folder = borrowed_checkpoints.write(tmp_path / variant, variant)
    loaded: Loaded = load_whole(folder)
    assert loaded.embed_width == 64
    prompts = [(like(folder, 11, 1), []), (like(folder, 21, 2), [5, 9, 100])]
    expected = [greedy(folder, *prompt) for prompt in prompts]
    beside = Request(Admit(0), [8, 7, 6], TOKENS)
    alone = TinyRouter(loaded, seed=3).run(Request(Admit(0), [8, 7, 6], TOKENS))
    requests = [*(given(Admit(0), *prompt) for prompt in prompts), beside]
    assert TinyRouter(loaded, seed=4).run(*requests) == expected + alone


def test_penalties_count_what_is_drawn_though_the_prompt_has_no_tokens(tmp_path: Path) -> None:
    folder = write(tmp_path / "llama", "llama")
    loaded: Loaded = load_whole(folder)
    embeds = like(folder, 12, 6)
    drawn = [
        TinyRouter(runs).run(given(Admit(0, biases={0: 60.0}, presence=2.0, repetition=rate), embeds, []))[0]
        for runs in (loaded, eagerly(loaded))
        for rate in (1.0, 50.0)
    ]
    assert drawn[0] == drawn[2] == [0] * TOKENS, "a bias that no presence penalty reaches"
    assert drawn[1] == drawn[3]
    assert drawn[1][0] == 0, "what holds a place is no token of the prompt"
    assert drawn[1].count(0) < TOKENS, "what was drawn counts"
