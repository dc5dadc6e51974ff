"""Real readers (pyzmq, that is libzmq, and msgspec) against the publisher of examples/publish.rs.

    python -m venv /tmp/readers && /tmp/readers/bin/pip install pyzmq msgspec
    cargo build --release -p pelton-kv-events --examples
    /tmp/readers/bin/python router/kv_events/tests/readers.py target/release/examples/publish

Prints one line per scenario and fails at the first that goes wrong. What it reads is decoded into structs declared as
vLLM's own subscriber declares them.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

END = (2**64 - 1).to_bytes(8, "big")
PATIENCE_MS = 20_000


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


decoder = msgspec.msgpack.Decoder(Batch)


class OldEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class OldBlockStored(OldEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class OldBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[OldBlockStored]


class Publisher:
    """The example, under control."""

    def __init__(self, *options: str) -> None:
        command = [sys.argv[1], *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint, self.replay = self._line().split()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._line()

    def publish(self, count: int) -> int:
        return int(self.ask(f"publish {count}"))

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=10) == 0


@contextmanager
def publisher(*options: str) -> Iterator[Publisher]:
    running = Publisher("--replay", "tcp://127.0.0.1:0", *options)
    try:
        yield running
        running.end()
    finally:
        running.process.kill()


context = zmq.Context()


def reader(kind: int, endpoint: str) -> zmq.Socket[bytes]:
    opened = context.socket(kind)
    opened.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.RCVHWM, 1_000)
    opened.setsockopt(zmq.RECONNECT_IVL, 10)
    opened.connect(endpoint)
    return opened


def subscribed(source: Publisher, prefix: bytes = b"") -> tuple[zmq.Socket[bytes], int]:
    """A subscriber that has received something, and the last sequence it has. A subscription is not acknowledged, so batches
    are published until one arrives."""
    opened = reader(zmq.SUB, source.endpoint)
    opened.setsockopt(zmq.SUBSCRIBE, prefix)
    published = source.publish(1)
    while not opened.poll(50):
        published = source.publish(1)
    return opened, take(opened, until=published - 1)[-1]


def take(opened: zmq.Socket[bytes], until: int) -> list[int]:
    """Live sequences up to this one."""
    taken: list[int] = []
    while not taken or taken[-1] < until:
        topic, sequence, payload = opened.recv_multipart()
        taken.append(check(topic, sequence, payload))
    return taken


def check(topic: bytes, sequence: bytes, payload: bytes) -> int:
    number, batch = int.from_bytes(sequence, "big"), decoder.decode(payload)
    (stored,) = batch.events
    assert topic == b"kv@pod@model"
    assert (batch.ts, batch.data_parallel_rank) == (float(number), 2)
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [number]
    assert stored.parent_block_hash == (number - 1 if number else None)
    assert stored.token_ids == list(range(number, number + 16))
    assert (stored.block_size, stored.medium, stored.lora_id, stored.lora_name) == (16, "GPU", None, None)
    return number


def replayed(source: Publisher, start: int) -> list[int]:
    """What a DEALER gets, as llm-d's router asks."""
    dealer = reader(zmq.DEALER, source.replay)
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    taken: list[int] = []
    while True:
        delimiter, topic, sequence, payload = dealer.recv_multipart()
        assert delimiter == b""
        if sequence == END:
            assert (topic, payload) == (b"", b"")
            dealer.close()
            return taken
        taken.append(check(topic, sequence, payload))


def live(options: list[str]) -> str:
    with publisher(*options) as source:
        subscriber, last = subscribed(source)
        end = source.publish(500)
        assert take(subscriber, end - 1) == list(range(last + 1, end))
        return f"{end} batches in order"


def late_with_replay(options: list[str]) -> str:
    with publisher(*options, "--steps", "300") as source:
        early, _ = subscribed(source)
        source.publish(100)
        late, last = subscribed(source)
        assert last >= 100
        assert replayed(source, 0) == list(range(last + 1))
        assert replayed(source, 60) == list(range(60, last + 1))
        assert replayed(source, last + 1) == []
        assert replayed(source, 2**64 - 1) == []
        end = source.publish(1000)
        take(early, end - 1)
        assert replayed(source, 0) == list(range(end - 300, end)), "the ring holds 300"
        assert take(late, end - 1) == list(range(last + 1, end))
        request = reader(zmq.REQ, source.replay)
        for start in (end - 2, end - 1):
            request.send(start.to_bytes(8, "big"))
            assert check(*request.recv_multipart()) == start, "a REQ gets the first answer"
            request.close()
            request = reader(zmq.REQ, source.replay)
        request.close()
        return "replay from 0, from the middle, from the end, after the ring turned"


