"""What a server takes it gives back: memory, descriptors, shared memory, processes, time."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from pathlib import Path

import pytest
from support.load import prompts, together
from support.server import Server, children, is_alive, open_files, rss_bytes, serving

MIB = 1 << 20


def all_pids(server: Server) -> list[int]:
    return [server.process.pid, *children(server.process.pid)]


def leftovers(folder: str) -> set[Path]:
    """What outlives processes: shared memory, and what is in the folder for sockets."""
    return {*Path("/dev/shm").iterdir(), *Path(folder).iterdir()}


def test_an_idle_server_uses_no_processor(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa") as server:
        together(server, [{"prompt": p, "max_tokens": 8} for p in prompts(4, seed=1)])
        pids = all_pids(server)
        # Behind its first answers a start takes memory ahead, keeps the model and reads the vocabulary, in threads that end.
        server.wait_until("a start's own work has ended", lambda: has_settled(pids), 60)
        before = ran_ms(pids)
        time.sleep(5)  # the span that is measured
        used = {thread: ms - before.get(thread, 0) for thread, ms in ran_ms(pids).items()}
        assert used.keys() <= before.keys(), "no thread begins"
        assert sum(used.values()) <= 10, {thread: ms for thread, ms in used.items() if ms > 0.1}


def has_settled(pids: list[int]) -> bool:
    """Whether none of these processes' threads begins, ends or runs for a second, and none is left that waits for the processor to end."""
    before = ran_ms(pids)
    time.sleep(1)
    after = ran_ms(pids)
    is_quiet = after.keys() == before.keys() and sum(after.values()) - sum(before.values()) <= 5
    return is_quiet and not any(name.startswith(("pelton-arena", "pelton-vocab")) for name in after)


def ran_ms(pids: list[int]) -> dict[str, float]:
    """Milliseconds that each living thread of these processes has run."""
    ran = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                name, ns = (task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0])
                ran[f"{name} ({task.name})"] = ns / 1e6
    return ran


def test_a_thousand_requests_leave_nothing_behind(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa") as server:  # all else as it is by default
        load(server, 80)  # what is made at the first use: buffers, connections, threads
        pids = all_pids(server)
        rss, files = {p: rss_bytes(p) for p in pids}, {p: open_files(p) for p in pids}
        load(server, 1000)
        server.wait_until("connections are closed", lambda: {p: open_files(p) for p in pids} == files, 30)
        grown = sum(rss_bytes(p) for p in pids) - sum(rss.values())
        assert grown < 24 * MIB, f"resident memory grew by {grown / MIB:.1f} MiB"
        assert server.metric("pelton_blocks_held") == 0
        assert server.metric("vllm:num_requests_running") == 0


def load(server: Server, count: int) -> None:
    for start in range(0, count, 40):
        together(server, [{"prompt": p, "max_tokens": 4} for p in prompts(40, seed=start)])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_after_the_end(checkpoints: Path, how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="left") as folder:  # a short path: sockets allow no other
        before = leftovers(folder)
        environment = {"XDG_RUNTIME_DIR": folder, "TMPDIR": folder}
        end_it(checkpoints, how, environment)
        if how is signal.SIGKILL:
            # A folder for files is on the disk, where nobody takes it away from the dead: the next server does.
            left = leftovers(folder) - before
            assert all(path.name.startswith("pelton-files-") for path in left), left
            end_it(checkpoints, signal.SIGTERM, environment)
        assert leftovers(folder) <= before


def end_it(checkpoints: Path, how: signal.Signals, folders: dict[str, str]) -> None:
    """A server has served, and ends."""
    with serving(checkpoints / "llama-gqa", env=folders) as server:
        together(server, [{"prompt": p, "max_tokens": 4} for p in prompts(4, seed=2)])
        pids = all_pids(server)
        assert len(pids) >= 2
        code = server.stop(how)
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else 0), "\n".join(server.log)
        server.wait_until("the worker has ended", lambda: not any(is_alive(pid) for pid in pids))
