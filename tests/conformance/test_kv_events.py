"""KV events, read as routers that follow vLLM read them: libzmq, msgspec, and structs declared as vLLM declares them. C:K4."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from support.load import complete, prompts
from support.server import Server, serving

BLOCK = 32
PATIENCE_MS = 30_000
END = (2**64 - 1).to_bytes(8, "big")


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Reader:
    """Keeps an index of what a server has, from its events alone."""

    def __init__(self, live: str, replay: str) -> None:
        context = zmq.Context.instance()
        self.live = context.socket(zmq.SUB)
        self.live.setsockopt(zmq.SUBSCRIBE, b"kv")
        self.live.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.live.connect(live)
        self.ask = context.socket(zmq.DEALER)
        self.ask.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.ask.connect(replay)
        self.next = 0
        self.chains: dict[int | bytes, tuple[int, ...]] = {}  # by block: all tokens up to its end
        self.seen: list[Event] = []

    def catch_up(self) -> None:
        """Takes in all that was published so far."""
        self.ask.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            *_, sequence, payload = self.ask.recv_multipart()
            if sequence == END:
                return
            if int.from_bytes(sequence, "big") == self.next:
                self.take(payload)

    def wait_live(self) -> None:
        """Takes in the next batch that comes by itself."""
        topic, sequence, payload = self.live.recv_multipart()
        assert topic == b"kv"
        if int.from_bytes(sequence, "big") == self.next:
            self.take(payload)

    def take(self, payload: bytes) -> None:
        batch = msgspec.msgpack.decode(payload, type=Batch)
        self.next += 1
        for event in batch.events:
            self.seen.append(event)
            if isinstance(event, AllBlocksCleared):
                self.chains.clear()
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.chains[block]
            else:
                assert event.block_size == BLOCK
                tokens = () if event.parent_block_hash is None else self.chains[event.parent_block_hash]
                for index, block in enumerate(event.block_hashes):
                    tokens += tuple(event.token_ids[index * BLOCK : (index + 1) * BLOCK])
                    self.chains[block] = tokens

    def hear_until(self, heard: Callable[[], bool]) -> None:
        """Catches up until this holds: an answer may be read before its step's events are published."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        self.catch_up()
        while not heard():
            assert time.monotonic() < deadline, f"never heard, after {len(self.seen)} events"
            time.sleep(0.01)
            self.catch_up()

    def hear_of(self, prompt: list[int]) -> None:
        """Catches up until the whole blocks of a prompt are known."""
        self.hear_until(lambda: self.longest(prompt) == len(prompt) // BLOCK * BLOCK)

    def longest(self, prompt: list[int]) -> int:
        """Tokens of the longest cached chain that the prompt begins with."""
        return max((len(c) for c in self.chains.values() if tuple(prompt[: len(c)]) == c), default=0)


@pytest.fixture(scope="module")
def told(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Reader]]:
    folder = tmp_path_factory.mktemp("events")
    live, replay = f"ipc://{folder}/live", f"ipc://{folder}/replay"
    flags = ["--kv-events", live, "--kv-events-replay", replay, "--kv-events-topic", "kv", "--kv-memory", "2MiB"]
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", *flags) as server:
        yield server, Reader(live, replay)


def test_an_index_made_of_events_knows_what_the_server_finds(told: tuple[Server, Reader]) -> None:
    server, reader = told
    asked = prompts(4, seed=5, shortest=100, longest=120)
    for prompt in asked:
        complete(server, prompt, max_tokens=1)
    for prompt in asked:
        reader.hear_of(prompt)
    assert isinstance(reader.seen[0], AllBlocksCleared), "nothing is known of an earlier life"
    for prompt in asked:
        cached = complete(server, prompt, max_tokens=1).cached
        assert cached >= min(reader.longest(prompt), len(prompt) - 1)


def test_blocks_of_other_salts_have_other_keys(told: tuple[Server, Reader]) -> None:
    server, reader = told
    (prompt,) = prompts(1, seed=6, shortest=70, longest=80)
    complete(server, prompt, max_tokens=1)
    reader.hear_of(prompt)
    before = len(reader.seen)

    def first_blocks() -> list[BlockStored]:
        return [e for e in reader.seen[before:] if isinstance(e, BlockStored) and e.parent_block_hash is None]

    for salt in ("red", "blue"):
        complete(server, prompt, max_tokens=1, cache_salt=salt)
    reader.hear_until(lambda: len(first_blocks()) >= 2)
    keys = [event.extra_keys and event.extra_keys[0] for event in first_blocks()]
    assert len(keys) == 2
    assert all(keys)
    assert keys[0] != keys[1]


def test_what_is_evicted_is_told_live(told: tuple[Server, Reader]) -> None:
    server, reader = told
    reader.catch_up()
    many = prompts(60, seed=7, shortest=100, longest=150)
    for prompt in many:
        complete(server, prompt, max_tokens=1)
    while not any(isinstance(event, BlockRemoved) for event in reader.seen):
        reader.wait_live()
    reader.hear_of(many[-1])


def test_a_lost_worker_has_lost_its_blocks(told: tuple[Server, Reader]) -> None:
    server, reader = told
    reader.catch_up()
    assert reader.chains
    os.kill(server.worker_pid(), signal.SIGKILL)
    cleared = len([event for event in reader.seen if isinstance(event, AllBlocksCleared)])
    (prompt,) = prompts(1, seed=8, shortest=40, longest=50)
    complete(server, prompt, max_tokens=1)
    reader.hear_of(prompt)
    assert len([event for event in reader.seen if isinstance(event, AllBlocksCleared)]) == cleared + 1
    assert reader.longest(prompts(4, seed=5, shortest=100, longest=120)[0]) == 0
