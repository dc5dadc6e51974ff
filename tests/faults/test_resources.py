"""What a server takes it gives back: memory, descriptors, shared memory, processes, time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from support.checkpoints import Variant, make_checkpoint
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
        server.wait_until("a start's own work has ended", lambda: has_settled(pids), 180)
        before = ran(pids)
        time.sleep(5)  # the span that is measured
        after = ran(pids)
        assert after.keys() <= before.keys(), "no thread begins"
        used = {thread: after[thread] - before[thread] for thread in after}
        # Some 80, most of them of gRPC's own in Python, which looks up every 200 ms. How long each takes is the machine's affair.
        assert sum(one.times for one in used.values()) <= 200, used
        # One that spins takes 5,000; a look of Python's has taken 2 on a host with others on it.
        assert sum(one.ms for one in used.values()) <= 500, used


def test_a_worker_has_as_many_threads_as_it_is_told_to_compute_with(checkpoints: Path) -> None:
    for count in (1, 3):
        with serving(checkpoints / "llama-gqa", "--threads", str(count)) as server:
            together(server, [{"prompt": p, "max_tokens": 4} for p in prompts(2, seed=1)])
            threads = ran(all_pids(server))
            # The one that walks the program computes too.
            assert len([name for name in threads if name.startswith("pelton-cpu-")]) == count - 1, threads.keys()


def test_private_memory_is_the_weights_the_kv_and_no_more_than_400_mb_beside(checkpoints: Path) -> None:
    kv = 64 * MIB
    with serving(
        checkpoints / "llama-gqa", "--kv-memory", "64MiB", "--model-cache-size", "0"
    ) as server:  # so torch is there
        together(server, [{"prompt": p, "max_tokens": 16} for p in prompts(40, seed=3)])
        held = {pid: private_bytes(pid) for pid in all_pids(server)}
        weights = (checkpoints / "llama-gqa/model.safetensors").stat().st_size
        assert sum(held.values()) <= weights + kv + 400_000_000, {pid: size // MIB for pid, size in held.items()}


@pytest.mark.parametrize(("quantize", "least", "most"), [("auto", 0.7, 1.05), ("int8", 0.45, 0.6)])
def test_weights_lie_in_memory_once(tmp_path: Path, quantize: str, least: float, most: float) -> None:
    """What a model takes beyond a smaller one is its packed weights: no copy as stored or of another format, made anew or kept."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8}
    variants = {layers: Variant("wide", "llama", sizes | {"num_hidden_layers": layers}) for layers in (1, 20)}
    stored = {}
    held: dict[tuple[int, str], int] = {}
    for layers, variant in variants.items():
        folder = make_checkpoint(tmp_path / str(layers), variant, dtype="bfloat16")
        stored[layers] = (folder / "model.safetensors").stat().st_size
        flags = ["--quantize", quantize, "--kv-memory", "64MiB", "--model-cache", str(tmp_path / "kept")]
        for start in ("made", "kept"):
            with serving(folder, *flags) as server:
                together(server, [{"prompt": p, "max_tokens": 16} for p in prompts(20, seed=3)])
                server.wait_until(
                    "the model is kept", lambda: len(list((tmp_path / "kept").glob("*.kept"))) >= len(stored)
                )
                server.wait_until("a start's own work has ended", lambda: has_settled(all_pids(server)), 60)
                maps = [Path(f"/proc/{pid}/maps").read_text() for pid in all_pids(server)]
                assert any("libtorch" in text for text in maps) == (start == "made"), "what is kept needs no PyTorch"
                held[layers, start] = sum(map(private_bytes, all_pids(server)))
    more = stored[20] - stored[1]
    for start in ("made", "kept"):
        taken = held[20, start] - held[1, start]
        # Three quarters of what is stored, or all of it, by the processor's class; and what a process holds by chance.
        assert least * more - 16 * MIB <= taken <= most * more + 16 * MIB, (start, taken // MIB, more // MIB)


def private_bytes(pid: int) -> int:
    """What a process has written for itself. Code that it maps is shared with whoever maps it too."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(r"^Private_(?:Dirty|Hugetlb):\s+(\d+) kB", rollup, re.MULTILINE))


def test_two_servers_on_all_processors_do_not_spin_each_other_to_death(checkpoints: Path) -> None:
    """Who waits for a thread that does not run falls asleep: beside another server a token takes little more processor time than alone."""
    bodies = [{"prompt": p, "max_tokens": 120, "ignore_eos": True} for p in prompts(8, seed=5)]
    threads = ["--threads", str(max(2, len(os.sched_getaffinity(0))))]
    with serving(checkpoints / "llama-gqa", *threads) as one, serving(checkpoints / "llama-gqa", *threads) as other:
        both = [one, other]
        for server in both:
            together(server, bodies)
            server.wait_until("a start's own work has ended", lambda: has_settled(all_pids(server)), 60)  # noqa: B023
        alone = sum(median(used_ms([server], bodies) for _ in range(3)) for server in both)
        beside = median(used_ms(both, bodies) for _ in range(3))
        assert beside <= 3 * alone, f"{beside:.0f} ms of processor time together, {alone:.0f} alone"


def used_ms(servers: list[Server], bodies: list[dict[str, Any]]) -> float:
    """The processor time that servers take which are asked at once."""
    pids = [pid for server in servers for pid in all_pids(server)]
    before = sum(one.ms for one in ran(pids).values())
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda server: together(server, bodies), servers))
    return sum(one.ms for one in ran(pids).values()) - before


class Ran(NamedTuple):
    """Milliseconds that a thread has run, and how often it went to sleep."""

    ms: float
    times: int

    def __sub__(self, before: Ran) -> Ran:
        return Ran(self.ms - before.ms, self.times - before.times)


def has_settled(pids: list[int]) -> bool:
    """Whether none of these processes' threads begins, ends or runs much for a second, and none is left that will end."""
    before = ran(pids)
    time.sleep(1)
    after = ran(pids)
    is_quiet = after.keys() == before.keys() and sum((after[thread] - before[thread]).ms for thread in after) <= 20
    return is_quiet and not any(name.startswith(("pelton-arena", "pelton-pages", "pelton-vocab")) for name in after)


def ran(pids: list[int]) -> dict[str, Ran]:
    """What each living thread of these processes has run."""
    found = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                name, ns = (task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0])
                switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
                found[f"{name} ({task.name})"] = Ran(ns / 1e6, int(switches[1]) if switches else 0)
    return found


def test_a_thousand_requests_leave_nothing_behind(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa") as server:  # all else as it is by default
        load(server, 80)  # what is made at the first use: buffers, connections, threads
        pids = all_pids(server)
        server.wait_until("all memory for KV is taken", lambda: has_settled(pids), 60)
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
