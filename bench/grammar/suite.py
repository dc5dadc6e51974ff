"""The public JSON-Schema-Test-Suite through the compiler of grammars: what is served, and whether all that is served is kept.

    make schemas [DOCUMENTS=10] [JSON=...]

Each schema of the suite is compiled as the server does, and so are random ones that combine keywords. A schema that compiles has to refuse each
instance that is not valid, however it is written (other orders of members, other numbers of the same value, escapes), and each document drawn from
its grammar has to be valid by `jsonschema`, which knows nothing of grammars. Anything else is an error, unless `suite_known.json` has the reason.
Schemas that are refused, and valid instances that could not be drawn, are counted.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import random_schemas

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "target" / "schema-suite" / "jsonschema-4.26.0.tar.gz"  # `suite.txt` has its hash
KNOWN = HERE / "suite_known.json"
RANDOM, COUNTED = "random", "counted"  # in place of a draft and a keyword
VALIDATORS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
SCHEMAS = {draft: kind.META_SCHEMA["$schema"] for draft, kind in VALIDATORS.items()}
# Ways to write one instance that are tried.
WAYS_MAX = 150


@dataclass
class Group:
    """A schema of the suite, and instances."""

    draft: str
    keyword: str  # the file's name
    name: str
    schema: Any
    instances: list[
        tuple[str, Any, bool | None]
    ]  # what it is about, itself, whether it is valid; none: `jsonschema` says so
    ways: list[list[str]] = field(default_factory=list)  # of each instance


def groups_of_the_suite(package: Path = PACKAGE) -> list[Group]:
    """All groups of tests."""
    if not package.exists():
        sys.exit(f"{package} is not there: `make {PACKAGE.relative_to(ROOT)}` fetches it")
    groups = []
    with tarfile.open(package) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            parts = Path(member.name).parts[1:]
            file = tar.extractfile(member) if member.name.endswith(".json") and parts[0] == "json" else None
            if file and parts[1] == "tests" and parts[2] in VALIDATORS:
                keyword = "/".join(parts[3:]).removesuffix(".json")
                for group in json.load(file):
                    instances = [(test["description"], test["data"], test["valid"]) for test in group["tests"]]
                    groups.append(Group(parts[2], keyword, group["description"], group["schema"], instances))
    return groups


def random_groups(count: int) -> list[Group]:
    """Random schemas with random instances."""
    groups = []
    for seed in range(count):
        rng = random.Random(-1 - seed)
        instances = [("random", random_schemas.any_value(rng), None) for _ in range(10)]
        groups.append(Group(RANDOM, RANDOM, str(seed), random_schemas.any_whole_schema(seed), list(instances)))
    for seed in range(count):
        rng = random.Random(-1 - seed)
        instances = [(COUNTED, random_schemas.any_counted_value(rng), None) for _ in range(20)]
        groups.append(Group(COUNTED, COUNTED, str(seed), random_schemas.any_counted_schema(seed), list(instances)))
    return groups


def written(value: Any) -> Iterator[str]:
    """Ways to write a value as JSON: orders of members, numbers, escapes."""
    match value:
        case dict():
            for members in itertools.permutations(value.items()):
                for texts in product([list(written(inner)) for _, inner in members]):
                    names = [json.dumps(name, ensure_ascii=False) for name, _ in members]
                    yield "{" + ",".join(f"{name}:{text}" for name, text in zip(names, texts, strict=True)) + "}"
            if value:
                yield "{" + ",".join(f"{escaped(name)}:{next(written(inner))}" for name, inner in value.items()) + "}"
        case list():
            for texts in product([list(written(item)) for item in value]):
                yield "[" + ",".join(texts) + "]"
        case bool() | None:
            yield json.dumps(value)
        case int():
            yield from [str(value), f"{value}.0", f"{value}e0"]
        case float():
            yield from ([str(int(value))] if value.is_integer() and abs(value) < 1e300 else [])
            yield repr(value)
            yield (
                f"{value:f}".rstrip("0").rstrip(".")
                if abs(value) < 1e300 and float(f"{value:f}") == value
                else repr(value)
            )
        case str():
            yield json.dumps(value, ensure_ascii=False)
            yield escaped(value)


def escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'


def product(choices: list[list[str]]) -> Iterator[tuple[str, ...]]:
    """All combinations, so that each choice is among the first ones."""
    yield from (
        tuple(options[min(way, len(options) - 1)] for options in choices)
        for way in range(max(map(len, choices), default=1))
    )
    yield from itertools.islice(itertools.product(*choices), WAYS_MAX)


def ways_to_write(value: Any) -> list[str]:
    return list(dict.fromkeys(itertools.islice(written(value), WAYS_MAX)))


def through_the_compiler(groups: list[Group], documents: int) -> Iterator[tuple[Group, dict[str, Any]]]:
    """What `schemas.rs` says of each."""
    # With the features of the whole workspace, as the tests have built it.
    build = ["cargo", "build", "--release", "--locked", "-q", "--workspace", "--example", "check_schemas"]
    lines = []
    for seed, group in enumerate(groups):
        schema = group.schema
        if isinstance(schema, dict) and group.draft in SCHEMAS:
            schema = {"$schema": SCHEMAS[group.draft], **schema}
        group.ways = [ways_to_write(value) for _, value, _ in group.instances]
        texts = [text for ways in group.ways for text in ways]
        lines.append(json.dumps({"schema": schema, "texts": texts, "documents": documents, "seed": seed * 7919 + 11}))
    subprocess.run(build, check=True, cwd=ROOT)
    command = [str(ROOT / "target/release/examples/check_schemas")]
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, cwd=ROOT)
    if ran.returncode:
        sys.exit(ran.stderr)
    answers = ran.stdout.rstrip("\n").split("\n")
    yield from zip(groups, map(json.loads, answers), strict=True)


def validator(group: Group) -> Any:
    """That of `jsonschema`. Formats are those that it checks without further packages."""
    kind = VALIDATORS.get(group.draft, jsonschema.Draft202012Validator)
    return kind(exactly(json.dumps(group.schema)), format_checker=kind.FORMAT_CHECKER)


def exactly(text: str) -> Any:
    """JSON whose fractions are decimal, so that 1.0993 is a multiple of 0.0001."""
    return json.loads(text, parse_float=Decimal)


@dataclass
class Tally:
    """Counts, of a draft or of a keyword."""

    schemas: int = 0
    compiled: int = 0
    valid: int = 0  # instances of those that compiled
    written: int = 0
    refused_instances: int = 0
    documents: int = 0

    def share(self, of: str, whole: str) -> str:
        return f"{getattr(self, of)} of {getattr(self, whole)}"


@dataclass
class Findings:
    """What came of it all."""

    drafts: dict[str, Tally] = field(default_factory=dict)
    keywords: dict[str, Tally] = field(default_factory=dict)
    unsound: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    unwritten: list[dict[str, Any]] = field(default_factory=list)


def findings(groups: list[Group], documents: int) -> Findings:
    found = Findings()
    for group, answer in through_the_compiler(groups, documents):
        where = {"draft": group.draft, "keyword": group.keyword, "name": group.name}
        tallies = [found.drafts.setdefault(group.draft, Tally()), found.keywords.setdefault(group.keyword, Tally())]
        compiled = "fits" in answer
        if not compiled:
            found.refused.append({**where, **answer, "schema": group.schema})
        fits = iter(answer.get("fits", []))
        for tally in tallies:
            tally.schemas += 1
            tally.compiled += compiled
        if not compiled:
            continue
        checker = validator(group)
        for (about, value, is_said_valid), ways in zip(group.instances, group.ways, strict=True):
            is_valid = is_said_valid if is_said_valid is not None else checker.is_valid(exactly(json.dumps(value)))
            taken = [way for way in ways if next(fits)]
            case = {**where, "instance": about, "value": value, "schema": group.schema}
            if is_valid and not taken:
                found.unwritten.append(case)
            elif taken and not is_valid:
                found.unsound.append({**case, "text": taken[0]})
            for tally in tallies:
                tally.valid += is_valid
                tally.written += is_valid and bool(taken)
                tally.refused_instances += not is_valid
        for text in answer["documents"]:
            try:
                error = next(iter(checker.iter_errors(exactly(text))), None)
            except re.error:
                continue  # a pattern that Python cannot read
            for tally in tallies:
                tally.documents += 1
            if error:
                found.unsound.append(
                    {**where, "drawn": text, "error": str(error).splitlines()[0], "schema": group.schema}
                )
    return found


def unknown(found: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the list of known cases does not explain. A case that explains nothing is wrong, too."""

    def explains(case: dict[str, Any], finding: dict[str, Any]) -> bool:
        same_draft = case["draft"] in ("any", finding["draft"])
        return same_draft and case["keyword"] == finding["keyword"] and case["drawn"] == ("drawn" in finding)

    idle = [{"not needed any more": case} for case in known if not any(explains(case, finding) for finding in found)]
    return [finding for finding in found if not any(explains(case, finding) for case in known)] + idle


