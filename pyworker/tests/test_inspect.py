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


def test_bounds_are_those_of_the_rate_at_which_a_call_may_compute(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = inspect.Machine(read=1e9, gemm=1e9, codes=4e9)
    arguments = ("--tokens", "300", "--context", "0", "--quantize")
    folder = str(checkpoints / "qwen3")
    for scheme, is_of_codes in (("int8", True), ("int4", True), ("int8-a16", False)):
        table = lines(capsys, folder, *arguments, scheme)
        [product, *_] = [line for line in table if f"linear {scheme}" in line]
        text = re.split(r"\s{2,}", product.strip())[1]
        line = inspect.Line(text, "", "", 1, nbytes=0, flops=8e6, us=1)
        assert line.is_of_codes == is_of_codes, text
        assert machine.bound_us(line) == pytest.approx(2000 if is_of_codes else 8000)


def test_keys_and_values_in_codes_are_less_to_read(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def bytes_of_attention(*arguments: str) -> str:
        table = lines(capsys, str(checkpoints / "qwen3"), "--rows", "4", "--context", "200", *arguments)
        return next(re.split(r"\s{2,}", line.strip())[3] for line in table if "paged_attention" in line)

    plain, codes = bytes_of_attention(), bytes_of_attention("--kv-dtype", "int8")
    assert 2 < float(plain.split()[0]) / float(codes.split()[0]) < 4, "float32 and 8 bits, with scales"
