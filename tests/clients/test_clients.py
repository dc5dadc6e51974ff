"""Conversations of the clients that people use with the demo model: a script for each, in an environment of its own.

The Python ones, and a Node.js for the others, come from `uv.lock` here, npm's packages from `javascript/package-lock.json`. To take newer
ones: `.tools/bin/uv lock --upgrade --project tests/clients`, and new versions in `javascript/package.json`, then `npm install` there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.server import Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What each conversation has to tell of: a script that runs none of it would end well, too.
PARTS = {"whole_and_streamed", "tools", "structured", "refused"}
PYTHON = sorted(HERE.glob("python/*_client.py"))
JAVASCRIPT = sorted(HERE.glob("javascript/*_client.js"))
# What would lead a client elsewhere.
LED = (
    "OPENAI_",
    "ANTHROPIC_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "LITELLM_",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PYTHON",
    "VIRTUAL_ENV",
)
INSTALL_WITHIN_S = 600
ANSWERED_WITHIN_S = 120


def uv() -> str:
    found = shutil.which("uv", path=f"{ROOT / '.tools' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert found, "uv is missing, which installs the clients: `make build` brings it into .tools"
    return found


def environment(group: str) -> dict[str, str]:
    """This process's, with where the packages of a group are kept."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LED)}
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    place = str(ROOT / "target" / "clients" / group)
    return kept | {"NO_PROXY": direct, "no_proxy": direct, "UV_PROJECT_ENVIRONMENT": place}


def test_every_client_is_here() -> None:
    python = ["anthropic", "instructor", "langchain", "litellm", "llama_index", "openai"]
    assert [script.stem for script in PYTHON] == [f"{name}_client" for name in python]
    assert [script.stem for script in JAVASCRIPT] == ["openai_client", "vercel_client"]


def test_the_docs_have_the_versions() -> None:
    python = tomllib.loads((HERE / "uv.lock").read_text())["package"]
    npm = json.loads((HERE / "javascript" / "package.json").read_text())["dependencies"]
    locked = {(one["name"], one["version"]) for one in python} | set(npm.items())
    section = (ROOT / "docs" / "api.md").read_text().split("\n## Clients\n")[1]
    told = re.findall(r"`(\S+)`(?: for JavaScript)?(?: \|)? (\d[\d.]+)", section)
    assert len(told) == 10
    assert set(told) <= locked


@pytest.mark.timeout(INSTALL_WITHIN_S + ANSWERED_WITHIN_S)
@pytest.mark.parametrize("script", [*PYTHON, *JAVASCRIPT], ids=lambda script: f"{script.parent.name}-{script.stem}")
def test_a_conversation(script: Path, demo: Server) -> None:
    if script in PYTHON:
        group, command = script.stem.removesuffix("_client"), [script]
    else:
        group, command = "node", [HERE / "javascript" / "node.py", script]
    ran = subprocess.run(
        [uv(), "run", "--project", HERE, "--locked", "--group", group, "python", *command, demo.url],
        env=environment(group),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_WITHIN_S + ANSWERED_WITHIN_S,
    )
    assert ran.returncode == 0, ran.stdout
    told = {line.removeprefix("ok: ") for line in ran.stdout.splitlines() if line.startswith("ok: ")}
    assert told >= PARTS, ran.stdout
