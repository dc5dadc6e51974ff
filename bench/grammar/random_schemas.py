"""Schemas of all keywords within each other, and values near to them: what a suite of hand-made examples does not combine."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ["a", "b", "ab", "c"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, -1, 1.5, 10, "", "a", "b", "ab", "x1", "é"]
PATTERNS = ["^a", "b$", "^[ab]*$", "^(a|b|x1)?$", r"^\w{1,3}$", "^.$"]


def any_value(rng: random.Random, depth: int = 2) -> Any:
    """A small value."""
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return rng.choice(SCALARS)
    if kind < 0.7:
        return [any_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {name: any_value(rng, depth - 1) for name in rng.sample(NAMES, rng.randint(0, 3))}


def any_schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema by draft 2020-12 or, in parts, of what earlier drafts had."""
    if rng.random() < 0.05:
        return rng.random() < 0.7
    schema: dict[str, Any] = {}
    if rng.random() < 0.6:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object", "object", "object"]
        schema["type"] = rng.choice(kinds) if rng.random() < 0.8 else rng.sample(kinds[:7], 2)
    for _ in range(rng.randint(0, 3)):
        keyword, value = any_keyword(rng, depth)
        schema[keyword] = value
    if not schema.keys() & {"then", "else"}:
        schema.pop("if", None)  # it says nothing, and a validator may follow its references for ever
    return schema


def any_keyword(rng: random.Random, depth: int) -> tuple[str, Any]:
    def within() -> Any:
        return any_schema(rng, depth - 1)

    def some() -> list[Any]:
        return [within() for _ in range(rng.randint(1, 3))]

    def members() -> dict[str, Any]:
        return {name: within() for name in rng.sample(NAMES, rng.randint(1, 3))}

    def names() -> list[str]:
        return rng.sample(NAMES, rng.randint(0, 2))

    count = rng.randint(0, 3)
    number = rng.choice([0, 1, 2, -1, 1.5, 3])
    leaves: list[tuple[str, Any]] = [
        ("const", any_value(rng, 1)),
        ("enum", [any_value(rng, 1) for _ in range(rng.randint(1, 4))]),
        (rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), number),
        ("multipleOf", rng.choice([1, 2, 0.5, 3])),
        (rng.choice(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]), count),
        ("pattern", rng.choice(PATTERNS)),
        ("required", names()),
        ("required", names()),
        ("dependentRequired", {rng.choice(NAMES): names()}),
        ("uniqueItems", rng.random() < 0.5),
        ("$ref", rng.choice(["#", "#/$defs/d", "#/$defs/e"])),
        ("format", rng.choice(["date", "ipv4", "uuid"])),
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    inner: list[tuple[str, Callable[[], Any]]] = [
        ("properties", members),
        ("properties", members),
        ("properties", members),
        ("patternProperties", lambda: {rng.choice(PATTERNS): within()}),
        ("additionalProperties", within),
        ("additionalProperties", lambda: False),
        ("unevaluatedProperties", lambda: rng.random() < 0.5 and within()),
        ("unevaluatedItems", lambda: rng.random() < 0.5 and within()),
        (
            "propertyNames",
            lambda: rng.choice([{"enum": names() or ["a"]}, {"pattern": rng.choice(PATTERNS)}, {"maxLength": 1}]),
        ),
        ("items", within),
        ("prefixItems", some),
        ("contains", within),
        ("allOf", some),
        ("anyOf", some),
        ("oneOf", some),
        ("not", within),
        ("if", within),
        ("then", within),
        ("else", within),
        ("dependentSchemas", lambda: {rng.choice(NAMES): within()}),
    ]
    keyword, value = rng.choice(inner)
    return keyword, value()


def any_whole_schema(seed: int) -> Any:
    """One with definitions that its parts may refer to."""
    rng = random.Random(seed)
    schema = any_schema(rng)
    while not isinstance(schema, dict):
        schema = any_schema(rng)
    schema["$defs"] = {"d": any_schema(rng, 1), "e": any_schema(rng, 1)}
    return schema


FEW: list[Any] = ["a", "b", 1, 1.0, 2, True, None, [1]]


def any_counted_schema(seed: int) -> Any:
    """One that says how many members or items there are, that items differ, or that some fit: what is told by listing the ways."""
    rng = random.Random(seed)
    schema: dict[str, Any] = {"type": rng.choice(["object", "array"])} if rng.random() < 0.9 else {}
    listed = rng.sample(NAMES, rng.randint(0, 4))
    few = rng.sample(FEW, rng.randint(1, 4))
    for_members: dict[str, Callable[[], Any]] = {
        "properties": lambda: {name: rng.choice([{}, {"const": 1}, {"type": "null"}, False]) for name in listed},
        "required": lambda: rng.sample(listed, rng.randint(0, min(2, len(listed)))),
        "additionalProperties": lambda: rng.choice([False, False, {}, {"const": 1}]),
        "patternProperties": lambda: {pattern: {"const": 1} for pattern in rng.sample(PATTERNS, rng.randint(1, 2))},
        "minProperties": lambda: rng.randint(0, 3),
        "maxProperties": lambda: rng.randint(0, 3),
    }
    for_items: dict[str, Callable[[], Any]] = {
        "items": lambda: rng.choice([{"enum": few}, {"type": ["boolean", "null"]}, {"const": few[0]}, False]),
        "prefixItems": lambda: [rng.choice([{"enum": few}, {"type": "boolean"}, {}]) for _ in range(rng.randint(1, 3))],
        "uniqueItems": lambda: True,
        "contains": lambda: rng.choice([{"const": few[0]}, {"type": "null"}, {"enum": few}, {}]),
        "minContains": lambda: rng.randint(0, 3),
        "maxContains": lambda: rng.randint(0, 3),
        "minItems": lambda: rng.randint(0, 2),
        "maxItems": lambda: rng.randint(1, 4),
    }
    chances = {"properties": 0.9, "items": 0.8, "maxItems": 0.7, "patternProperties": 0.2, "contains": 0.5}
    for keyword, value in [*for_members.items(), *for_items.items()]:
        if rng.random() < chances.get(keyword, 0.4):
            schema[keyword] = value()
    return schema


def any_counted_value(rng: random.Random) -> Any:
    """A value near to those."""
    if rng.random() < 0.5:
        return {name: rng.choice([1, None, "a"]) for name in rng.sample([*NAMES, "x1", "y"], rng.randint(0, 4))}
    return [rng.choice([*FEW, False]) for _ in range(rng.randint(0, 4))]
