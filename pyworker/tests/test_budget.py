"""What fits, and what a refusal tells to change: the change it names must work."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from pelton.kv import KINDS_MAX, divide
from pelton.kv_shape import Kind, KvShape
from pelton.layers.rotary import Rope
from pelton.loading.budget import CONTEXT_SPARE, MIB, RECORDED_ROWS, Budget, plan
from pelton.loading.error import ContextError, LoadError
from pelton.loading.wish import Wish
from pelton.models.config import DecoderConfig

CONFIG = DecoderConfig(
    vocab=32_000,
    width=1024,
    layers=16,
    heads=16,
    kv_heads=4,
    head_dim=64,
    mlp_width=4096,
    norm_eps=1e-6,
    activation="silu",
    positions=8192,
    is_tied=False,
    ropes=(Rope("default", 1e4),) * 16,
    windows=(None,) * 16,
    attention_scale=64**-0.5,
)
KV = KvShape(layers=16, heads=4, head_dim=64, block_size=32, dtype="bfloat16")  # 512 KiB per block, 128 MiB per 8k
WEIGHTS, HELD = 500 * MIB, 200 * MIB
WISH = Wish(Path(), slots=16, token_budget=512)


def budget(wish: Wish, limit: int) -> Budget:
    return plan(wish, CONFIG, KV, WEIGHTS, HELD, limit)


def ask(limit: int, **wish: Any) -> Budget:
    return budget(dataclasses.replace(WISH, **wish), limit)


def test_kv_is_what_the_limit_leaves() -> None:
    got = ask(2000 * MIB)
    rest = 2000 * MIB - WEIGHTS - HELD - got.activation_bytes
    assert 0 <= rest - got.kv_bytes < KV.block_bytes
    assert got.blocks * KV.block_bytes == got.kv_bytes
    assert got.max_model_len == CONFIG.positions


def test_a_card_needs_room_for_lists_of_keys_and_for_what_is_recorded() -> None:
    on_card, on_cpu = (plan(WISH, CONFIG, KV, WEIGHTS, HELD, 2000 * MIB, None, is_card) for is_card in (True, False))
    keys = WISH.slots * CONFIG.vocab * 8
    recorded = RECORDED_ROWS * (on_cpu.activation_bytes - keys) // WISH.token_budget  # as if all else were of tokens
    assert keys < on_card.activation_bytes - on_cpu.activation_bytes <= keys + recorded
    assert on_card.blocks < on_cpu.blocks


def test_kv_is_what_was_asked_for() -> None:
    assert ask(4000 * MIB, kv_bytes=300 * MIB).blocks == 600


def test_more_than_requests_and_cache_are_likely_to_use_is_left_to_the_machine() -> None:
    assert ask(1 << 40).kv_bytes == 2 * 16 * 128 * MIB, "16 requests of 8k tokens, and as much again for the cache"
    assert ask(1 << 40, slots=64).kv_bytes == 4096 * MIB, "256k tokens are plenty"
    assert ask(1 << 40, slots=512).kv_bytes == 2 * 512 * 8 * MIB, "512 tokens for each that may run"
    endless = plan(WISH, dataclasses.replace(CONFIG, positions=1 << 17), KV, WEIGHTS, HELD, 1 << 40)
    assert endless.kv_bytes == 2 * 4 * 2048 * MIB, "four of the longest"
    assert ask(1 << 40, kv_bytes=1 << 35).kv_bytes == 1 << 35, "unless it was asked for"


def test_a_context_that_was_not_asked_for_shrinks_to_what_fits() -> None:
    got = ask(4000 * MIB, kv_bytes=64 * MIB)
    assert got.max_model_len == got.blocks * KV.block_size == 4096


def test_a_context_beyond_any_memory_shrinks_to_the_longest_that_fits() -> None:
    endless = dataclasses.replace(CONFIG, positions=10**12)
    for limit, kv_bytes in [(2000 * MIB, 0), (8000 * MIB, 0), (4000 * MIB, 64 * MIB)]:
        wish = dataclasses.replace(WISH, kv_bytes=kv_bytes, memory_limit_bytes=limit)
        got = plan(wish, endless, KV, WEIGHTS, HELD, limit)
        asked = dataclasses.replace(wish, max_model_len=got.max_model_len)
        assert plan(asked, endless, KV, WEIGHTS, HELD, limit).max_model_len == got.max_model_len
        spare = CONTEXT_SPARE if kv_bytes == 0 else 0  # what another start may take more
        longer = dataclasses.replace(wish, max_model_len=got.max_model_len + 1)
        with pytest.raises(LoadError):
            plan(longer, endless, KV, WEIGHTS, HELD + spare, limit)


def test_every_start_of_a_server_has_the_first_ones_context() -> None:
    """A process holds more at one start than at another."""
    endless = dataclasses.replace(CONFIG, positions=1 << 17)
    limited = dataclasses.replace(WISH, memory_limit_bytes=2000 * MIB)
    # Where a worker reads its limit from the machine, that changes as well: by a sixteenth of what there is for the context.
    for wish, spare in ((limited, CONTEXT_SPARE), (WISH, (2000 * MIB - HELD - WEIGHTS) // 16)):
        first = plan(wish, endless, KV, WEIGHTS, HELD, 2000 * MIB)
        assert first.max_model_len < endless.positions
        later = dataclasses.replace(wish, first_context=first.max_model_len)
        for held in (HELD // 2, HELD, HELD + 100_000, HELD + spare):
            again = plan(later, endless, KV, WEIGHTS, held, 2000 * MIB)
            assert again.max_model_len == first.max_model_len
        with pytest.raises(ContextError, match="with which this server began, fits no more: there is room") as error:
            plan(later, endless, KV, WEIGHTS, HELD + 2 * spare, 2000 * MIB)
    room = int(str(error.value).rpartition("at most ")[2].partition(",")[0])
    ask(2000 * MIB, max_model_len=min(room, CONFIG.positions))


def test_a_size_that_is_refused_is_shown_as_it_was_given() -> None:
    with pytest.raises(LoadError, match="--kv-memory 1 holds no block of 32 tokens: set --kv-memory to at least 1MiB"):
        plan(dataclasses.replace(WISH, kv_bytes=1), CONFIG, dataclasses.replace(KV, layers=32), WEIGHTS, HELD, 1 << 34)
    with pytest.raises(
        LoadError, match="--kv-memory 1KiB holds no block of 32 tokens: set --kv-memory to at least 32KiB"
    ):
        plan(
            dataclasses.replace(WISH, kv_bytes=1024), CONFIG, dataclasses.replace(KV, layers=1), WEIGHTS, HELD, 1 << 34
        )


@pytest.mark.parametrize(
    ("limit", "wish", "flag"),
    [
        (600 * MIB, {}, "--memory-limit"),
        (800 * MIB, {"max_model_len": 8192}, "--memory-limit"),
        (1000 * MIB, {"kv_bytes": 900 * MIB}, "--kv-memory"),
        (1000 * MIB, {"kv_bytes": 900 * MIB}, "--memory-limit"),
        (4000 * MIB, {"kv_bytes": 1}, "--kv-memory"),
        (4000 * MIB, {"kv_bytes": 1000}, "--kv-memory"),
        (4000 * MIB, {"kv_bytes": 64 * MIB, "max_model_len": 8192}, "--kv-memory"),
        (4000 * MIB, {"kv_bytes": 64 * MIB, "max_model_len": 8192}, "--max-model-len"),
        (4000 * MIB, {"max_model_len": 9000}, "--max-model-len"),
    ],
)
def test_a_refusal_names_a_change_that_helps(limit: int, wish: dict[str, int], flag: str) -> None:
    with pytest.raises(LoadError) as error:
        ask(limit, **wish)
    found = re.search(rf"{flag} to at (?:least|most) (\d+)(MiB|KiB)?", str(error.value))
    assert found is not None, error.value
    number = int(found[1]) * {None: 1, "KiB": 1024, "MiB": MIB}[found[2]]
    if flag == "--memory-limit":
        ask(number, **wish)
    else:
        ask(limit, **{**wish, {"--kv-memory": "kv_bytes", "--max-model-len": "max_model_len"}[flag]: number})


def test_a_request_needs_of_a_window_what_it_may_touch_however_long_it_is() -> None:
    windowed = dataclasses.replace(KV, layers=4, kinds=(Kind(None), *[Kind(65)] * 3))
    assert [windowed.blocks_for(tokens) for tokens in (1, 32, 33, 96, 97, 8192)] == [4, 4, 8, 12, 13, 256 + 9]
    # Most of what full attention would take is free for the cache: 128 KiB a block.
    got = plan(WISH, CONFIG, windowed, WEIGHTS, HELD, 1100 * MIB)
    assert (got.max_model_len, got.blocks_per_request) == (8192, 265)
    with pytest.raises(LoadError, match="--kv-memory 384KiB holds no block"):
        plan(dataclasses.replace(WISH, kv_bytes=384 << 10), CONFIG, windowed, WEIGHTS, HELD, 1100 * MIB)
    few = plan(dataclasses.replace(WISH, kv_bytes=21 * (128 << 10)), CONFIG, windowed, WEIGHTS, HELD, 1100 * MIB)
    assert (few.blocks, few.max_model_len, few.blocks_per_request) == (21, 12 * 32, 21)


@pytest.mark.parametrize(
    ("windows", "per_kind", "kinds"),
    [
        ([None] * 28, 28, [None]),  # Llama
        ([4096] * 32, 32, [4096]),  # Mistral
        ([4096, None] * 13, 13, [None, 4096]),  # Gemma 2
        (([512] * 5 + [None]) * 4 + [512] * 2, 4, [None] + [512] * 6),  # Gemma 3 1B: 22 windows in 6 kinds of 4
        (([1024] * 5 + [None]) * 10 + [1024] * 2, 10, [None] + [1024] * 6),  # Gemma 3 27B: 52 in 6 kinds of 10
        ([None] + [64] * 60, 4, [None] + [64] * 15),  # one kind of each layer would be too many
        ([None, 8, 16], 1, [None, 8, 16]),
    ],
)
def test_layers_are_divided_into_few_kinds_of_equally_many(
    windows: list[int | None], per_kind: int, kinds: list[int | None]
) -> None:
    division = divide(windows)
    assert (division.per_kind, [kind.window for kind in division.kinds]) == (per_kind, kinds)
    assert len(kinds) <= KINDS_MAX
    assert len(set(division.places)) == len(windows), "no two layers share a place"
    for window, place in zip(windows, division.places, strict=True):
        assert division.kinds[place.kind].window == window
        assert place.at < per_kind
