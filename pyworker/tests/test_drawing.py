"""What a request's rules do to its tokens, from the frame's records to the frame's results."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pelton.loading.load import Loaded
from plans import Admit
from random_checkpoints import VOCAB, logits
from tiny_router import Request, TinyRouter, eagerly, load_whole

PROMPT = [random.Random(11).randrange(VOCAB) for _ in range(9)]


@pytest.fixture(scope="module", params=["program", "eager"])
def loaded(request: pytest.FixtureRequest, checkpoints: Path) -> Loaded:
    loaded = load_whole(checkpoints / "llama")
    assert loaded.program
    return loaded if request.param == "program" else eagerly(loaded)


def says(loaded: Loaded, tokens: int = 16, **rules: Any) -> list[int]:
    return TinyRouter(loaded).run(Request(Admit(0, **rules), PROMPT, tokens))[0]


def test_a_bias_forces_and_forbids_tokens(loaded: Loaded) -> None:
    assert says(loaded, biases={17: 1000.0}) == [17] * 16
    greedy = says(loaded)
    assert not set(greedy) & set(says(loaded, biases=dict.fromkeys(greedy, -1000.0)))


def test_suppressed_tokens_are_not_drawn_before_their_time(loaded: Loaded) -> None:
    until = len(PROMPT) + 5
    drawn = says(loaded, biases={17: 1000.0}, suppressed=[17], suppress_until=until)
    assert [token == 17 for token in drawn] == [False] * 5 + [True] * 11


def test_tables_grow_while_other_requests_use_them(loaded: Loaded) -> None:
    few, many = {3: 50.0}, {token: 60.0 if token == 90 else -60.0 for token in range(60, 100)}
    requests = [Request(Admit(0, biases=few), PROMPT, 12), Request(Admit(0, biases=many), PROMPT, 12)]
    alone = [says(loaded, 12, biases=few), says(loaded, 12, biases=many)]
    assert TinyRouter(loaded).run(*requests) == alone


def test_a_slot_forgets_the_rules_of_its_last_request(loaded: Loaded) -> None:
    router = TinyRouter(loaded)
    router.run(Request(Admit(0, biases={17: 1000.0}, presence=2.0, suppressed=[5], suppress_until=99), PROMPT, 8))
    assert router.run(Request(Admit(0), PROMPT, 16))[0] == says(loaded)
    fresh = says(loaded, presence=1.5, frequency=0.5, repetition=1.3)
    assert router.run(Request(Admit(0, presence=1.5, frequency=0.5, repetition=1.3), PROMPT, 16))[0] == fresh


def test_a_strong_presence_penalty_never_repeats_the_output_but_may_repeat_the_prompt(loaded: Loaded) -> None:
    drawn = says(loaded, presence=1000.0, biases=dict.fromkeys(PROMPT, 100.0))
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) >= set(PROMPT)


def test_a_repetition_penalty_counts_the_prompt_too(loaded: Loaded) -> None:
    # Divided by a million, a liked token's logit is as good as 0; what never stood there keeps its own.
    drawn = says(loaded, repetition=1e6, biases={})
    assert not set(drawn) & set(PROMPT)


@pytest.mark.parametrize("done", [0, 1, 7, 15])
def test_penalties_of_a_resumed_request_count_prompt_and_output_apart(loaded: Loaded, done: int) -> None:
    rules: dict[str, Any] = {
        "presence": 0.9,
        "frequency": 0.7,
        "repetition": 1.2,
        "temperature": 0.8,
        "seed": (5 << 40) + 3,
    }
    whole = says(loaded, **rules)
    resumed = Request(Admit(0, **rules), PROMPT, 16, output=whole[:done])
    assert TinyRouter(loaded).run(resumed)[0] == whole


def test_log_probabilities_are_the_raw_models(loaded: Loaded, checkpoints: Path) -> None:
    request = Request(Admit(0, logprobs=3, temperature=0.7, seed=1, biases={17: 3.0}), PROMPT, 6)
    TinyRouter(loaded).run(request)
    expected = logits(checkpoints / "llama", PROMPT + request.output).log_softmax(1)[len(PROMPT) - 1 : -1]
    for token, (chosen, top), row in zip(request.output, request.logprobs, expected, strict=True):
        assert chosen == pytest.approx(row[token].item(), abs=1e-3)
        best = row.topk(3)
        assert [item for item, _ in top] == best.indices.tolist()
        assert [value for _, value in top] == pytest.approx(best.values.tolist(), abs=1e-3)


def test_told_tokens_stand_in_the_place_of_the_likeliest(loaded: Loaded, checkpoints: Path) -> None:
    told = [40, 3, 40]
    rules: dict[str, Any] = {"temperature": 0.7, "seed": 1, "suppressed": [5, 6], "suppress_until": 12}
    request = Request(Admit(0, logprobs=3, told=told, **rules), PROMPT, 6)
    other = Request(Admit(1, logprobs=2, temperature=0.7, seed=2), PROMPT, 6)
    drawn = TinyRouter(loaded).run(request, other)
    assert drawn[0] == says(loaded, **rules)[:6], "what is told changes nothing that is drawn"
    expected = logits(checkpoints / "llama", PROMPT + request.output).log_softmax(1)[len(PROMPT) - 1 : -1]
    for (_, top), row in zip(request.logprobs, expected, strict=True):
        assert [item for item, _ in top] == told
        assert [value for _, value in top] == pytest.approx(row[told].tolist(), abs=1e-3)
    assert all(top[0][1] >= top[1][1] for _, top in other.logprobs)


def test_the_same_seed_draws_the_same_and_another_one_differs(loaded: Loaded) -> None:
    hot: dict[str, Any] = {"temperature": 1.5}
    assert says(loaded, seed=9, **hot) == says(loaded, seed=9, **hot)
    assert says(loaded, seed=9, **hot) != says(loaded, seed=10, **hot)
    assert says(loaded, seed=9, **hot) != says(loaded, seed=9 + (1 << 32), **hot)
