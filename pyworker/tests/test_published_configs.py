"""Models whose config.json an older `transformers` wrote, as most published ones have it, against `transformers`.

Before version 5 there was no `rope_parameters`, and which layers have a window stood nowhere: each family had a rule and a few fields
of its own for it. The weights here are those of `random_checkpoints`; the config is rewritten, and both sides read the older form.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import vector_checkpoints
from plans import Admit
from random_checkpoints import greedy, logits, write
from test_models import forward, prompts
from test_vectors import change_json, check_close, load, texts, vectors
from tiny_router import Request, TinyRouter, load_whole

DRAWN = 24
# What older versions did not write, or not in all families: a case says it where they did.
NEWER = {"dtype", "head_dim", "layer_types", "no_rope_layers", "no_rope_layer_interval", "rope_parameters"}


@dataclass(frozen=True)
class Case:
    """A published form, and what of it counts."""

    variant: str  # of `random_checkpoints`: whose weights these are
    fields: Mapping[str, Any]  # as the older config.json has them
    changes: tuple[Mapping[str, Any], ...]  # of which each one makes another model of it
    length: int = 131  # of the prompt: beyond every window, and beyond the first training's length
    context: int = 0  # which the server is told; 0: the model's own


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ALL_FULL = {"layer_types": ["full_attention"] * 3}
SHORT, LONG = [1.0 + place / 8 for place in range(8)], [2.0 + place for place in range(8)]
PHI4_MINI = {
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT[:6], "long_factor": LONG[:6]},
    "rope_theta": 1e4,
}

CASES = {
    "gemma2": Case(
        "gemma2", {"head_dim": 16, "rope_theta": 1e4}, (ALL_FULL, {"sliding_window": 60}, {"rope_theta": 200.0})
    ),
    "gemma3": Case(
        "gemma3",
        {
            "head_dim": 16,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_theta": 1e6,
            "sliding_window_pattern": 3,
        },
        (
            {"sliding_window_pattern": 2},
            {"rope_local_base_freq": 200.0},
            {"rope_theta": 1e4},
            {"rope_scaling": None},
            {"sliding_window": 40},
        ),
    ),
    "gemma3-absent": Case("gemma3", {"head_dim": 16}, ({"sliding_window_pattern": 3}, {"rope_theta": 1e4})),
    "cohere": Case("cohere", {"rope_theta": 8e6}, ({"rope_theta": 1e4},)),
    "cohere-absent": Case("cohere", {}, ({"rope_theta": 1e4},)),
    "cohere2": Case(
        "cohere2",
        {"rope_theta": 5e4, "sliding_window_pattern": 4, "rope_scaling": None},
        ({"sliding_window_pattern": 2}, {"sliding_window": 50}, {"rope_theta": 500.0}),
    ),
    "smollm3": Case(
        "smollm3",
        {"no_rope_layer_interval": 2, "rope_theta": 5e6},
        ({"no_rope_layer_interval": 3}, {"use_sliding_window": False}, {"rope_theta": 1e4}),
    ),
    "smollm3-absent": Case("smollm3", {}, ({"no_rope_layer_interval": 2}, {"rope_theta": 1e4})),
    # A window stands in most of Qwen's published files, and in none of them is it used.
    "qwen2": Case(
        "qwen2",
        {"max_window_layers": 1, "rope_theta": 1e6, "sliding_window": 21, "use_sliding_window": False},
        (
            {"use_sliding_window": True},
            {"use_sliding_window": True, "max_window_layers": 2},
            {"rope_theta": 1e4},
        ),
    ),
    "qwen3": Case(
        "qwen3",
        {
            "head_dim": 24,
            "max_window_layers": 2,
            "rope_scaling": None,
            "rope_theta": 1e6,
            "sliding_window": None,
            "use_sliding_window": False,
        },
        ({"use_sliding_window": True, "sliding_window": 21}, {"rope_theta": 1e4}),
    ),
    # As Qwen's instructions for long texts have it: the factor is added, the length stays that of the training.
    "qwen2-yarn": Case(
        "qwen2",
        {
            "max_position_embeddings": 128,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            "rope_theta": 1e6,
        },
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}},),
    ),
    "llama3.1": Case(
        "llama",
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        ({"rope_scaling": None}, {"rope_scaling": {**LLAMA3, "factor": 32.0}}, {"rope_theta": 1e4}),
    ),
    "llama-linear": Case(
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e4},
        ({"rope_scaling": None}, {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ),
    "llama-yarn": Case(
        "llama",
        {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}, "rope_theta": 1e4},
        ({"rope_scaling": None},),
    ),
    # There the length of a request decides about dynamic angles, here that of the longest.
    "llama-dynamic": Case(
        "llama",
        {"max_position_embeddings": 70, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}},),
        context=131,
    ),
    "phi3-partial": Case("phi3", {"partial_rotary_factor": 0.5, "rope_theta": 1e4}, ({"partial_rotary_factor": 1.0},)),
    "phi4-mini": Case(
        "phi3", PHI4_MINI, ({"original_max_position_embeddings": 100}, {"rope_scaling": None}, {"rope_theta": 200.0})
    ),
    "phi4-mini-short": Case(
        "phi3", PHI4_MINI, ({"original_max_position_embeddings": 32},), length=64 - DRAWN, context=64
    ),
    "phi3-long": Case(
        "phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
            "rope_theta": 1e4,
        },
        ({"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": SHORT}},),
    ),
    "gpt_neox": Case(
        "gpt_neox",
        {"rotary_emb_base": 1e4, "rotary_pct": 0.5},
        ({"rotary_pct": 0.25}, {"rotary_emb_base": 500}, {"use_parallel_residual": False}),
    ),
    "gpt_neox-absent": Case("gpt_neox", {}, ({"rotary_pct": 0.5}, {"rotary_emb_base": 20})),
    "starcoder2": Case(
        "starcoder2",
        {"rope_theta": 999999.4420358813, "sliding_window": 27},
        ({"sliding_window": None}, {"rope_theta": 1e4}),
    ),
    "starcoder2-unbounded": Case("starcoder2", {"rope_theta": 1e5, "sliding_window": None}, ({"sliding_window": 27},)),
    "mistral": Case(
        "mistral", {"rope_theta": 1e4, "sliding_window": 33}, ({"sliding_window": None}, {"rope_theta": 1e6})
    ),
    # Ministral 8B, whose file says `mistral`: `layer_types` makes it another model.
    "mistral-layers": Case(
        "mistral",
        {
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_theta": 1e6,
            "sliding_window": 17,
        },
        (ALL_FULL, {"layer_types": ["sliding_attention"] * 3}, {"sliding_window": 40}),
    ),
    "mistral-unbounded": Case("mistral", {"rope_theta": 1e6, "sliding_window": None}, ({"sliding_window": 33},)),
    "granite": Case("granite", {"rope_scaling": None, "rope_theta": 1e7}, ({"rope_theta": 1e4},)),
    "olmo2": Case("olmo2", {"rope_scaling": None, "rope_theta": 5e5}, ({"rope_theta": 1e4},)),
}


def publish(folder: Path, fields: Mapping[str, Any]) -> Path:
    """Rewrites config.json as an older version would have written it."""
    path = folder / "config.json"
    config = {name: value for name, value in json.loads(path.read_text()).items() if name not in NEWER}
    path.write_text(json.dumps({**config, "torch_dtype": "float32", **fields}))
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint for each case, named as the case."""
    root = tmp_path_factory.mktemp("published")
    for name, case in CASES.items():
        publish(write(root / name, case.variant), case.fields)
    return root


