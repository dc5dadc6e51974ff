"""Fixtures for tests that cross a process border: checkpoints, and servers that are shared by a session."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "pyworker/tests"))  # for vocabularies that its tests make, too
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from support.checkpoints import VARIANTS, make_checkpoint
from support.server import Server, serving

# What these servers load is kept for each other, those of all test processes, not for their user.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PELTON_MODEL_CACHE"] = tempfile.mkdtemp(prefix="pelton-models-")
    atexit.register(shutil.rmtree, os.environ["PELTON_MODEL_CACHE"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that of several test processes none is left alone with one of them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one float32 checkpoint per variant, named as the variant: the same one for all test processes of a run."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checkpoints"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for variant in VARIANTS:
            if not (root / variant.name).exists():
                make_checkpoint(root / variant.name, variant)
    return root


@pytest.fixture(scope="session")
def bf16_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 checkpoint in bfloat16."""
    variant = next(v for v in VARIANTS if v.name == "qwen3")
    return make_checkpoint(tmp_path_factory.mktemp("bf16") / "qwen3-bf16", variant, "bfloat16")


@pytest.fixture(scope="session")
def server(checkpoints: Path) -> Iterator[Server]:
    """A server of a small random Llama, for tests of the API's form."""
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512") as running:
        yield running


@pytest.fixture(scope="session")
def demo() -> Iterator[Server]:
    """A server of the demo model."""
    with serving(None) as running:
        yield running