def table(title: str, tallies: dict[str, Tally]) -> str:
    lines = [
        f"| {title} | schemas served | valid instances that can be drawn | invalid ones refused | documents valid |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, tally in tallies.items():
        served, drawn = tally.share("compiled", "schemas"), tally.share("written", "valid")
        lines.append(f"| {name} | {served} | {drawn} | {tally.refused_instances} | {tally.documents} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10, help="drawn from each grammar (default: 10)")
    parser.add_argument("--random", type=int, default=300, help="random schemas (default: 300)")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument(
        "--details", type=Path, help="write each refusal and each valid instance that cannot be drawn here"
    )
    arguments = parser.parse_args()
    found = findings(groups_of_the_suite() + random_groups(arguments.random), arguments.documents)
    if arguments.details:
        arguments.details.write_text(json.dumps(vars(found), indent=1, default=vars))
    if arguments.json:
        counts = {"drafts": found.drafts, "keywords": dict(sorted(found.keywords.items()))}
        result = {
            "suite": PACKAGE.name,
            "date": str(datetime.date.today()),
            "documents_each": arguments.documents,
            **counts,
        }
        arguments.json.write_text(json.dumps(result, indent=1, default=vars) + "\n")
    print(table("draft", found.drafts), "", table("keyword", dict(sorted(found.keywords.items()))), sep="\n")
    unsound = unknown(found.unsound, json.loads(KNOWN.read_text()))
    for finding in unsound:
        print("UNSOUND:", json.dumps(finding), file=sys.stderr)
    return 1 if unsound else 0


if __name__ == "__main__":
    sys.exit(main())
