"""Angles against transformers, from configs as its version 5 writes them and as older ones did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from pelton.layers.rotary import Rotary
from pelton.loading.config import Fields
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


def theirs(rope: dict[str, Any]) -> torch.Tensor:
    config = transformers.LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=POSITIONS, rope_parameters=dict(rope)
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(POSITIONS)[None])
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


def test_a_config_without_scaling_is_plain() -> None:
    assert torch.equal(ours({"rope_scaling": None}), ours({"rope_theta": 1e4}))


def test_the_first_trainings_length_beside_the_scaling_comes_first() -> None:
    scaling = {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 999}
    assert torch.equal(
        ours({"rope_scaling": scaling, "original_max_position_embeddings": 64}),
        ours({"rope_scaling": {**scaling, "original_max_position_embeddings": 64}}),
    )
