"""A short soak, so that the long ones work when they are wanted; and what it would say of a leak."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.soak import MIB, Sample, soak, trend

pytestmark = pytest.mark.long


def test_a_short_soak_leaves_nothing_behind() -> None:
    found = soak(0.25, 0.25, ["--max-running", "8"])
    assert found["did"]["failed"] == []
    assert found["did"]["left"] > 0
    assert found["left"] == {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0}
    for process in found["processes"]:
        assert process["files_after"] <= process["files_before"] + 2 * found["clients"], process


def test_clients_notice_nothing_of_workers_that_are_killed_and_of_blocks_that_come_and_go(tmp_path: Path) -> None:
    tiers = ["--kv-host-memory", "16MiB", "--kv-disk", str(tmp_path / "kv")]
    found = soak(0.3, 0.25, ["--max-running", "8", *tiers], kill_every_s=4)
    assert found["did"]["failed"] == []
    assert found["did"]["constrained"] > 0
    assert found["workers_killed"] == found["worker_restarts"] >= 1
    assert found["left"] == {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0}


def test_a_leak_is_seen_through_noise_and_noise_is_no_leak() -> None:
    noise = [3, -2, 5, -4, 1, 0, -5, 2] * 20
    flat = [Sample(i, (500 + jump) * MIB, 10) for i, jump in enumerate(noise)]
    leak = [Sample(i, (500 + jump) * MIB + i * MIB // 8, 10) for i, jump in enumerate(noise)]
    assert trend("worker", flat).is_flat
    assert not trend("worker", leak).is_flat
