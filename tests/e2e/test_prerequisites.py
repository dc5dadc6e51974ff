"""What `make` says on a machine that lacks something: a PATH with only the commands that a case gives it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "prerequisites.sh"
# What a healthy machine answers; cargo's subcommands take any arguments.
CARGO = 'echo "cargo 1.95.0"'
PYTHON = "echo 3.12.1"
HEALTHY = {"cargo": CARGO, "cc": ":", "python3": PYTHON}


def check(folder: Path, commands: dict[str, str], *words: str) -> tuple[int, str]:
    for name in ("bash", "cut", "sort", "head"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    for name, body in commands.items():
        (folder / name).write_text(f"#!{folder}/bash\n{body}\n")
        (folder / name).chmod(0o755)
    ran = subprocess.run(
        [folder / "bash", SCRIPT, *words], env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stderr


def test_nothing_is_said_where_nothing_is_missing(tmp_path: Path) -> None:
    assert check(tmp_path, HEALTHY, "lint") == (0, "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cargo": None}, ["missing: cargo", "https://rustup.rs"]),
        ({"cargo": 'echo "cargo 1.80.1"'}, ["too old: cargo 1.80.1; Pelton needs 1.90", "rustup update stable"]),
        ({"cargo": "echo no default toolchain >&2; exit 1"}, ["broken: cargo --version says: no default toolchain"]),
        ({"cargo": CARGO + '; [ "$1" != fmt ]'}, ["missing: rustfmt", "rustup component add rustfmt"]),
        ({"cargo": CARGO + '; [ "$1" != clippy ]'}, ["missing: clippy", "rustup component add clippy"]),
        ({"python3": None}, ["missing: python3", "apt-get install python3"]),
        ({"python3": "echo 3.9.2"}, ["too old: python3 is 3.9.2; Pelton needs 3.11"]),
        ({"python3": "echo cannot load libpython >&2; exit 127"}, ["broken: python3", "says: cannot load libpython"]),
        ({"python3": PYTHON + '; case "$2" in *venv*) exit 1;; esac'}, ["missing: the venv module"]),
    ],
)
def test_what_is_missing_old_or_broken_is_named_with_what_to_install(
    tmp_path: Path, change: dict[str, str | None], words: list[str]
) -> None:
    commands = {name: body for name, body in (HEALTHY | change).items() if body is not None}
    code, said = check(tmp_path, commands, "lint")
    assert code == 1
    assert all(word in said for word in words), said
    assert said.count("install it:") == 1, said


def test_another_system_is_refused_in_one_line(tmp_path: Path) -> None:
    code, said = check(tmp_path, {**HEALTHY, "uname": "echo Darwin", "cc": "exit 1"})
    assert code == 1
    assert said == "not served: Darwin; Pelton runs on Linux, also in a virtual machine or a container of it\n"


def test_linters_are_asked_for_by_those_who_lint_alone(tmp_path: Path) -> None:
    commands = HEALTHY | {"cargo": CARGO + '; [ "$1" != fmt ]'}
    assert check(tmp_path, commands) == (0, "")
