"""How much memory is asked for before weights are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pelton.loading import foreseen
from pelton.loading.wish import Wish

HELD, STORED = 100, 2000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each that was asked for."""
    taken: list[int] = []
    monkeypatch.setattr(foreseen, "ForeseenMemory", taken.append)
    monkeypatch.setattr("pelton.loading.foreseen.machine.memory", lambda limit: (HELD, limit or HELD + (64 << 30)))
    return taken


@pytest.mark.parametrize(
    ("quantize", "limit", "expected"),
    [
        ("auto", 0, 1500),
        ("int8", 0, 1000),
        ("int4-a16", 0, 500),
        ("auto", HELD + STORED + 300, 300),  # it may stand beside all the weights
        ("auto", HELD, 0),  # the refusal comes later
    ],
)
def test_it_is_most_of_the_weights_as_far_as_there_is_room(
    tmp_path: Path, asked: list[int], quantize: str, limit: int, expected: int
) -> None:
    for name in ("model-1-of-2.safetensors", "model-2-of-2.safetensors"):
        (tmp_path / name).write_bytes(bytes(STORED // 2))
    (tmp_path / "tokenizer.json").write_bytes(bytes(STORED))
    foreseen.foresee(Wish(tmp_path, quantize=quantize, memory_limit_bytes=limit))
    assert asked == [expected]


def test_it_is_bounded_and_none_where_files_cannot_be_seen(tmp_path: Path, asked: list[int]) -> None:
    foreseen.foresee(Wish(tmp_path / "nowhere"))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(16 << 30)  # holes, which take no room
    foreseen.foresee(Wish(tmp_path))
    (tmp_path / "other.safetensors").symlink_to(tmp_path / "gone")
    foreseen.foresee(Wish(tmp_path))
    assert asked == [0, foreseen.BYTES_MAX, 0]
