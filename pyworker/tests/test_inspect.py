"""What `pelton inspect program` prints: every call, its least cost, and the time it took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pelton import inspect


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert inspect.main([*arguments, "--threads", "1"]) == 0
    return capsys.readouterr().out.splitlines()


def test_calls_that_are_alike_are_one_line_unless_all_are_wanted(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkpoints / "qwen3")
    folded = lines(capsys, folder, "--rows", "3", "--context", "20")
    assert folded[0].startswith("qwen3, float32, cpu-")
    assert folded[0].endswith("call-backs: 0")
    assert "a step of 3 tokens and 3 draws" in folded[2]
    table = folded[5:]
    every = lines(capsys, folder, "--rows", "3", "--context", "20", "--all")[5:]
    assert sum(int(line.split()[0]) for line in table) == len(every) == int(folded[1].split()[0])
    attention = next(line for line in table if "paged_attention 4 heads" in line)
    assert int(attention.split()[0]) == 3, "one for each layer"
    assert [line for line in every if "paged_attention layer 2, 4 heads" in line]


def test_costs_are_those_of_the_step(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lines(capsys, str(checkpoints / "llama"), "--tokens", "10", "--context", "0", "--all")
    product = next(line for line in table if "linear 64 -> 96" in line)  # queries, keys and values of 10 tokens
    assert "122.9 k" in product, "2 x 10 x 64 x 96 operations"
    head = next(line for line in table if "linear 64 -> 199" in line)
    assert "25.5 k" in head, "of one drawn row alone"
    assert all(re.search(r"b\d+@\d", line) for line in table[5:]), "buffers have their places"


def test_a_folder_without_a_model_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.main([str(tmp_path / "nothing")]) == 1
    assert "is no folder" in capsys.readouterr().out
