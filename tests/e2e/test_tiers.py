"""KV blocks below the devices: what was pushed out, lost with a worker or left by an earlier server comes back, and the
tokens are those of an undisturbed run. What is damaged, or of another model, is computed again and never wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.checkpoints import SPECIALS, VOCAB
from support.load import Done, complete
from support.server import PELTON, Server, free_port, serving

BLOCK = 8
PREFIX = 240
WHOLE_BLOCKS = 232  # at most all but one token of 241 and more; the last block may be shared in part
# 3 layers, keys and values, 2 heads of 16 float32: 6 KiB a block, 80 blocks, of which one request here takes 32.
FLAGS = ("--max-model-len", "512", "--block-size", str(BLOCK), "--kv-memory", str(80 * 6144), "--device", "cpu")
HOST = ("--kv-host-memory", "4MiB")


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(len(SPECIALS), VOCAB) for _ in range(PREFIX + 1)]


def ask(server: Server, seed: int, **fields: object) -> Done:
    return complete(server, prompt(seed), max_tokens=8, **fields)


def push_out(server: Server, seeds: Sequence[int] = range(100, 106)) -> None:
    """Six other prompts: more than the device holds."""
    for seed in seeds:
        assert ask(server, seed).cached == 0


def settle(server: Server) -> None:
    """Until everything that was computed is saved, and the disk has what it was ordered: both are said a while apart on a busy machine."""
    server.wait_until("blocks are saved", lambda: server.metric("pelton_kv_saves_total") > 0)
    last, times = (-1.0, -1.0), 0

    def is_still() -> bool:
        nonlocal last, times
        now = (server.metric("pelton_kv_saves_total"), server.metric("pelton_disk_writes_total"))
        held = server.metric("pelton_host_blocks_held")
        times, last = times + 1 if now == last and held == 0 else 0, now
        return times == 10

    server.wait_until("nothing moves", is_still)


@pytest.fixture(scope="module")
def expected(checkpoints: Path) -> dict[int, list[int]]:
    """What a server says that keeps nothing."""
    with serving(checkpoints / "llama-gqa", *FLAGS, "--no-prefix-caching") as server:
        return {seed: ask(server, seed).tokens for seed in range(1, 5)}


def test_a_prefix_that_was_pushed_out_comes_back_from_host_memory(
    checkpoints: Path, expected: dict[int, list[int]]
) -> None:
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST) as server:
        first = ask(server, 1)
        assert (first.tokens, first.cached) == (expected[1], 0)
        settle(server)
        push_out(server)
        again = ask(server, 1)
        assert again.tokens == expected[1]
        assert again.cached >= WHOLE_BLOCKS
        assert server.metric("pelton_kv_loads_total") >= WHOLE_BLOCKS // BLOCK - 1
        assert tier(server, "host") >= WHOLE_BLOCKS - BLOCK
        assert tier(server, "disk") == 0


def test_without_host_memory_it_is_computed_again(checkpoints: Path, expected: dict[int, list[int]]) -> None:
    with serving(checkpoints / "llama-gqa", *FLAGS) as server:
        ask(server, 1)
        push_out(server)
        again = ask(server, 1)
        assert (again.tokens, again.cached < WHOLE_BLOCKS) == (expected[1], True)
        assert server.metric("pelton_host_blocks") == 0


def test_a_prefix_outlives_its_worker(checkpoints: Path, expected: dict[int, list[int]]) -> None:
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST) as server:
        ask(server, 1)
        settle(server)
        victim = server.worker_pid()
        os.kill(victim, signal.SIGKILL)
        server.wait_until("the loss is seen", lambda: server.metric("pelton_worker_restarts_total") == 1)
        again = ask(server, 1)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[1], True)
        assert tier(server, "host") >= WHOLE_BLOCKS - BLOCK


def test_two_workers_share_what_one_of_them_has_computed(checkpoints: Path, expected: dict[int, list[int]]) -> None:
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, "--workers", "2") as server:
        server.wait_until("both are ready", lambda: server.metric("pelton_workers_ready") == 2, 120)
        ask(server, 1)
        settle(server)
        for victim in server.worker_pids():  # whichever has it on its device
            restarts = server.metric("pelton_worker_restarts_total")
            os.kill(victim, signal.SIGKILL)
            server.wait_until(
                "the loss is seen", lambda before=restarts: server.metric("pelton_worker_restarts_total") > before
            )
            again = ask(server, 1)
            assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[1], True)
        assert tier(server, "host") >= WHOLE_BLOCKS - BLOCK


def test_a_prefix_outlives_the_server_on_disk_and_its_worker_may_be_killed_meanwhile(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        for seed in (1, 2):
            ask(server, seed)
        ask(server, 3, cache_salt="mine")
        settle(server)
        server.wait_until("they were found", lambda: server.metric("pelton_disk_blocks") >= 3 * WHOLE_BLOCKS // BLOCK)
        # `serving` ends it by SIGKILL: nothing is left to an orderly end.
    files = list((tmp_path / "kv").rglob("*"))
    assert files
    assert all(oct(path.stat().st_mode & 0o777) == ("0o700" if path.is_dir() else "0o600") for path in files)
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        again = ask(server, 1)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[1], True)
        assert tier(server, "disk") >= WHOLE_BLOCKS - BLOCK
        assert ask(server, 3, cache_salt="another's").cached < BLOCK
        again = ask(server, 3, cache_salt="mine")
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[3], True)
        os.kill(server.worker_pid(), signal.SIGKILL)
        again = ask(server, 2)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[2], True)
        assert server.metric("pelton_disk_faults_total") == 0
        assert server.stop() == 0
    assert server.stop() == 0
    purged = subprocess.run([PELTON, "cache", "purge", tmp_path / "kv"], capture_output=True, text=True, check=True)
    assert "removed" in purged.stdout
    assert list((tmp_path / "kv").iterdir()) == []


def test_damaged_files_are_computed_again_and_nobody_hears_of_it(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        ask(server, 1)
        settle(server)
    blocks = sorted((tmp_path / "kv").rglob("*.kv"))
    rng = random.Random(5)
    for path in blocks:
        damaged = bytearray(path.read_bytes())
        damaged[rng.randrange(300, len(damaged))] ^= 1 << rng.randrange(8)  # behind the head, where a scan looks
        path.write_bytes(damaged)
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        # Counts are published a moment behind the start.
        server.wait_until("they were found", lambda: server.metric("pelton_disk_blocks") == len(blocks))
        again = ask(server, 1)
        assert (again.tokens, again.cached) == (expected[1], 0)
        assert server.metric("pelton_disk_faults_total") > 0
        settle(server)
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:  # written again, soundly
        again = ask(server, 1)
        assert again.tokens == expected[1]
        assert tier(server, "disk") > 0


def test_files_of_another_model_are_not_looked_at(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-tied", *FLAGS, *HOST, *disk) as server:
        ask(server, 1)
        settle(server)
    listed = subprocess.run([PELTON, "cache", "list", tmp_path / "kv"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 2, listed.stdout
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        assert server.metric("pelton_disk_blocks") == 0
        again = ask(server, 1)
        assert (again.tokens, again.cached) == (expected[1], 0)


def test_blocks_of_8_bits_come_back_from_host_memory_and_disk_and_are_no_others(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    """float32 KV of 16 columns: 64 bytes are 16, and 4 of a scale. So more than three times the tokens fit."""
    disk, int8 = ("--kv-disk", str(tmp_path / "kv")), ("--kv-dtype", "int8")
    with serving(checkpoints / "llama-gqa", *FLAGS, *int8, *HOST, *disk) as server:
        assert server.metric("pelton_blocks") == 80 * 64 // 20
        first = ask(server, 1)
        settle(server)
        push_out(server, range(100, 112))
        again = ask(server, 1)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (first.tokens, True)
        assert tier(server, "host") >= WHOLE_BLOCKS - BLOCK
        settle(server)
    with serving(checkpoints / "llama-gqa", *FLAGS, *int8, *HOST, *disk) as server:
        again = ask(server, 1)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (first.tokens, True)
        assert tier(server, "disk") >= WHOLE_BLOCKS - BLOCK
        assert server.metric("pelton_disk_faults_total") == 0
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        assert server.metric("pelton_disk_blocks") == 0
        assert ask(server, 1).tokens == expected[1]


def test_files_of_the_same_weights_held_otherwise_are_not_looked_at(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        assert ask(server, 1).tokens == expected[1]
        settle(server)
    with serving(
        checkpoints / "llama-gqa", *FLAGS, *HOST, *disk, "--quantize", "int4", "--quantize-skip", "none"
    ) as server:
        assert server.metric("pelton_disk_blocks") == 0
        rounded = ask(server, 1)
        assert rounded.cached == 0
        again = ask(server, 1)
        assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (rounded.tokens, True)


def test_a_folder_that_goes_away_costs_blocks_and_no_request(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        (tmp_path / "kv").rename(tmp_path / "moved")
        for path in sorted((tmp_path / "moved").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "moved").rmdir()
        for seed in (1, 2, 3):
            assert ask(server, seed).tokens == expected[seed]
        server.wait_until("it is noticed", lambda: server.metric("pelton_disk_faults_total") > 0)
        assert ask(server, 1).tokens == expected[1]
        assert sum("cannot be written to disk" in line for line in server.log) == 1


def test_a_second_server_is_refused_the_folder(checkpoints: Path, tmp_path: Path) -> None:
    disk = ("--kv-disk", str(tmp_path / "kv"))
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, *disk) as server:
        command = [PELTON, "serve", checkpoints / "llama-gqa", "--port", str(free_port()), *FLAGS, *HOST, *disk]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert f"is used by another server (process {server.process.pid})" in second.stderr
        purge = subprocess.run([PELTON, "cache", "purge", tmp_path / "kv"], capture_output=True, text=True, check=False)
        assert (purge.returncode, "used by another server" in purge.stderr) == (1, True)
        assert server.get("/readyz").status_code == 200


@contextlib.contextmanager
def worker(socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "pelton.worker", "--listen", f"unix://{socket}"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_of_others_reaches_host_memory_and_lets_go_of_it(
    checkpoints: Path, tmp_path: Path, expected: dict[int, list[int]]
) -> None:
    socket = tmp_path / "worker.sock"
    with worker(socket) as process:
        for _router in range(2):  # each with memory of its own
            with serving(checkpoints / "llama-gqa", *FLAGS, *HOST, "--worker", f"unix://{socket}") as server:
                ask(server, 1)
                settle(server)
                push_out(server)
                again = ask(server, 1)
                assert (again.tokens, again.cached >= WHOLE_BLOCKS) == (expected[1], True)
                assert tier(server, "host") > 0
        assert process.poll() is None


def test_nothing_is_left_in_shared_memory_folders(checkpoints: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    with serving(checkpoints / "llama-gqa", *FLAGS, *HOST) as server:
        ask(server, 1)
        assert set(Path("/dev/shm").iterdir()) <= before
    assert set(Path("/dev/shm").iterdir()) <= before


def tier(server: Server, name: str) -> float:
    """Tokens that were found in this tier."""
    lines = server.get("/metrics").text.splitlines()
    found = [
        line for line in lines if line.startswith("pelton_prefix_cache_hits_by_tier_total") and f'"{name}"' in line
    ]
    assert len(found) == 1, found
    return float(found[0].rsplit(" ", 1)[1])
