"""Prompts that come as embeddings: the model's own give the tokens of the text, any others those of transformers; and what is refused."""

from __future__ import annotations

import base64
import io
import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import safetensors.torch
import torch
from support.checkpoints import VARIANTS, WINDOWED, make_checkpoint
from support.embeds import COMPLETIONS, TOKENS, body, greedy, others, own, sent, told
from support.load import complete, prompts
from support.server import Server, serving, sse

CONTEXT = 512
# Steps of 40 tokens, of which as many may be embeddings: most prompts come in chunks, beside others that decode.
FLAGS = ("--enable-prompt-embeds", "--max-model-len", str(CONTEXT), "--block-size", "8", "--token-budget", "40")
FAMILIES = [VARIANTS[0], VARIANTS[5], WINDOWED]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda variant: variant.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server that takes embeddings, and the folder of its model."""
    folder = make_checkpoint(tmp_path_factory.mktemp("embeds") / request.param.name, request.param)
    with serving(folder, *FLAGS) as running:
        yield running, folder


def test_the_models_own_embeddings_give_the_tokens_of_the_text(served: tuple[Server, Path]) -> None:
    server, folder = served
    asked = prompts(6, seed=3)
    expected = [complete(server, prompt, max_tokens=TOKENS).tokens for prompt in asked]
    embeds = [sent(own(folder, prompt)) for prompt in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: told(server, one), embeds))
    assert [tokens for (tokens,), _ in answers] == expected, "in mixed batches, in chunks"
    assert [usage["prompt_tokens"] for _, usage in answers] == [len(prompt) for prompt in asked]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for _, usage in answers]
    # Some of these prompts begin alike, and so do their embeddings; what the texts have left is another matter.
    begins_alike = [
        any(other[:8] == prompt[:8] for other in asked[:at] + asked[at + 1 :]) for at, prompt in enumerate(asked)
    ]
    assert all(found == 0 or alike for found, alike in zip(cached, begins_alike, strict=True)), (cached, begins_alike)
    assert begins_alike.count(False) >= 3


def test_any_embeddings_give_the_tokens_of_transformers_and_are_found_again(served: tuple[Server, Path]) -> None:
    server, folder = served
    for count in (1, 37, 90):
        embeds = others(folder, count, seed=count)
        expected = greedy(folder, embeds)
        (tokens,), usage = told(server, sent(embeds))
        assert (tokens, usage["prompt_tokens_details"]["cached_tokens"]) == (expected, 0)
        (tokens,), usage = told(server, sent(embeds))
        assert tokens == expected
        assert usage["prompt_tokens_details"]["cached_tokens"] == (count - 1) // 8 * 8, (
            "whole blocks, and one to compute"
        )
        changed = embeds.clone()
        changed[count // 2] += 1.0
        (tokens,), usage = told(server, sent(changed))
        assert usage["prompt_tokens_details"]["cached_tokens"] <= count // 2 // 8 * 8, "what comes before it at most"
        assert tokens == greedy(folder, changed)
        _, usage = told(server, sent(others(folder, count, seed=count + 1)))
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "others of the same length"
        _, usage = told(server, sent(embeds), cache_salt="mine")
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "another salt"


def test_several_come_first_and_in_order_and_each_is_answered_n_times(served: tuple[Server, Path]) -> None:
    server, folder = served
    embeds, text = [others(folder, count, seed=9) for count in (12, 20)], prompts(2, seed=8)
    expected = [greedy(folder, one) for one in embeds]
    expected += [complete(server, prompt, max_tokens=TOKENS).tokens for prompt in text]
    tokens, usage = told(server, [sent(one) for one in embeds], prompt=text, n=2)
    assert tokens == [one for one in expected for _ in range(2)]
    assert usage["prompt_tokens"] == 12 + 20 + sum(map(len, text))
    assert usage["completion_tokens"] == 8 * TOKENS
    assert told(server, sent(embeds[0]), prompt="")[0] == expected[:1], "an empty text is none"

    streamed: dict[int, list[int]] = {}
    with server.stream(COMPLETIONS, body([sent(one) for one in embeds], prompt=text[0], stream=True)) as response:
        for event in sse(response):
            for choice in event["choices"]:
                streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
                assert ("prompt_token_ids" in choice) <= (choice["index"] == 2), "embeddings have no tokens"
    assert [streamed[index] for index in range(3)] == expected[:3]


def test_formats_and_rules_of_drawing(served: tuple[Server, Path]) -> None:
    server, folder = served
    embeds = others(folder, 30, seed=2)
    for dtype in (torch.bfloat16, torch.float16):
        assert told(server, sent(embeds.to(dtype)))[0] == [greedy(folder, embeds.to(dtype).float())]
    seeded = [told(server, sent(embeds), temperature=1, seed=7, repetition_penalty=1.2)[0] for _ in range(2)]
    assert seeded[0] == seeded[1]
    (beams,), _ = told(server, sent(embeds), use_beam_search=True, n=1, max_tokens=8)
    assert len(beams) == 8
    pressed = {"logit_bias": {"0": 100}, "max_tokens": 1, "presence_penalty": 0, "repetition_penalty": 50}
    assert told(server, sent(embeds), **pressed)[0] == [[0]], "what holds a place is no token of the prompt"


def test_a_worker_that_dies_in_mid_answer_costs_nothing(served: tuple[Server, Path]) -> None:
    server, folder = served
    embeds = others(folder, 60, seed=5)
    expected, _ = told(server, sent(embeds), max_tokens=300)
    tokens: list[int] = []
    with server.stream(COMPLETIONS, body(sent(embeds), max_tokens=300, stream=True, cache_salt="again")) as response:
        events = sse(response)
        for event in itertools.islice(events, 5):
            tokens += event["choices"][0]["token_ids"]
        os.kill(server.worker_pid(), signal.SIGKILL)
        for event in events:
            assert "error" not in event, event
            tokens += [token for choice in event["choices"] for token in choice["token_ids"]]
    assert [tokens] == expected
    assert expected[0][:TOKENS] == greedy(folder, embeds)


def test_the_official_client_sends_them(served: tuple[Server, Path]) -> None:
    server, folder = served
    embeds = others(folder, 9, seed=1)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.completions.create(
        model=server.model_name, prompt="", max_tokens=5, temperature=0, extra_body={"prompt_embeds": sent(embeds)}
    )
    assert answer.usage is not None
    assert (len(answer.choices), answer.usage.prompt_tokens) == (1, 9)


def pickled(tensor: torch.Tensor) -> str:
    """As vLLM takes it: a program."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


