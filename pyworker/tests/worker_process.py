"""A worker as a process of its own, and the router's side of both doors in Python."""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from pelton.rpc import worker_pb2 as pb
from pelton.rpc.worker_pb2_grpc import WorkerStub
from pelton_kernels._native import RECORDS_CHECKSUM, MaskMemory, WorkerEnd
from plans import CAPACITIES, Plan
from random_checkpoints import VOCAB

DEADLINE_S = 60
PREAMBLE_BYTES = 4096
# Words of the preamble after its first line (proto/frame/src/memory.rs).
SUBMITTED, COMPLETED = 32, 64
MAGIC, FRAME_VERSION = int.from_bytes(b"PLTN", "little"), 5
RESULT_HEADER_WORDS = 16


@dataclass
class Worker:
    """A running worker and a way to call it."""

    process: subprocess.Popen[bytes]
    stub: Any
    path: Path

    def handshake(self, **changes: Any) -> tuple[bytes, pb.HandshakeResponse]:
        """As a router of the same version does it, but for `changes`."""
        nonce = secrets.token_bytes(16)
        fields: dict[str, Any] = {
            "protocol": 1,
            "records_checksum": RECORDS_CHECKSUM,
            "nonce": nonce,
            "epoch": 1,
        } | changes
        answer = self.stub.Handshake(pb.HandshakeRequest(**fields), wait_for_ready=True, timeout=DEADLINE_S)
        return nonce, answer

    def load(self, folder: Path, **changes: Any) -> list[pb.LoadProgress]:
        """Everything that loading says."""
        fields: dict[str, Any] = {"kv_bytes": 4 << 20, "block_size": 8, "threads": 1, "slots": 8, "token_budget": 48}
        wish = pb.LoadRequest(model_path=str(folder), dtype="auto", device="cpu", **(fields | changes))
        return list(self.stub.Load(wish, timeout=DEADLINE_S))

    @contextlib.contextmanager
    def steps(self, nonce: bytes) -> Iterator[InlineSteps]:
        """Frames inline, until the block ends."""
        steps = InlineSteps(self.stub, nonce)
        try:
            yield steps
        finally:
            steps.end()


@contextlib.contextmanager
def running(listen: str, *flags: str, metadata: Any = None) -> Iterator[Worker]:
    """A worker on `listen`, killed at the end if it has not ended by itself."""
    process = subprocess.Popen([sys.executable, "-m", "pelton.worker", "--listen", listen, *flags])
    target = listen.replace("unix://", "unix:").replace("tcp://", "")
    with grpc.insecure_channel(target) as channel:
        try:
            yield Worker(process, WorkerStub(channel), Path(listen.removeprefix("unix://")))
        finally:
            process.kill()
            process.wait()


class InlineSteps:
    """The `Steps` stream."""

    def __init__(self, stub: Any, nonce: bytes) -> None:
        import queue

        self._plans: queue.SimpleQueue[pb.StepsRequest | None] = queue.SimpleQueue()
        self._answers = stub.Steps(iter(self._plans.get, None), timeout=DEADLINE_S)
        self._plans.put(pb.StepsRequest(attach=pb.Attach(nonce=nonce, capacities=pb.Capacities(**CAPACITIES))))
        self.layout_checksum = next(self._answers).layout_checksum

    def send(self, plan: Plan) -> None:
        """Queues a step."""
        self._plans.put(pb.StepsRequest(frame=plan.to_bytes()))

    def result(self) -> tuple[int, int, list[int]]:
        """Step, status and what each row drew."""
        return read_result(next(self._answers).result)

    def last_words(self, count: int) -> list[float]:
        """The last words of a result, as floats: vectors stand behind all else."""
        return np.frombuffer(next(self._answers).result, dtype="<f4")[-count:].tolist()  # type: ignore[no-any-return]

    def end(self) -> None:
        """Says that no more plans come, and waits until the worker has ended the stream too."""
        self._plans.put(None)
        for _ in self._answers:
            pass


def read_result(result: bytes) -> tuple[int, int, list[int]]:
    """Step, status and what each row drew, from a result part."""
    words = np.frombuffer(result, dtype="<u4").tolist()
    rows, status = words[3], words[4]
    return words[0], status, words[RESULT_HEADER_WORDS : RESULT_HEADER_WORDS + rows]


class SharedFrames:
    """Frame memory, a bell and mask memory, made and written as the router's side does."""

    def __init__(self, epoch: int = 1) -> None:
        shape = WorkerEnd.inline(CAPACITIES, epoch)
        self._layout, self._stride = shape.layout, shape.frame_stride
        self.memory = _sealed("frames", PREAMBLE_BYTES + CAPACITIES["frames"] * self._stride)
        self.bell = _sealed("bell", mmap.PAGESIZE)
        self.masks = MaskMemory.create(CAPACITIES["slots"], VOCAB, epoch)
        self._bytes = mmap.mmap(self.memory, 0)
        self._words = np.frombuffer(self._bytes, dtype="<u4")
        self._words[: len(CAPACITIES) + 7] = [
            MAGIC,
            FRAME_VERSION,
            *_halves(RECORDS_CHECKSUM),
            *_halves(shape.layout_checksum),
            epoch,
            *CAPACITIES.values(),
        ]
        self._submitted = 0

    def submit(self, plan: Plan) -> None:
        """Writes the next frame. No futex is woken: the worker looks at each heartbeat."""
        frame = PREAMBLE_BYTES + self._submitted % CAPACITIES["frames"] * self._stride
        for name, region in plan.regions().items():
            begin = frame + self._layout[name][0]
            self._bytes[begin : begin + len(region)] = region
        self._submitted += 1
        self._words[SUBMITTED] = self._submitted

    def result(self) -> tuple[int, int, list[int]]:
        """Waits for the latest frame's result."""
        while self._words[COMPLETED] != self._submitted:
            os.sched_yield()
        frame = PREAMBLE_BYTES + (self._submitted - 1) % CAPACITIES["frames"] * self._stride
        head = frame + self._layout["result_header"][0]
        rows = struct.unpack_from("<4I", self._bytes, head)[3]
        sampled = frame + self._layout["sampled"][0]
        return read_result(self._bytes[head : head + 64] + self._bytes[sampled : sampled + 4 * rows])


def hand_over(path: Path, nonce: bytes, frames: SharedFrames) -> tuple[socket.socket, str | None]:
    """The connection, and why the worker refused; None if it mapped the memory."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(DEADLINE_S)
    connection.connect(str(path))
    fds = array.array("i", [frames.memory, frames.bell, frames.masks.fileno()])
    connection.sendmsg([nonce], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    if connection.recv(1) == b"\x01":
        return connection, None
    length = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))[0]
    return connection, connection.recv(length, socket.MSG_WAITALL).decode()


def _sealed(name: str, size: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _halves(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32