def changed(folder: Path, change: Mapping[str, Any], to: Path) -> Path:
    shutil.copytree(folder, to)
    change_json(to / "config.json", **change)
    return to


def logits_here(folder: Path, case: Case) -> torch.Tensor:
    return forward(load_whole(folder, max_model_len=case.context), prompt_of(case))


def prompt_of(case: Case) -> list[int]:
    return prompts(1)[-1][: case.length]


def check_logits(got: torch.Tensor, expected: torch.Tensor) -> None:
    # Sums of a few hundred float32 terms in another order, through up to seven layers.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())


def is_other(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """By a hundred times what `check_logits` lets pass."""
    return (got - expected).abs().max().item() > 2e-2 * expected.abs().max().item()


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(published: Path, name: str) -> None:
    case = CASES[name]
    check_logits(logits_here(published / name, case), logits(published / name, prompt_of(case)))


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, case in CASES.items() for change in case.changes], ids=str
)
def test_each_field_counts_and_as_in_transformers(
    published: Path, tmp_path: Path, name: str, change: Mapping[str, Any]
) -> None:
    case = CASES[name]
    folder = changed(published / name, change, tmp_path / name)
    got = logits_here(folder, case)
    check_logits(got, logits(folder, prompt_of(case)))
    assert is_other(got, logits(published / name, prompt_of(case)))


# Of dynamic angles transformers turns each key by the length at its step: `test_models` has what is the same.
@pytest.mark.parametrize("name", [name for name in CASES if name != "llama-dynamic"])
def test_greedy_tokens_are_those_of_transformers(published: Path, name: str) -> None:
    case = CASES[name]
    router = TinyRouter(load_whole(published / name, max_model_len=case.context))
    expected = greedy(published / name, prompt_of(case), DRAWN)
    assert router.run(Request(Admit(0), prompt_of(case), DRAWN)) == [expected]


def test_su_is_longrope_by_its_first_name(published: Path, tmp_path: Path) -> None:
    """As the first files of Phi-3 have it. Version 5 of transformers stumbles over that name, though it means to know it."""
    case = CASES["phi3-long"]
    scaling = {**case.fields["rope_scaling"], "type": "su"}
    folder = changed(published / "phi3-long", {"rope_scaling": scaling}, tmp_path / "su")
    assert torch.equal(logits_here(folder, case), logits_here(published / "phi3-long", case))


MODERNBERT = {"global_attn_every_n_layers": 2, "global_rope_theta": 16e4, "local_rope_theta": 1e4}


@pytest.mark.parametrize(
    "change",
    [{}, {"global_attn_every_n_layers": 3}, {"global_rope_theta": 500.0}, {"local_rope_theta": 20.0}],
    ids=str,
)
def test_modernbert_has_the_vectors_of_transformers_and_each_field_counts(
    tmp_path: Path, change: Mapping[str, Any]
) -> None:
    tokens = max(texts(1), key=len)
    before = publish(vector_checkpoints.write(tmp_path / "before", "modernbert"), MODERNBERT)
    folder = changed(before, change, tmp_path / "model")
    got = vectors(load(folder, pooling="mean"), [tokens])[0]
    check_close(got, vector_checkpoints.hidden(folder, tokens).mean(dim=0))
    expected = vector_checkpoints.hidden(before, tokens).mean(dim=0)
    assert is_other(torch.from_numpy(got), expected) == bool(change)
