"""The tools that the conversations use: what each is, how people ask for it, and what it may answer.

Beside the demo's own three there are many others, and tools of made-up names: the model must read the list, not remember it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .data import CITIES, COLORS, LANGUAGES, NOUNS, PEOPLE, ROOMS, THINGS, TOPICS, VERBS, blocks
from .draw import Draw
from .facts import statements

Tool = dict[str, Any]
Result = Callable[[Draw, dict[str, Any]], tuple[Any, str]]  # what the tool answers, and how that is told


@dataclass(frozen=True)
class Param:
    name: str
    kind: str  # a JSON type
    about: str
    make: Callable[[Draw], Any]
    choices: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Known:
    """A tool and the ways in which people ask for it; `{p}` stands for parameter p's value."""

    name: str
    about: str
    params: tuple[Param, ...]
    asks: tuple[str, ...]
    result: Result


def _topic(draw: Draw) -> str:
    if draw.chance(0.4):
        return draw.word()
    return draw.value(TOPICS)


def _expression(draw: Draw) -> str:
    terms = [str(draw.number(0, draw.any([9, 99, 999, 9999])))]
    for _ in range(draw.any([1, 1, 1, 2])):
        terms += [draw.any("+-*/"), str(draw.number(1, draw.any([9, 99, 999])))]
    return " ".join(terms)


def some_city(draw: Draw) -> str:
    return draw.value(CITIES) if draw.chance(0.75) else draw.word().title()


def _person(draw: Draw) -> str:
    return draw.value(PEOPLE) if draw.chance(0.7) else draw.word().title()


def _words(draw: Draw) -> str:
    return " ".join(draw.any([draw.word(), draw.value(THINGS), draw.value(COLORS)]) for _ in range(draw.number(1, 3)))


def _weather_result(draw: Draw, arguments: dict[str, Any]) -> tuple[Any, str]:
    unit = arguments.get("unit", "celsius")
    degrees, sky = draw.number(-9, 99), draw.any(["sunny", "cloudy", "rainy", "windy", "snowy", "clear", "foggy"])
    result = {"temperature": degrees, "unit": unit, "condition": sky}
    if draw.chance(0.4):
        result = {"city": arguments["city"], **result}
    return result, f"It is {degrees} degrees {unit.capitalize()} and {sky} in {arguments['city']}."


def _calculate_result(draw: Draw, arguments: dict[str, Any]) -> tuple[Any, str]:
    number = draw.number(-99, 99999) if draw.chance(0.8) else draw.number(0, 9999) / 100
    return draw.any([{"result": number}, number, {"value": number}]), f"{arguments['expression']} = {number}."


def _search_result(draw: Draw, arguments: dict[str, Any]) -> tuple[Any, str]:
    found = draw.any(statements())
    if draw.chance(0.15):
        return {"results": []}, f"I found nothing about {arguments['query']}."
    return draw.any([{"results": [found]}, {"text": found}]), found


def _done(draw: Draw, arguments: dict[str, Any]) -> tuple[Any, str]:
    if draw.chance(0.2):
        why = draw.any(["not found", "no connection", "not allowed", "timeout", "busy", draw.word()])
        return {"error": why}, f"That did not work: {why}."
    return draw.any([{"status": "ok"}, {"ok": True}, {"result": "done"}, {"status": "success"}]), "Done."


def _answer(key: str, make: Callable[[Draw], Any], say: str) -> Result:
    def result(draw: Draw, arguments: dict[str, Any]) -> tuple[Any, str]:
        value = make(draw)
        return {key: value}, say.format(value=value, **arguments)

    return result


_SAID = {block.heads[0]: block for block in blocks("tools")}


def _known(name: str, params: tuple[Param, ...], result: Result) -> Known:
    """A tool whose description and phrasings stand in `data/tools.txt`."""
    return Known(name, _SAID[name].heads[1], params, _SAID[name].lines, result)


_CITY = Param("city", "string", "The city", some_city)
_UNIT = Param(
    "unit",
    "string",
    "The unit of temperature",
    lambda d: d.any(["celsius", "fahrenheit"]),
    ("celsius", "fahrenheit"),
    True,
)

WEATHER = _known("get_weather", (_CITY, _UNIT), _weather_result)
CALCULATE = _known("calculate", (Param("expression", "string", "The expression", _expression),), _calculate_result)
SEARCH = _known("search_docs", (Param("query", "string", "What to search for", _topic),), _search_result)
DEMO_TOOLS = [WEATHER, CALCULATE, SEARCH]

_TEXT = Param("text", "string", "The text", _words)
_NAME = Param("name", "string", "The name", _person)

