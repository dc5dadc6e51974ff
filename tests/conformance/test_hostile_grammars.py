"""Grammars that are small to send and large to compute: refused or served in seconds, within bounds of memory, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.server import Server, serving

MOST = 512 << 20  # bytes; before, the first of them took all there were


def chain(link: Any, last: Any, length: int) -> dict[str, Any]:
    """Definitions, each of which refers to the next one."""
    links = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(length)}
    return {"$defs": {**links, f"d{length}": last}, "$ref": "#/$defs/d0"}


def rules(line: str, last: str, length: int) -> str:
    """Rules or terminals, each of which refers to the next one."""
    return "\n".join([*(line.format(at, at + 1) for at in range(length)), last.format(length)])


def doubled(levels: int, first: str) -> str:
    """A terminal of two that are of two, and so on."""
    lines = [f"A{at}: A{at - 1} A{at - 1}" for at in range(1, levels + 1)]
    return "\n".join([f"start: A{levels}", f"A0: {first}", *lines])


def wide(count: int) -> dict[str, Any]:
    """An object of so many members."""
    return {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(count)}}


INTEGER = {"type": "integer"}
HOSTILE: dict[str, dict[str, Any]] = {
    "members": {
        "json": chain(lambda to: {"type": "object", "properties": {"x": to}, "required": ["x"]}, INTEGER, 3000)
    },
    "items": {"json": chain(lambda to: {"type": "array", "items": to}, INTEGER, 4000)},
    "options": {"json": chain(lambda to: {"anyOf": [to, {"const": 1}]}, INTEGER, 3000)},
    "plain references": {"json": chain(lambda to: to, INTEGER, 9000)},
    "gbnf rules": {"grammar": "root ::= r0\n" + rules("r{} ::= r{}", 'r{} ::= "a"', 30_000)},
    "lark rules": {"grammar": "start: r0\n" + rules("r{}: r{}", 'r{}: "a"', 50_000)},
    "lark terminals": {"grammar": "start: R0\n" + rules('R{}: "x" R{}', 'R{}: "a"', 15_000)},
    "doubled, may be nothing": {"grammar": doubled(24, '"a"?')},
    "doubled": {"grammar": doubled(40, '"a"')},
    "left out": {"regex": "a?" * 100_000},
    "left out, in a schema": {"json": {"type": "string", "pattern": "^" + "(ab?)?" * 50_000 + "$"}},
    "wide": {"json": wide(8000)},
    "wide, constant": {"json": {"const": {f"k{at}": at for at in range(30_000)}}},
    "long, constant": {"json": {"const": list(range(30_000))}},
    "constants": {"json": {"enum": [{f"k{at}": at for at in range(4000)} for _ in range(7)]}},
    "patterns": {"json": {"type": "object", "patternProperties": {f"^x{at}_": INTEGER for at in range(400)}}},
    "objects": {"json": {"enum": [{f"k{at}": list(range(10))} for at in range(8000)]}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The demo model."""
    with serving(None) as server:
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "structured_outputs": {"regex": "a+"}})
        yield server


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_or_served_and_the_server_goes_on(server: Server, name: str) -> None:
    with server.within_memory(MOST):
        body = {"prompt": "a", "max_tokens": 2, "structured_outputs": HOSTILE[name]}
        response = server.post("/v1/completions", body, timeout=120)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["code_name"] == "invalid_grammar", error
        assert error["param"].startswith("structured_outputs"), error
    assert server.process.poll() is None
