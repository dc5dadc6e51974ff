"""Angles against transformers, from configs as its version 5 writes them and as older ones did."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import transformers
from pelton.layers.rotary import Rotary
from pelton.loading.config import Fields
from pelton.loading.error import LoadError
from pelton.models.config import read_rope
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
CASES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", **YARN},
    {"rope_type": "yarn", **YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5},
    {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    {"rope_type": "yarn", **YARN, "truncate": False},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 1024},
]
DIM, POSITIONS = 32, 512


def theirs(rope: dict[str, Any], length: int = POSITIONS) -> torch.Tensor:
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=POSITIONS, rope_parameters=dict(rope)
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    return torch.cat([cos[0, :, : DIM // 2], sin[0, :, : DIM // 2]], dim=1)


def ours(config: dict[str, Any]) -> torch.Tensor:
    return Rotary(read_rope(Fields(config), POSITIONS), DIM, POSITIONS).cos_sin


@pytest.mark.parametrize("case", CASES, ids=str)
def test_angles_are_those_of_transformers(case: dict[str, Any]) -> None:
    expected = theirs({**case, "rope_theta": 5e4})
    old = {key: value for key, value in case.items() if key != "rope_type"}
    for config in (
        {"rope_parameters": {**case, "rope_theta": 5e4}},
        {"rope_theta": 5e4, "rope_scaling": case},
        {"rope_theta": 5e4, "rope_scaling": {**old, "type": case["rope_type"]}},
    ):
        # Angles reach 512 radians, whose float32 neighbours are 2⁻¹⁵ apart, and so may differ their cosines.
        torch.testing.assert_close(ours(config), expected, rtol=0, atol=2**-14)


def test_a_factor_that_takes_back_yarns_own_is_heeded_though_transformers_passes_it_over() -> None:
    """As DeepSeek-R1-0528-Qwen3-8B has it: 0.8782488562869419 (0.1 ln 4 + 1) is 1."""
    case = {"rope_type": "yarn", **YARN, "attn_factor": 0.8782488562869419}
    assert read_rope(Fields({"rope_scaling": case}), POSITIONS).attention_factor == pytest.approx(1.0)


@pytest.mark.parametrize("context", [POSITIONS // 2, POSITIONS, POSITIONS + 1, 2 * POSITIONS])
def test_dynamic_angles_are_those_of_transformers_for_a_request_as_long_as_the_context(context: int) -> None:
    scaling = {"rope_type": "dynamic", "rope_theta": 5e4, "factor": 2.0}
    got = Rotary(read_rope(Fields({"rope_parameters": scaling}), POSITIONS), DIM, context)
    torch.testing.assert_close(got.cos_sin, theirs(scaling, context), rtol=0, atol=2**-13)
    assert got.rope.numerics == ("" if context <= POSITIONS else f"dynamic{context}")


def test_a_config_without_scaling_is_plain() -> None:
    assert torch.equal(ours({"rope_scaling": None}), ours({"rope_theta": 1e4}))


def test_the_first_trainings_length_beside_the_scaling_comes_first() -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 999}
    assert torch.equal(
        ours({"rope_scaling": scaling, "original_max_position_embeddings": 64}),
        ours({"rope_scaling": {**scaling, "original_max_position_embeddings": 64}}),
    )


ABSENT = object()
# What may stand under either name: nothing in three ways, and every kind in both spellings.
SCALINGS: list[Any] = [
    ABSENT,
    None,
    {},
    {"rope_theta": 3e4},
    {"rope_type": "default", "rope_theta": 2e4},
    {"type": "linear", "factor": 3.0},
    {"rope_type": "linear", "type": "yarn", "factor": 2.0},
    {"rope_type": "llama3", "rope_theta": 7e4, **LLAMA3},
    {"type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
    {"rope_type": "dynamic", "factor": 2.0},
    {"type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "factor": 2.0},
]


@pytest.mark.parametrize("kind", [transformers.LlamaConfig, transformers.Qwen3Config])
@pytest.mark.parametrize("beside", [{}, {"rope_theta": 5e4}, {"original_max_position_embeddings": 64}], ids=str)
def test_whatever_stands_beside_what_it_is_resolved_as_transformers_does(kind: Any, beside: dict[str, Any]) -> None:
    for new, old in itertools.product(SCALINGS, SCALINGS):
        both = {"rope_parameters": new, "rope_scaling": old}
        config = beside | {name: copy.deepcopy(value) for name, value in both.items() if value is not ABSENT}
        shape = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": POSITIONS}
        made = kind(**shape, **copy.deepcopy(config))
        made.standardize_rope_params()  # as its functions of frequencies do; now a length beside the scaling counts
        theirs = made.rope_parameters
        rope = read_rope(Fields(config), POSITIONS)
        got = {"rope_type": rope.kind, "rope_theta": rope.theta}
        if rope.kind != "default":
            got["factor"] = rope.factor
        if rope.kind in {"llama3", "yarn"}:
            got["original_max_position_embeddings"] = rope.original_positions
        assert got == {name: theirs[name] for name in got}, config


def test_a_scaling_for_each_kind_of_layer_is_refused() -> None:
    for name in ("rope_parameters", "rope_scaling"):
        with pytest.raises(LoadError, match=f"`{name}` in config.json differs by layer"):
            ours({name: {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}})
