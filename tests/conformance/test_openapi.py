"""`/openapi.json` and `/docs`, and the server held against its own description by schemathesis.

The long fuzz runs for `FUZZ_MINUTES` (`make conformance MINUTES=30`), and not at all without; `FUZZ_SEED` makes it another one. Their names
do not begin with `PELTON_`: a server refuses such a variable that is none of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from support.server import Server, serving

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
VERSION = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["version"]
MINUTES = float(os.environ.get("FUZZ_MINUTES", "0"))
SEED = os.environ.get("FUZZ_SEED", "1")
METHODS = {"get", "post", "delete"}


@pytest.fixture(scope="module")
def document(demo: Server) -> dict[str, Any]:
    described: dict[str, Any] = demo.get("/openapi.json").json()
    return described


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, methods in document["paths"].items() for method, one in methods.items()]


def test_it_is_openapi_of_this_program(demo: Server, document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == VERSION == demo.get("/version").json()["version"]
    for path, method, operation in operations(document):
        assert method in METHODS, path
        assert operation["summary"], path
        assert "200" in operation["responses"], path
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_field_is_explained(document: dict[str, Any]) -> None:
    bodies = [
        one["requestBody"]["content"]["application/json"]["schema"]
        for _, _, one in operations(document)
        if "application/json" in one.get("requestBody", {"content": {}})["content"]
    ]
    assert len(bodies) >= 15
    for name, schema in document["components"]["schemas"].items():
        if schema.get("additionalProperties") is False:  # a request's
            for field, of in schema["properties"].items():
                assert of["description"], f"{name}.{field}"


def test_the_examples_are_answered(demo: Server, document: dict[str, Any]) -> None:
    """A:2: or refused since the demo model gives no vectors, or since no such file was uploaded."""
    tried = 0
    for path, _, operation in operations(document):
        content = operation.get("requestBody", {"content": {}})["content"]
        for example in content.get("application/json", {"examples": {}})["examples"].values():
            answer = demo.post(path, example["value"])
            is_answered = answer.status_code == 200
            of_this_model = answer.status_code != 200 and answer.json()["error"]["code_name"] == "wrong_model_kind"
            of_no_file = path == "/v1/batches" and answer.json()["error"]["param"] == "input_file_id"
            assert is_answered or of_this_model or of_no_file, (path, answer.text)
            tried += 1
    assert tried >= 20


def test_bounds_are_those_of_the_server() -> None:
    with serving(None, "--max-model-len", "128", "--api-key", "secret") as guarded:
        refused = guarded.get("/openapi.json")
        assert refused.status_code == 401
        assert refused.json()["error"]["code_name"] == "invalid_api_key"
        document = guarded.get("/openapi.json", headers={"x-api-key": "secret"}).json()
        assert document["components"]["schemas"]["ChatRequest"]["properties"]["max_tokens"]["maximum"] == 128
        assert set(document["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
        assert guarded.get("/docs").status_code == 200, "a browser can send no key before it has the page"


def test_the_page_runs_nothing_but_itself(demo: Server) -> None:
    page = demo.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "openapi.json" in page.text


def fuzz(demo: Server, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    model = demo.get("/v1/models").json()["data"][0]
    told = {"CONTEXT": str(model["max_model_len"]), "MODEL": model["id"]}
    return subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(HERE / "schemathesis.toml")),
            *("run", demo.url + "/openapi.json", "--checks", CHECKS, "--seed", SEED),
            *(
                "--continue-on-failure",
                "--request-timeout",
                "60",
                "--no-color",
                "--generation-database",
                "none",
                *arguments,
            ),
        ],
        env={**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "openapi_hooks", **told},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


CHECKS = ",".join(
    [
        "the_server_is_never_at_fault",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "what_does_not_fit_is_refused",
        "unsupported_method",
        "allow_header_conformance",
        "errors_have_one_form",
        "what_fits_is_taken",
        "streams_are_as_described",
    ]
)


@pytest.mark.timeout(600)
def test_some_requests_to_every_route_are_as_it_says(demo: Server, tmp_path: Path) -> None:
    """The examples, and some bodies that fit and that do not: always the same ones."""
    ran = fuzz(demo, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "32")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(not MINUTES, reason="make conformance runs it: ten minutes and more")
@pytest.mark.timeout(600 + 120 * MINUTES)
def test_the_server_is_as_it_says(demo: Server, tmp_path: Path) -> None:
    """C:A1, B:A2: no request has a 5xx, a hang, or an answer that is not described."""
    ran = fuzz(demo, tmp_path, "--phases", "examples,coverage,fuzzing", "--max-time", str(int(60 * MINUTES)))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert httpx.get(demo.url + "/readyz").status_code == 200


def bounded(schema: dict[str, Any]) -> Iterator[tuple[str, float, float, float]]:
    """Fields that are one number, with their bounds and the step to what is outside."""
    for name, field in schema["properties"].items():
        kinds = {field.get("type")} if isinstance(field.get("type"), str) else set(field.get("type") or [])
        step = 1 if "integer" in kinds else 0.5
        if kinds & {"integer", "number"} and "minimum" in field and field.get("maximum", 1 << 60) < 1 << 53:
            yield name, field["minimum"], field["maximum"], step


def test_bounds_of_numbers_are_where_they_are_said_to_be(demo: Server, document: dict[str, Any]) -> None:
    """Each number that a body has, on its bounds and just outside of them."""
    tried = 0
    for path, _, operation in operations(document):
        content = operation.get("requestBody", {"content": {}})["content"].get("application/json")
        if content is None or "$ref" not in content["schema"]:  # no body, or one of several
            continue
        schema = document["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]
        example = next(iter(content["examples"].values()))["value"]
        short = {"max_tokens": 2} if "max_tokens" in example else {}
        for name, least, most, step in bounded(schema):
            for value, fits in ((least, True), (most, True), (least - step, False), (most + step, False)):
                said = demo.post(path, {**example, **short, name: value})
                if fits:  # `min_tokens` has another bound beside its own, and so have budgets
                    refused = said.status_code == 400 and f"`{name}` is" in said.text and "; allowed:" in said.text
                    assert not refused or "`max_tokens`" in said.text, (path, name, value, said.text)
                else:
                    assert said.status_code == 400, (path, name, value, said.text)
                tried += 1
    assert tried >= 200, tried
