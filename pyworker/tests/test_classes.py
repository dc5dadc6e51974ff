"""Whole models on every class of processors that this machine has: the switch that forces one, and what holds in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pelton_kernels import ops
from pelton_kernels.testing import forced, isas
from plans import Admit
from random_checkpoints import greedy, write
from test_models import TOKENS, prompts, seeded
from tiny_router import Request, TinyRouter, eagerly, load_whole

# Heads and widths that are no multiples of vectors, KV of 8 bits, windows; and weights of 8 and 4 bits, with activations of 8 bits and as
# they are.
MODELS = [("qwen3", "auto", "auto"), ("gemma2", "auto", "int8"), ("gpt_neox", "auto", "auto")]
MODELS += [("llama", quantize, "auto") for quantize in ("int8", "int4", "int8-a16", "int4-a16")]


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param) as isa:
        yield isa
    ops.set_threads(1)


def test_in_float32_each_class_draws_the_tokens_of_transformers(checkpoints: Path, isa: str) -> None:
    folder = checkpoints / "qwen3"
    loaded = load_whole(folder)
    assert f"-{isa}-" in f"{loaded.numerics_id}-"
    expected = [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]
    assert TinyRouter(loaded, seed=3).run(*(Request(Admit(0), prompt, TOKENS) for prompt in prompts(2))) == expected


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("variant", "quantize", "kv_dtype"), MODELS)
def test_in_each_class_requests_are_bit_for_bit_the_same_alone_together_in_chunks_and_without_a_program(
    tmp_path: Path, variant: str, quantize: str, kv_dtype: str
) -> None:
    folder = write(tmp_path / variant, variant, torch.bfloat16)
    loaded = load_whole(folder, quantize=quantize, kv_dtype=kv_dtype)
    assert loaded.is_invariant
    alone = seeded(5)
    for request in alone:
        TinyRouter(loaded).run(request)
    routers = {
        1: TinyRouter(eagerly(loaded), seed=6),
        2: TinyRouter(loaded, seed=7),
        3: TinyRouter(loaded, chunk=5),
    }
    for threads, router in routers.items():
        ops.set_threads(threads)
        together = seeded(5)
        router.run(*together)
        assert [request.output for request in together] == [request.output for request in alone]
        assert [request.logprobs for request in together] == [request.logprobs for request in alone]