def slow(options: list[str]) -> str:
    with publisher(*options, "--steps", "1000") as source:
        stopped, last_of_stopped = subscribed(source)
        fast, last = subscribed(source)
        before = source.resident_mib()
        for _ in range(200):
            end = source.publish(500)
            assert take(fast, end - 1) == list(range(last + 1, end))
            last = end - 1
        growth = source.resident_mib() - before
        assert growth < 16, f"{growth} MiB for 1000 batches kept"
        seen = take(stopped, last)
        missed = last - last_of_stopped - len(seen)
        assert missed > 0
        assert seen == sorted(set(seen))
        assert replayed(source, last - 999) == list(range(last - 999, last + 1))
        return f"100,000 batches: fast missed none, stopped missed {missed}; {growth:.1f} MiB more"


def reconnection(options: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/events"
        with publisher(*options, "--endpoint", endpoint) as first:
            subscriber, _ = subscribed(first)
        assert not Path(folder, "events").exists(), "the socket file is removed"
        killed = Publisher("--endpoint", endpoint, *options)
        killed.process.kill()
        killed.process.wait()
        assert Path(folder, "events").exists(), "a stale file is left by SIGKILL"
        with publisher(*options, "--endpoint", endpoint) as second:
            while not subscriber.poll(50):
                end = second.publish(1)
            taken = take(subscriber, end - 1)
            assert taken == list(range(taken[0], end))
            assert replayed(second, 0) == list(range(end)), "sequences began at 0 again"
    return "libzmq came back to a new publisher on the same path by itself"


def topics(options: list[str]) -> str:
    with publisher(*options) as source:
        other = reader(zmq.SUB, source.endpoint)
        other.setsockopt(zmq.SUBSCRIBE, b"kv@another")
        whole, _ = subscribed(source, b"kv@pod@model")
        prefix, last = subscribed(source, b"kv@")
        end = source.publish(100)
        assert take(prefix, end - 1) == list(range(last + 1, end))
        take(whole, end - 1)
        prefix.setsockopt(zmq.UNSUBSCRIBE, b"kv@")
        take(whole, source.publish(100) - 1)
        assert not other.poll(0)
        again, _ = subscribed(source, b"kv@p")
        again.close()
        return "prefix, whole topic, another topic"


def older(options: list[str]) -> str:
    """C:K4: a reader built against the first schema, five fields by position, reads what has grown since."""
    with publisher(*options, "--array") as source:
        opened = reader(zmq.SUB, source.endpoint)
        opened.setsockopt(zmq.SUBSCRIBE, b"")
        source.publish(1)
        while not opened.poll(50):
            source.publish(1)
        _, sequence, payload = opened.recv_multipart()
        number, batch = int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload, type=OldBatch)
        assert (batch.events[0].block_hashes, batch.events[0].block_size) == ([number], 16)
        opened.close()
        return "the first schema reads the array form"


def garbage(options: list[str]) -> str:
    pieces = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\xff" * 100, bytes(64), b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"]
    with publisher(*options) as source:
        subscriber, last = subscribed(source)
        for endpoint in (source.endpoint, source.replay):
            host, port = endpoint.removeprefix("tcp://").split(":")
            for piece in pieces:
                with socket.create_connection((host, int(port)), timeout=20) as connection:
                    connection.sendall(piece)
                    while True:
                        try:
                            if not connection.recv(100):
                                break
                        except ConnectionResetError:
                            break
        end = source.publish(10)
        assert take(subscriber, end - 1) == list(range(last + 1, end))
        dealer = reader(zmq.DEALER, source.replay)
        dealer.send(b"no sequence")
        assert replayed(source, 0) == list(range(end))
        assert "faults: 11" in source.ask("counts"), source.ask("counts")
        dealer.close()
        return f"{2 * len(pieces) + 1} connections closed, a subscriber and a replay undisturbed"


def crowd(options: list[str]) -> str:
    with publisher(*options) as source:
        readers = [subscribed(source) for _ in range(200)]
        end = source.publish(100)
        for subscriber, last in readers:
            assert take(subscriber, end - 1) == list(range(last + 1, end))
            subscriber.close()
        return "200 subscribers, each with every batch since it came"


def main() -> None:
    options = ["--topic", "kv@pod@model", "--rank", "2"]
    for scenario in (live, late_with_replay, slow, reconnection, topics, older, garbage, crowd):
        print(f"{scenario.__name__}: {scenario(options)}", flush=True)


if __name__ == "__main__":
    main()
