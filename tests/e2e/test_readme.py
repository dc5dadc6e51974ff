"""What the README shows runs as it is written: its Python and its curl, against the demo model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import Server

README = (Path(__file__).parents[2] / "README.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
CURL = re.findall(r"^(curl .*?)^```", README, re.MULTILINE | re.DOTALL)


def here(text: str, demo: Server) -> str:
    """The README's address, moved to where the test's server is."""
    return text.replace("http://127.0.0.1:8000", demo.url)


def test_the_readme_has_examples() -> None:
    assert len(PYTHON) >= 2
    assert len(CURL) >= 1


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.splitlines()[0])
def test_python(code: str, demo: Server) -> None:
    ran = subprocess.run([sys.executable, "-c", here(code, demo)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.strip()) > 10, "it prints an answer"


@pytest.mark.parametrize("command", CURL)
def test_curl(command: str, demo: Server) -> None:
    ran = subprocess.run(["bash", "-c", here(command, demo)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["choices"][0]["message"]["content"]
