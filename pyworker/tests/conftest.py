"""Random checkpoints for the worker's tests, and the path to the helpers beside this file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch

if not torch.cuda.is_available():  # before any library imports Triton, as for the kernels' tests
    os.environ["TRITON_INTERPRET"] = "1"

from random_checkpoints import VARIANTS, write


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one float32 checkpoint per variant, named as the variant."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name in VARIANTS:
        write(root / name, name)
    return root
