"""Command lines that are read in Python refuse what they do not know, with the name that comes nearest."""

from __future__ import annotations

import pytest
from pelton.command_line import Parser


def parser() -> Parser:
    made = Parser("pelton x", "Does something.")
    made.add_argument("folder")
    made.add_argument("--listen", required=True)
    made.add_argument("--token-file")
    return made


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["f", "--listen", "a", "--tokn-file", "b"], "there is no `--tokn-file`; did you mean `--token-file`?"),
        (["f", "--listn", "a"], "there is no `--listn`; did you mean `--listen`?"),
        (["f", "--listen", "a", "--token-fil=b"], "there is no `--token-fil`; did you mean `--token-file`?"),
        (["f", "--listen", "a", "more"], "there is no `more`"),
        (["f"], "--listen is needed"),
        (["--listen", "a"], "folder is needed"),
    ],
)
def test_what_is_wrong_is_named(line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().read(line)
    assert capsys.readouterr().err.strip().endswith(said)


def test_what_is_right_is_read() -> None:
    read = parser().read(["--token-file=t", "--listen", "a", "f"])
    assert (read.folder, read.listen, read.token_file) == ("f", "a", "t")
    assert parser().read(["f", "--listen", "a"]).token_file is None
