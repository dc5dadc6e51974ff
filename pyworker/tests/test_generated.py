"""The generated code that is checked in is that of the contracts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pelton.rpc

ROOT = Path(__file__).resolve().parents[2]


def test_generated_code_is_current(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = Path(pelton.rpc.__file__).parent
    made = script.generate(tmp_path)
    assert {name: (folder / name).read_text() for name in made} == made
