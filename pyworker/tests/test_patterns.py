"""Patterns of a config.json: those that checkpoints have, and those that would hold the worker."""

from __future__ import annotations

import re

import pytest
from pelton.loading.error import LoadError
from pelton.quantization.patterns import LENGTH_MAX, matches

NAMES = [
    "lm_head",
    "model.layers.18.mlp.gate_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.0.self_attn.q_proj",
    "model.language_model.layers.7.self_attn.o_proj",
    "model.vision_tower.layers.7.mlp.fc1",
    "model.mtp.layers.0.mlp.gate",
]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (r".*mlp.gate$", [6]),
        (r".*\.18\..*(?:gate|up|down).*", [1]),
        (r"^(?!.*language_model).*", [0, 1, 2, 3, 5, 6]),
        (r".*self_attn.(q|k|v|o)_proj", [3, 4]),
        (r"model\.layers\.(\d+|[a-z]+)\.mlp.*", [1, 2]),
        (r".*\.mtp\..*", [6]),
        (r"model\.(language_model\.)?layers\.[0-9]{1,2}\..*_proj$", [1, 2, 3, 4]),
        (r".*layers\.(?P<at>[0-9]|1[0-9])\.(mlp|self_attn)\.[^.]+_proj(?<!q_proj)", [1, 2, 4]),
        (r"model\.layers\.(" + "|".join(map(str, range(40))) + r")\.mlp\..*", [1, 2]),
        (r"[]()*+|]|lm_head", [0]),
        (r"model\.\(a\)*|.*\)+|lm_h{1}ead", [0]),
    ],
)
def test_patterns_of_checkpoints_are_matched(pattern: str, fits: list[int]) -> None:
    assert [name for name in NAMES if matches(pattern, name)] == [NAMES[at] for at in fits]
    assert [name for name in NAMES if re.match(pattern, name)] == [NAMES[at] for at in fits]


@pytest.mark.parametrize(
    "pattern",
    [
        "((.+)+)+!",
        "(?:a|b)*!",
        "(a?){30}!",
        ".*.*.*.*.*!",
        "(?:.|.)" * 30 + "!",
        ".?" * 30 + "!",
        "(?#[)((.+)+)+!(?#])",  # within what would be a class, if comments were not comments
        "(?x)((.+) +) +!",
        r"[\]](.+)+[\[]!",
        "[]](.+)+[^]]!",
    ],
)
def test_patterns_of_many_paths_are_refused(pattern: str) -> None:
    with pytest.raises(
        LoadError, match=re.escape(f"`{pattern}` in config.json may take very long to match; supported:")
    ):
        matches(pattern, "a" * 60)


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}"])
def test_what_is_no_pattern_is_said_to_be_none(pattern: str) -> None:
    with pytest.raises(LoadError, match="is no regular expression"):
        matches(pattern, "a")


def test_long_patterns_are_refused() -> None:
    with pytest.raises(LoadError, match=f"has {LENGTH_MAX + 1} characters; supported: patterns of {LENGTH_MAX}"):
        matches("a" * (LENGTH_MAX + 1), "a")
