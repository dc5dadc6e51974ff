"""What a worker says that it runs on, before torch is asked."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pelton.loading.start import start
from pelton.worker import about
from test_kept import PLENTY, ended, wish_for


def driver(version: int) -> SimpleNamespace:
    """That of a machine with one card. Its calls fill what `byref` points to."""

    def fills(number: int) -> Callable[[Any], int]:
        def fill(place: Any) -> int:
            place._obj.value = number
            return 0

        return fill

    def name(place: Any, _size: int, _card: int) -> int:
        place.value = b"A Card"
        return 0

    return SimpleNamespace(
        cuInit=lambda _flags: 0,
        cuDeviceGetCount=fills(1),
        cuDriverGetVersion=fills(version),
        cuDeviceGetName=name,
    )


@pytest.mark.parametrize(
    ("torch_version", "driver_version", "expected"),
    [
        ("cuda: Optional[str] = '13.0'", 13000, "cuda:0"),
        ("cuda = '13.2'", 13010, "cuda:0"),  # within a first number any driver will do
        ("cuda: Optional[str] = '13.0'", 12080, "cpu"),
        ("cuda: str | None = '12.8'", 13000, "cuda:0"),
        ("debug = False", 12080, "cuda:0"),
    ],
)
def test_a_card_whose_driver_is_too_old_for_torch_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_version: str, driver_version: int, expected: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\n{torch_version}\n")
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: found)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver(driver_version))
    assert about.device()[0] == expected
    (tmp_path / "lib" / "libtorch_cuda.so").unlink()
    assert about.device()[0] == "cpu", "torch is built without CUDA"


def test_where_torch_cannot_use_a_card_the_log_says_what_keeps_the_model(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pelton.loading.start.about.device", lambda: ("cuda:0", "A Card"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ended(start(wish_for(checkpoints / "llama", device="auto", kept_folder=tmp_path / "kept", kept_bytes=PLENTY)))
    assert "PyTorch cannot use the A Card" in caplog.text
    assert "--device cpu keeps it" in caplog.text
    assert not (tmp_path / "kept").exists()
