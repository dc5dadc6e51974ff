"""The header is a claim until checked; what passes reads as the library that wrote it says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pelton.loading.checkpoint import read_json
from pelton.loading.error import LoadError
from pelton.loading.safetensors import DTYPES, SafetensorsFile
from safetensors.torch import save_file

SHAPES = st.lists(st.integers(0, 5), max_size=3)
TENSORS = st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(SHAPES, st.sampled_from(list(DTYPES.values()))))


@given(TENSORS.map(lambda tensors: {k: v for k, v in tensors.items() if k != "__metadata__"}))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_library_writes_reads_back_the_same(
    tmp_path: Path, wanted: dict[str, tuple[list[int], torch.dtype]]
) -> None:
    tensors = {name: torch.randn(shape).to(dtype) for name, (shape, dtype) in wanted.items()}
    path = tmp_path / "some.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    file = SafetensorsFile.open(path)
    assert set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        got = file.tensor(name)
        assert got.dtype == tensor.dtype
        assert torch.equal(got, tensor)
        file.forget(name)
        assert torch.equal(file.tensor(name), tensor), "pages that were given back are read again"


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_a_tensor_that_is_not_aligned_is_read_all_the_same(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.0])
    path = write(tmp_path, {"a": ENTRY}, values.numpy().tobytes(), padding=1)
    assert torch.equal(SafetensorsFile.open(path).tensor("a"), values)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ([], "no JSON object"),
        ({"a": 3}, "`a` is no object"),
        ({"a": {**ENTRY, "dtype": ["F32"]}}, "`a` in .* is stored as .'F32'.; supported: "),
        ({"a": {**ENTRY, "shape": [-2]}}, "no shape and offsets"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, "no shape and offsets"),
        ({"a": {**ENTRY, "data_offsets": [0, 8, 9]}}, "no shape and offsets"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "cannot have -8 bytes"),
        ({"a": {**ENTRY, "shape": [3]}}, "cannot have 8 bytes"),
        ({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, "cannot have 8 bytes"),
        ({"a": {**ENTRY, "data_offsets": [4, 12]}}, "begins at byte"),
        ({"a": ENTRY, "b": ENTRY}, "the tensor before it ends"),
        ({"a": {**ENTRY, "shape": [4], "data_offsets": [0, 16]}}, "cut off"),
        ({}, "the file has"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3"}}, "stored as F8_E4M3; supported: F64, F32, F16, BF16"),
        ({"a": {**ENTRY, "dtype": None}}, "stored as None"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path: Path, header: Any, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        SafetensorsFile.open(write(tmp_path, header, bytes(8)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has 0 bytes"),
        (b"1234567", "it has 7 bytes"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header would have"),
        ((3).to_bytes(8, "little") + b"{}", "header would have 3 bytes; the file has 10"),
        ((2).to_bytes(8, "little") + b"{]", "no JSON"),
        ((4).to_bytes(8, "little") + b"\xff\xfe\xff\xfe", "no JSON"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "no JSON"),
        ((15).to_bytes(8, "little") + b'{"a":1,"a":{} }', "names something twice"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=why):
        SafetensorsFile.open(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot read .*some.safetensors: No such file"):
        SafetensorsFile.open(tmp_path / "some.safetensors")


@pytest.mark.parametrize("open_it", [SafetensorsFile.open, read_json])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, open_it: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(LoadError, match=f"{path} is no regular file; supported: files, and links to files"):
            open_it(path)


def write(folder: Path, header: Any, data: bytes, padding: int = 0) -> Path:
    text = json.dumps(header).encode()
    text += b" " * ((-len(text)) % 8 + padding)
    path = folder / "some.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path
