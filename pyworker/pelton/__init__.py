"""Pelton: a server for large language models.

Importing this package is cheap: torch and the router are loaded by the names that need them, on first use.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOMES = {"LLM": "pelton.llm"}


def demo_dir() -> Path:
    """Folder of the demo model that comes with Pelton."""
    return Path(__file__).parent / "demo"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `pelton` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOMES[name]), name)
