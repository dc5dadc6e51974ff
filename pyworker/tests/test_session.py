"""Claims on a worker, without a process: who holds it, and until when."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import pytest
from pelton.loading.load import Loaded
from pelton.loading.wish import Wish
from pelton.worker.session import BusyError, ClaimError, Session

NONCE = bytes(16)


def wish(checkpoints: Path) -> Wish:
    return Wish(checkpoints / "llama", kv_bytes=1 << 20, threads=1, slots=8, token_budget=48, device="cpu")


def test_a_worker_is_held_while_it_loads_and_free_the_moment_its_report_is_read(checkpoints: Path) -> None:
    session = Session()
    session.handshake(NONCE, 1)
    loading = session.load(wish(checkpoints), lambda: True)
    next(loading)
    with pytest.raises(BusyError, match="loads a model"):
        session.handshake(NONCE, 2)
    assert any(isinstance(said, Loaded) for said in loading)
    again = session.load(wish(checkpoints), lambda: True)
    assert isinstance(next(again), Loaded), "the same model is there already"
    session.handshake(NONCE, 2)  # though the call of `again` has not ended yet


def test_loading_stops_when_it_is_not_wanted_any_more(checkpoints: Path) -> None:
    session = Session()
    session.handshake(NONCE, 1)
    assert list(session.load(wish(checkpoints), lambda: False)) == []
    session.handshake(NONCE, 2)


def test_loading_comes_after_the_handshake(checkpoints: Path) -> None:
    with pytest.raises(ClaimError, match="handshake comes first"):
        next(iter(Session().load(wish(checkpoints), lambda: True)))


def test_a_loaded_model_of_another_context_than_the_servers_is_loaded_again(checkpoints: Path) -> None:
    session = Session()
    session.handshake(NONCE, 1)
    [first] = [said for said in session.load(wish(checkpoints), lambda: True) if isinstance(said, Loaded)]
    context = first.budget.max_model_len
    same = dataclasses.replace(wish(checkpoints), first_context=context)
    assert list(session.load(same, lambda: True)) == [first]
    shorter = dataclasses.replace(same, first_context=context // 2)
    *_, again = session.load(shorter, lambda: True)
    assert isinstance(again, Loaded)
    assert again.budget.max_model_len == context // 2


def test_a_model_is_gone_before_another_is_read(checkpoints: Path) -> None:
    session = Session()
    session.handshake(NONCE, 1)
    *_, first = session.load(wish(checkpoints), lambda: True)
    model = weakref.ref(first.model)  # type: ignore[union-attr]
    del first
    other = dataclasses.replace(wish(checkpoints), folder=checkpoints / "qwen3")
    loading = session.load(other, lambda: True)
    next(loading)
    assert model() is None, "two do not fit"
    assert any(isinstance(said, Loaded) for said in loading)


def test_another_memory_limit_is_no_other_model(checkpoints: Path) -> None:
    session = Session()
    session.handshake(NONCE, 1)
    first = [said for said in session.load(wish(checkpoints), lambda: True) if isinstance(said, Loaded)]
    limited = dataclasses.replace(wish(checkpoints), memory_limit_bytes=1 << 40)
    second = list(session.load(limited, lambda: True))
    assert second == first