OTHER_TOOLS = [
    _known(
        "get_time",
        (_CITY,),
        _answer("time", lambda d: f"{d.number(0, 23):02}:{d.number(0, 59):02}", "It is {value} in {city}."),
    ),
    _known(
        "send_email",
        (Param("to", "string", "The recipient", _person), Param("subject", "string", "The subject", _words)),
        _done,
    ),
    _known("set_timer", (Param("minutes", "integer", "Minutes", lambda d: d.number(1, 120)),), _done),
    _known("play_music", (Param("query", "string", "What to play", _words),), _done),
    _known(
        "turn_on_light",
        (
            Param(
                "room",
                "string",
                "The room",
                lambda d: d.value(ROOMS),
            ),
        ),
        _done,
    ),
    _known(
        "convert_currency",
        (
            Param("amount", "number", "The amount", lambda d: d.number(1, 5000)),
            Param("from", "string", "Currency", lambda d: d.any(["USD", "EUR", "CHF", "GBP", "JPY"])),
            Param("to", "string", "Currency", lambda d: d.any(["USD", "EUR", "CHF", "GBP", "JPY"])),
        ),
        _answer("amount", lambda d: d.number(1, 9999), "{amount} {from} are {value} {to}."),
    ),
    _known(
        "translate",
        (
            _TEXT,
            Param(
                "language",
                "string",
                "The target language",
                lambda d: d.value(LANGUAGES),
            ),
        ),
        _answer("translation", Draw.word, "{text} in {language} is {value}."),
    ),
    _known("search_web", (Param("query", "string", "The search words", _words),), _done),
    _known("add_to_list", (Param("item", "string", "The item", lambda d: d.value(THINGS)),), _done),
    _known(
        "book_table",
        (
            Param("restaurant", "string", "The restaurant", lambda d: d.word().title()),
            Param("people", "integer", "How many people", lambda d: d.number(1, 12)),
        ),
        _done,
    ),
    _known(
        "get_stock_price",
        (Param("symbol", "string", "The symbol", lambda d: d.word()[:4].upper()),),
        _answer("price", lambda d: d.number(1, 900), "{symbol} is at {value}."),
    ),
    _known(
        "read_file",
        (Param("path", "string", "The path", lambda d: f"{d.word()}.{d.any(['txt', 'md', 'py', 'json'])}"),),
        _answer("content", _words, "The file {path} says: {value}"),
    ),
    _known(
        "create_event",
        (
            Param("title", "string", "The title", _words),
            Param(
                "day", "string", "The day", lambda d: d.any(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"])
            ),
        ),
        _done,
    ),
    _known("find_user", (_NAME,), _answer("id", lambda d: d.number(1, 9999), "The user {name} has the id {value}.")),
    _known(
        "get_distance",
        (Param("from", "string", "Start", some_city), Param("to", "string", "End", some_city)),
        _answer("kilometers", lambda d: d.number(10, 9000), "From {from} to {to} it is {value} kilometers."),
    ),
]

_PARAMS: list[tuple[str, str, Callable[[Draw], Any]]] = [
    ("name", "string", _person),
    ("city", "string", some_city),
    ("level", "integer", lambda d: d.number(0, 100)),
    ("color", "string", lambda d: d.value(COLORS)),
    ("count", "integer", lambda d: d.number(1, 50)),
    ("id", "integer", lambda d: d.number(1, 99999)),
    ("title", "string", _words),
    ("speed", "number", lambda d: d.number(1, 300)),
    ("mode", "string", Draw.word),
    ("path", "string", lambda d: f"/{d.word()}/{d.word()}"),
    ("item", "string", lambda d: d.value(THINGS)),
    ("user", "string", _person),
    ("size", "integer", lambda d: d.number(1, 500)),
    ("code", "string", lambda d: f"{d.word().upper()}{d.number(1, 99)}"),
    ("width", "integer", lambda d: d.number(1, 2000)),
    ("query", "string", _words),
    ("day", "string", lambda d: d.any(["Monday", "Tuesday", "Friday", "Sunday"])),
]


def schema(known: Known, draw: Draw) -> Tool:
    """A tool in OpenAI's form; in training also with keys in other orders, as other clients send them."""
    properties: dict[str, Any] = {}
    for param in known.params:
        properties[param.name] = {"type": param.kind, "description": param.about}
        if param.choices:
            properties[param.name]["enum"] = list(param.choices)
        if not draw.held and draw.chance(0.25):
            del properties[param.name]["description"]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [p.name for p in known.params if not p.optional],
    }
    function = {"name": known.name, "description": known.about, "parameters": parameters}
    tool = {"type": "function", "function": function}
    if not draw.held and draw.chance(0.3):
        tool = json.loads(json.dumps(tool, sort_keys=True))
    return tool


def made_up(draw: Draw) -> Known:
    verb = draw.any([*VERBS, draw.word()])
    noun = draw.any([*NOUNS, draw.word(), draw.word()])
    chosen = draw.random.sample(_PARAMS, draw.any([1, 1, 2, 2, 3]))
    params = tuple(
        Param(draw.word() if draw.chance(0.25) else name, kind, f"The {name}", make) for name, kind, make in chosen
    )
    link = draw.any([" {n} {{{n}}}", " {n}={{{n}}}", " {n}: {{{n}}}", " {n} is {{{n}}}"])
    given = (
        ",".join(link.format(n=p.name) for p in params)
        if draw.chance(0.5)
        else " and".join(link.format(n=p.name) for p in params)
    )
    ask = draw.phrase(
        [
            "{v} the {n} with{g}",
            "Please {v} the {n}:{g}",
            "Call {t} with{g}.",
            "{v} {n}{g}",
            "Use {t}:{g}",
            "{t} with{g}",
            "Can you {v} the {n} with{g}?",
            "Run {t} with{g}",
            "I want to {v} the {n},{g}",
            "{v} a {n} with{g}.",
        ]
    )
    name = f"{verb}_{noun}"
    return Known(name, f"{verb.capitalize()} the {noun}", params, (ask.format(v=verb, n=noun, t=name, g=given),), _done)
