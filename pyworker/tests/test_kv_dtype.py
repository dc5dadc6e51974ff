"""KV of 8 bits: what it takes, how close it is, and that it is the same in any company and any chunks."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from borrowed_checkpoints import write as write_borrowed
from pelton.kv_shape import KvShape
from pelton.loading.error import LoadError
from plans import Admit
from random_checkpoints import VOCAB, write
from test_models import forward, prompts
from tiny_router import Request, TinyRouter, load_whole
from vector_checkpoints import write as write_vectors

TOKENS = 40
CLOSE = 0.05  # of the greatest logit: 8 bits of keys and values, through three random layers


def said(
    folder: Path, *, chunk: int | None = None, seed: int = 3, is_alone: bool = False, **wish: object
) -> list[list[int]]:
    """Greedy tokens after each prompt: all at once, or one after the other."""
    loaded = load_whole(folder, kv_dtype="int8", **wish)
    requests = [Request(Admit(0), prompt, TOKENS) for prompt in prompts(2)]
    if is_alone:
        return [TinyRouter(loaded, chunk, seed=seed).run(request)[0] for request in requests]
    return TinyRouter(loaded, chunk, seed=seed).run(*requests)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "gpt2"])
def test_tokens_are_the_same_alone_in_a_crowd_in_any_chunks_and_on_any_threads(
    tmp_path: Path, variant: str, dtype: torch.dtype
) -> None:
    folder = write(tmp_path / variant, variant, dtype)
    alone = said(folder, is_alone=True)
    assert said(folder) == alone
    assert said(folder, chunk=5, seed=8) == alone
    assert said(folder, chunk=48, threads=3) == alone


@pytest.mark.parametrize("variant", ["llama", "gemma2", "gpt_neox", "qwen3"])
def test_logits_are_close_to_those_of_kv_that_is_not_rounded(checkpoints: Path, variant: str) -> None:
    plain, coded = (load_whole(checkpoints / variant, kv_dtype=kv_dtype) for kv_dtype in ("auto", "int8"))
    assert coded.is_invariant
    tokens = prompts(1)[-1]
    expected, got = forward(plain, tokens), forward(coded, tokens)
    assert not torch.equal(got, expected)
    assert (got - expected).abs().max() <= CLOSE * expected.abs().max()
    assert coded.numerics_id == f"{plain.numerics_id}-kv-int8", "blocks of one are none of the other"


def test_a_block_takes_its_codes_and_their_scales(checkpoints: Path) -> None:
    plain = KvShape(layers=3, heads=2, head_dim=128, block_size=32, dtype="bfloat16")
    coded = dataclasses.replace(plain, has_codes=True)
    assert (plain.block_bytes, coded.block_bytes) == (2 * 3 * 2 * 32 * 256, 2 * 3 * 2 * 32 * 132)
    loaded = load_whole(checkpoints / "llama", kv_dtype="int8")
    keys, values = loaded.kv.layers[0]
    assert keys.dtype is values.dtype is torch.int8
    assert loaded.budget.kv_bytes_per_block == sum(cache[:1].nbytes for pair in loaded.kv.layers for cache in pair)
    assert loaded.budget.blocks > load_whole(checkpoints / "llama").budget.blocks


def test_models_of_transformers_have_it_too(tmp_path: Path) -> None:
    """Gemma 4 has layers of two sizes, which leave a part of a row empty. None has experts: a close choice among these may change."""
    source = random.Random(4)
    tokens = [source.randrange(VOCAB) for _ in range(90)]
    for variant in ("opt", "gemma4"):
        folder = write_borrowed(tmp_path / variant, variant)
        plain, coded = (load_whole(folder, kv_dtype=kv_dtype) for kv_dtype in ("auto", "int8"))
        expected, got = forward(plain, tokens), forward(coded, tokens)
        assert not torch.equal(got, expected)
        assert (got - expected).norm() <= CLOSE * expected.norm()
        assert coded.numerics_id.endswith("-kv-int8")


def test_what_cannot_be_is_refused_by_name(checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="--kv-dtype fp8; supported: auto, int8"):
        load_whole(checkpoints / "llama", kv_dtype="fp8")
    folder = write_vectors(tmp_path / "bert", "bert")
    with pytest.raises(LoadError, match="--kv-dtype int8: this model keeps no KV from one step to the next"):
        load_whole(folder, kv_dtype="int8")


def test_a_card_refuses_it_by_name(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.device.choose", lambda _: torch.device("cuda"))
    with pytest.raises(LoadError, match="--kv-dtype int8 runs on CPUs; set --device cpu"):
        load_whole(checkpoints / "llama", kv_dtype="int8")
