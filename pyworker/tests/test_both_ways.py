"""Decoders that were trained on for vectors, in which each token sees the whole text."""

from __future__ import annotations

from pathlib import Path

import pytest
from pelton.loading.error import LoadError
from test_vectors import change_json, load
from vector_checkpoints import write


def test_a_decoder_that_sees_the_whole_text_has_it_in_one_step_and_draws_nothing(tmp_path: Path) -> None:
    for variant, task in (("qwen2-both-ways", "embed"), ("llama-both-ways-classes", "classify")):
        pooling = load(write(tmp_path / variant, variant), task=task, pooling="last" if task == "embed" else "").pooling
        assert pooling is not None
        assert pooling.is_bidirectional
    folder = write(tmp_path / "model", "qwen3")
    change_json(folder / "config.json", is_causal=False)
    with pytest.raises(
        LoadError, match=r"`is_causal` in config.json is false; supported for vectors .--task embed.*true"
    ):
        load(folder)
    layers = ["full_attention", *["sliding_attention"] * 2]
    change_json(folder / "config.json", is_causal=False, sliding_window=9, use_sliding_window=True, layer_types=layers)
    with pytest.raises(LoadError, match=r"`is_causal` in config.json is false; supported for models without windows"):
        load(folder, task="embed")


def test_code_of_the_checkpoints_own_for_vectors_is_told_apart_from_what_runs_here(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "qwen3")
    change_json(folder / "config.json", auto_map={"AutoModel": "modeling.Model"})
    wish = {"task": "embed", "trust_remote_code": True}
    with pytest.raises(
        LoadError, match=r"code of its own for vectors .`auto_map` in config.json.*`is_causal` false or true"
    ):
        load(folder, **wish)
    for is_causal in (True, False):
        change_json(folder / "config.json", is_causal=is_causal)
        pooling = load(folder, **wish).pooling
        assert pooling is not None
        assert pooling.is_bidirectional is not is_causal
