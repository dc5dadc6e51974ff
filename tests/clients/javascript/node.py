"""Runs a conversation in JavaScript: by the Node.js of its environment, with the packages of `package-lock.json`.

So the tests need no Node.js on the machine, and the clients, of which some want a newer one than systems have, get theirs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NODE = Path(sys.executable).with_name("node")
NPM = Path(sys.executable).with_name("npm")
LOCK = HERE / "package-lock.json"
INSTALLED = HERE / "node_modules" / "installed.json"  # the lock that was installed


def install() -> None:
    """The locked packages, unless they are there. No script of theirs runs."""
    if INSTALLED.exists() and INSTALLED.read_bytes() == LOCK.read_bytes():
        return
    print("installing npm packages ...", flush=True)
    flags = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"]
    subprocess.run([NPM, "ci", *flags], cwd=HERE, check=True)
    INSTALLED.write_bytes(LOCK.read_bytes())


install()
sys.exit(subprocess.run([NODE, *sys.argv[1:]]).returncode)
