"""Models against `transformers`: logits close, greedy tokens identical, and bit for bit the same in any company."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from pelton.loading.load import Loaded
from pelton.models.model import LanguageModel
from pelton.step import Step
from plans import Admit
from random_checkpoints import VARIANTS, VOCAB, greedy, logits, write
from tiny_router import Request, TinyRouter, load_whole

PROMPTS = [1, 5, 17, 40, 70, 131]  # tokens; B:SC2: one of exactly one token
TOKENS = 64


def prompts(seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(VOCAB) for _ in range(length)] for length in PROMPTS]


def forward(loaded: Loaded, tokens: list[int]) -> torch.Tensor:
    """Logits after each token, in one pass over blocks in reverse order."""
    size, count = loaded.kv.shape.block_size, len(tokens)
    kinds, width = len(loaded.kv.shape.kinds), -(-count // size)
    blocks = torch.arange(loaded.kv.blocks - 1, loaded.kv.blocks - 1 - kinds * width, -1).view(kinds, width)
    places = torch.arange(count)
    step = Step(
        ids=torch.tensor(tokens, dtype=torch.int32),
        positions=places.int(),
        kv_slots=blocks[:, places // size] * size + places % size,
        block_table=blocks[:, None].int(),
        row_offsets=torch.tensor([0, count], dtype=torch.int32),
        row_starts=torch.zeros(1, dtype=torch.int32),
        kv=loaded.kv,
    )
    with torch.inference_mode():
        assert isinstance(loaded.model, LanguageModel)
        return loaded.model.logits(step, places)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(checkpoints: Path, variant: str) -> None:
    tokens = prompts(1)[-1]
    # There the length of a request decides about dynamic angles, here that of the longest.
    loaded = load_whole(checkpoints / variant, max_model_len=len(tokens) if variant == "llama-dynamic" else 0)
    assert loaded.is_invariant, "the model is a program, all of whose calls have kernels"
    got, expected = forward(loaded, tokens), logits(checkpoints / variant, tokens)
    assert got.dtype == torch.float32
    # Sums of a few hundred float32 terms in another order, through three layers.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())


# There transformers turns keys by the length at their step, this server all of them by its context: see below.
BY_LENGTH = {"phi3-longrope", "llama-dynamic"}


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in BY_LENGTH])
def test_greedy_tokens_are_those_of_transformers_in_mixed_batches_with_chunked_prefill(
    checkpoints: Path, variant: str
) -> None:
    folder = checkpoints / variant
    expected = [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]
    router = TinyRouter(load_whole(folder), seed=3)
    assert router.run(*(Request(Admit(0), prompt, TOKENS) for prompt in prompts(2))) == expected


@pytest.mark.parametrize(("context", "length"), [(64, 30), (64, 1), (512, 80)])
def test_longrope_is_that_of_transformers_within_and_beyond_the_first_trainings_length(
    checkpoints: Path, context: int, length: int
) -> None:
    folder, prompt = checkpoints / "phi3-longrope", prompts(4)[-1][:length]
    router = TinyRouter(load_whole(folder, max_model_len=context))
    assert router.run(Request(Admit(0), prompt, 30)) == [greedy(folder, prompt, 30)]


def test_dynamic_rope_is_that_of_transformers_within_the_first_trainings_length(checkpoints: Path) -> None:
    folder, prompt = checkpoints / "llama-dynamic", prompts(4)[-1][:30]
    assert load_whole(folder).budget.max_model_len == 140, "what its factor makes of 70"
    router = TinyRouter(load_whole(folder, max_model_len=70))
    assert router.run(Request(Admit(0), prompt, 30)) == [greedy(folder, prompt, 30)]


def test_a_long_answer_holds_no_more_blocks_than_its_windows_touch(checkpoints: Path) -> None:
    loaded = load_whole(checkpoints / "gemma3")
    assert [kind.window for kind in loaded.kv.shape.kinds] == [None, 19, 19, 19, 19, 19, 19]
    router = TinyRouter(loaded, chunk=8)
    drawn = router.run(Request(Admit(0), [5], 300))
    assert drawn == [greedy(checkpoints / "gemma3", [5], 300)]
    # 301 tokens in blocks of 8 are 38 of the full layer; of a window of 19 tokens 4 at most, wherever it begins.
    assert router.held_max == 38 + 6 * 4


@pytest.fixture(scope="module", params=["llama-tied-biased", "qwen3", "gemma3", "gpt_neox", "cohere-normed"])
def bf16(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("bf16") / request.param
    loaded = load_whole(write(folder, request.param, torch.bfloat16))
    assert loaded.dtype == "bfloat16"
    return loaded


def seeded(seed: int) -> list[Request]:
    rules = [
        Admit(0, temperature=0.9, seed=seed + number, logprobs=3, top_p=0.95, repetition=1.1 if number % 2 else 1.0)
        for number in range(len(PROMPTS))
    ]
    return [Request(rule, prompt, 24) for rule, prompt in zip(rules, prompts(seed), strict=True)]


def test_in_bf16_tokens_and_log_probabilities_are_bit_for_bit_the_same_alone_in_a_batch_and_chunked(
    bf16: Loaded,
) -> None:
    alone = seeded(5)
    for request in alone:
        TinyRouter(bf16).run(request)
    for router in (TinyRouter(bf16, seed=6), TinyRouter(bf16, chunk=3), TinyRouter(bf16, chunk=48)):
        together = seeded(5)
        router.run(*together)
        assert [request.output for request in together] == [request.output for request in alone]
        assert [request.logprobs for request in together] == [request.logprobs for request in alone]


def test_a_replay_from_committed_tokens_goes_on_as_if_nothing_had_happened(bf16: Loaded) -> None:
    undisturbed = seeded(7)
    TinyRouter(bf16).run(*undisturbed)
    resumed = seeded(7)
    for number, request in enumerate(resumed):
        request.output = undisturbed[number].output[: 3 * number]
    TinyRouter(bf16, seed=8).run(*resumed)
    assert [request.output for request in resumed] == [request.output for request in undisturbed]


FAMILIES = sorted({family: name for name, (family, _) in reversed(VARIANTS.items())}.values())


@pytest.mark.parametrize("variant", FAMILIES)
def test_in_bf16_logits_are_as_close_as_those_of_transformers_and_the_argmax_is_right_where_rounding_leaves_it_clear(
    tmp_path: Path, variant: str
) -> None:
    folder = write(tmp_path / variant, variant, torch.bfloat16)
    tokens = [token for prompt in prompts(9) for token in prompt]
    true = logits(folder, tokens)  # in float32, of the same weights
    got, theirs = forward(load_whole(folder), tokens), logits(folder, tokens, torch.bfloat16)
    errors = (theirs - true).square()
    # The worst seen was 0.95 of theirs (GPT-NeoX): sums are rounded less often here.
    assert (got - true).square().mean() <= 1.1**2 * errors.mean()
    best = true.topk(2, dim=1).values
    # Where the best two are further apart than five and a half deviations of what rounding does to their difference.
    is_clear = best[:, 0] - best[:, 1] > 5.5 * (2 * errors.mean(1)).sqrt()
    assert is_clear.float().mean() > 0.5
    assert torch.equal(got.argmax(1)[is_clear], true.argmax(1)[is_clear])
