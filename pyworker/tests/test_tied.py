"""Tied tables: in memory once, and with the bits of a model that has its table beside the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pelton.layers.embedding import Embedding, SharedEmbedding
from pelton.loading import native
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded
from pelton.models.decoder import Decoder
from plans import Admit
from random_checkpoints import VOCAB, greedy, write
from safetensors.torch import load_file, save_file
from tiny_router import Request, TinyRouter, eagerly, load_whole

WIDTH = 64
BYTES = {torch.float32: 4, torch.bfloat16: 2}


class Apart(Decoder):
    """Never shares: as models were before."""

    def __init__(self, config: Any, positions: int, _shares_table: bool) -> None:
        super().__init__(config, positions, False)


@pytest.mark.parametrize(
    ("variant", "table"), [("llama-tied-biased", "model.embed_tokens"), ("gpt2", "transformer.wte")]
)
def test_a_stored_head_that_is_another_matrix_than_the_table_is_the_head(
    tmp_path: Path, variant: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So `transformers` takes it, whatever `tie_word_embeddings` says."""
    folder = write(tmp_path / variant, variant)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors[f"{table}.weight"].roll(7, dims=0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    prompt = [1, 2, 3, 50, 60]
    assert TinyRouter(load_whole(folder)).run(Request(Admit(0), prompt, 12)) == [greedy(folder, prompt, 12)]
    assert f"`lm_head.weight` is another matrix than `{table}.weight`" in caplog.text
    rounded = load_whole(folder, quantize="int8")
    assert isinstance(rounded.model, Decoder)
    assert isinstance(rounded.model.embedding, Embedding)
    tensors["lm_head.weight"] = torch.zeros(VOCAB + 1, WIDTH)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=rf"1 of another shape: lm_head.weight \[{VOCAB + 1}, {WIDTH}\] instead of"):
        load_whole(folder)


def draws(loaded: Loaded) -> list[Any]:
    rules = [Admit(0, logprobs=3), Admit(0, temperature=0.9, seed=4, logprobs=3)]
    prompts = [[1, 2, 3], list(range(VOCAB))[:70]]
    requests = [Request(rule, prompt, 10) for rule, prompt in zip(rules, prompts, strict=True)]
    TinyRouter(loaded, seed=2).run(*requests)
    return [(request.output, request.logprobs) for request in requests]


def embeds_of(loaded: Loaded) -> list[tuple[str, Any]]:
    assert loaded.built is not None
    return [(name, given.get("table")) for name, given in loaded.built.script.calls if name.startswith("embed")]


@pytest.mark.parametrize("dtype", BYTES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama-tied-biased", "gemma2", "gemma3", "qwen3-tied-yarn", "gpt2"])
def test_a_tied_table_is_there_once_and_changes_no_bit(
    tmp_path: Path, variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / variant, variant, dtype)
    shared = load_whole(folder)
    assert isinstance(shared.model, Decoder)
    assert isinstance(shared.model.embedding, SharedEmbedding)
    name, table = embeds_of(shared)[0]
    assert shared.built is not None
    [head] = [given["weight"] for called, given in shared.built.script.calls if called == "linear"][-1:]
    assert (name, table) == ("embed_packed", head)
    monkeypatch.setattr(native, "Decoder", Apart)
    apart = load_whole(folder)
    assert embeds_of(apart)[0][0] == "embed"
    assert apart.budget.weights_bytes - shared.budget.weights_bytes == VOCAB * WIDTH * BYTES[dtype]
    assert draws(shared) == draws(apart) == draws(eagerly(shared))


def test_a_head_that_is_rounded_is_another_matrix_than_its_table(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama-tied-biased")
    for skipped, kind in (("none", Embedding), ("head", SharedEmbedding)):
        loaded = load_whole(folder, quantize="int8", quantize_skip=skipped)
        assert isinstance(loaded.model, Decoder)
        assert type(loaded.model.embedding) is kind
        assert draws(loaded) == draws(eagerly(loaded))