GOOD = torch.zeros(3, 64)
REFUSED: dict[str, tuple[Any, str]] = {
    "torch.save": (pickled(GOOD), "safetensors.torch.save"),
    "pickle": (base64.b64encode(b"\x80\x04K\x01.").decode(), "safetensors.torch.save"),
    "no base64": ("?" * 40, "no base64"),
    "nothing": ("", "none of them empty"),
    "no list": (5, "none of them empty"),
    "a cut header": (sent(GOOD)[:24], "ends within its header"),
    "cut numbers": (sent(GOOD)[:-40], "a tensor of 192 numbers"),
    "two": (
        base64.b64encode(safetensors.torch.save({"a": GOOD, "b": GOOD.clone()})).decode(),
        "2 tensors",
    ),
    "a wrong width": (sent(torch.zeros(3, 65)), "shape [3, 65]"),
    "one dimension": (sent(torch.zeros(64)), "shape [64]"),
    "no rows": (sent(torch.zeros(0, 64)), "shape [0, 64]"),
    "integers": (sent(torch.zeros(3, 64, dtype=torch.int32)), "I32"),
    "doubles": (sent(torch.zeros(3, 64, dtype=torch.float64)), "F64"),
    "NaN": (sent(torch.full((3, 64), float("nan"))), "NaN in row 0"),
    "infinity": (sent(torch.full((3, 64), float("inf"))), "inf in row 0"),
    "a full context": (sent(torch.zeros(CONTEXT, 64)), "the prompt is too long: it has 512 tokens"),
}


@pytest.mark.parametrize(("embeds", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_prompt_is_refused_by_name(served: tuple[Server, Path], embeds: Any, why: str) -> None:
    server, _ = served
    for given, param in ((embeds, "prompt_embeds"), ([sent(GOOD), embeds], "prompt_embeds[1]")):
        refused = server.post(COMPLETIONS, body(given))
        error = refused.json()["error"]
        assert (refused.status_code, why in error["message"]) == (400, True), refused.text
        assert error["param"] in (param, "prompt_embeds")


@pytest.mark.parametrize(
    "beside",
    [{"echo": True}, {"suffix": "a", "prompt": "b"}, {"prompt_logprobs": 1}, {"truncate_prompt_tokens": 2}],
    ids=lambda beside: next(iter(beside)),
)
def test_what_needs_tokens_is_refused_beside_them(served: tuple[Server, Path], beside: dict[str, Any]) -> None:
    refused = served[0].post(COMPLETIONS, body(sent(GOOD), **beside))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(beside))), refused.text


def test_tokens_that_there_are_not_cannot_be_rendered(served: tuple[Server, Path]) -> None:
    refused = served[0].post("/v1/completions/render", {"prompt_embeds": sent(GOOD)})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_embeds"), refused.text


def test_without_the_flag_they_are_refused(server: Server) -> None:
    refused = server.post(COMPLETIONS, body(sent(GOOD)))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_embeds"), refused.text
    assert "--enable-prompt-embeds" in refused.json()["error"]["message"]
