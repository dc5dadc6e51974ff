"""A worker that the kernel kills for want of memory is replaced by one that takes less, and requests are answered."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.load import complete
from support.server import serving

MIB, GIB = 1 << 20, 1 << 30


class MemoryGroup:
    """A cgroup of its own with a limit of memory: of the first version, or of the second."""

    def __init__(self, limit: int) -> None:
        self.folder, limit_file = _below_own_group()
        self.folder.mkdir()
        try:
            (self.folder / limit_file).write_text(str(limit))
        except OSError:
            self.folder.rmdir()
            raise

    def enter(self) -> None:
        """Puts the process into it that calls this."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Once the last process has left it."""
        deadline = time.monotonic() + 30
        while (self.folder / "cgroup.procs").read_text():
            assert time.monotonic() < deadline, "processes are left in the group"
            time.sleep(0.05)
        self.folder.rmdir()


def _below_own_group() -> tuple[Path, str]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        name = f"{path.strip('/')}/pelton-test-{uuid.uuid4().hex[:8]}"
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes"
        if number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup") / name, "memory.max"
    raise OSError("no cgroup counts memory")


# Room for a worker of this test's size, but not for all of the KV that it is told to take: it ends while it loads, or beside its first requests.
SIZES = {"at once": (600 * MIB, "600MiB"), "after a while": (GIB + 16 * MIB, "1GiB")}


@pytest.fixture(params=SIZES)
def limited(request: pytest.FixtureRequest) -> Iterator[tuple[MemoryGroup, str]]:
    """A group, and the KV that is too much for it."""
    limit, kv = SIZES[request.param]
    try:
        made = MemoryGroup(limit)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made, kv
    made.remove()


def test_a_worker_that_was_too_large_is_replaced_by_a_smaller_one(
    checkpoints: Path, limited: tuple[MemoryGroup, str]
) -> None:
    group, kv = limited
    with serving(checkpoints / "llama-gqa", "--memory-limit", "8GiB", "--kv-memory", kv, before=group.enter) as server:
        is_told = lambda: any("the next one takes less KV" in line for line in server.log)  # noqa: E731
        server.wait_until("the worker is replaced", is_told)
        assert len(complete(server, [5, 6, 7], max_tokens=4).tokens) == 4
        assert server.stop() == 0
