"""JSON on request: facts taken from a sentence, pairs turned into an object, lists, and objects with given keys."""

import json
from typing import Any

from .data import ANIMALS, CITIES, COLORS, JOBS, PEOPLE, THINGS
from .draw import Draw, Talk, exchange, roughen


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# What a record may hold: key, how a value is drawn, and how a sentence says it.
_FIELDS: dict[str, list[str]] = {
    "name": ["{name}"],
    "age": [" is {age} years old", " is {age}", " turned {age}", " has an age of {age}"],
    "city": [" lives in {city}", " is from {city}", " comes from {city}", " has a home in {city}"],
    "job": [" works as a {job}", " is a {job}", " has the job of a {job}", " is employed as a {job}"],
    "pet": [" has a {pet}", " owns a {pet}", " keeps a {pet}", " has a pet {pet}"],
    "color": [" likes {color}", " loves the color {color}", " has {color} as favorite color", " prefers {color}"],
}

_ORDERS = [
    "{s} Extract {k} as JSON.",
    "Extract {k} as JSON: {s}",
    "Give me {k} as JSON. {s}",
    "Answer as JSON with the keys {k}. {s}",
    "{s} Answer in JSON with the keys {k}.",
    "Turn this into JSON with {k}: {s}",
    "Return a JSON object with {k}. {s}",
    "Read this and reply with JSON, keys {k}: {s}",
    "Reply only with JSON ({k}): {s}",
    "From this text make JSON with {k}: {s}",
    "{s} Write {k} as a JSON object.",
    "Please extract {k} from this text as JSON: {s}",
    "JSON with {k}: {s}",
    "Parse into JSON with the fields {k}: {s}",
]


def _list_of(keys: list[str], draw: Draw) -> str:
    if len(keys) == 1:
        return keys[0]
    return ", ".join(keys) if draw.chance(0.4) else ", ".join(keys[:-1]) + " and " + keys[-1]


def _value(draw: Draw, key: str) -> Any:
    if key == "age":
        return draw.number(1, 99)
    if key == "name" and draw.chance(0.3):
        return draw.word().title() + ("" if draw.chance(0.6) else " " + draw.word().title())
    return draw.value({"name": PEOPLE, "city": CITIES, "job": JOBS, "pet": ANIMALS, "color": COLORS}[key])


def extract(draw: Draw) -> Talk:
    """A sentence about a person; the keys that are asked for, in the order in which they are asked."""
    said = ["name", *draw.random.sample(["age", "city", "job", "pet", "color"], draw.number(1, 3))]
    record = {key: _value(draw, key) for key in said}
    clauses = [draw.phrase(_FIELDS[key]).format(**record).strip() for key in said[1:]]
    name = str(record["name"])
    if len(clauses) > 1 and draw.chance(0.4):
        pronoun = draw.any(["He", "She", "They"])
        sentence = f"{name} {clauses[0]}. " + " ".join(f"{pronoun} {clause}." for clause in clauses[1:])
    else:
        sentence = f"{name} {' and '.join(clauses)}."
    asked = said if draw.chance(0.7) else draw.random.sample(said, draw.number(1, len(said)))
    if draw.chance(0.25):
        question = draw.phrase(
            [
                "{s} Turn this into JSON.",
                "Turn this sentence into JSON: {s}",
                "As JSON: {s}",
                "Make JSON of this: {s}",
                "Write this as JSON: {s}",
                "Give me this as JSON: {s}",
                "{s} As JSON please.",
            ]
        ).format(s=sentence)
        answer = record
    else:
        question = draw.phrase(_ORDERS).format(s=sentence, k=_list_of(asked, draw))
        answer = {key: record[key] for key in asked}
    return exchange("json extract", question, _json(answer), accept=answer)


def pairs(draw: Draw) -> Talk:
    """host=alpha port=80 becomes {"host": "alpha", "port": 80}: keys and values that nobody has seen."""
    record: dict[str, Any] = {}
    for _ in range(draw.number(1, 4)):
        key = draw.any(
            [
                draw.word(),
                draw.value(
                    [
                        "host",
                        "port",
                        "size",
                        "color",
                        "name",
                        "path",
                        "mode",
                        "level",
                        "count",
                        "user",
                        "id",
                        "title",
                        "type",
                        "width",
                        "height",
                        "status",
                    ]
                ),
            ]
        )
        record[key] = draw.any([draw.word(), draw.number(0, 999), draw.value(THINGS), draw.value(COLORS)])
    if draw.chance(0.12):
        record[draw.word()] = draw.any([True, False])
    link, gap = draw.any([("=", " "), (": ", ", "), ("=", ", "), (" is ", ", "), (" = ", "; "), (": ", "; ")])
    plain = {key: str(value).lower() if isinstance(value, bool) else value for key, value in record.items()}
    text = gap.join(f"{key}{link}{value}" for key, value in plain.items())
    question = draw.phrase(
        [
            "Write as JSON: {x}",
            "Turn into JSON: {x}",
            "As a JSON object: {x}",
            "Convert to JSON: {x}",
            "JSON please: {x}",
            "Make a JSON object from {x}",
            "{x} as JSON",
            "Give me JSON for: {x}",
            "Put this into JSON: {x}",
            "Format as JSON: {x}",
        ]
    )
    return exchange("json pairs", question.format(x=text), _json(record), accept=record)


_KINDS: dict[str, list[str]] = {
    "colors": COLORS,
    "animals": ANIMALS,
    "cities": CITIES,
    "jobs": JOBS,
    "names": PEOPLE,
    "things": THINGS,
}


def lists(draw: Draw) -> Talk:
    """A JSON array, of given words or of a kind."""
    if draw.chance(0.6):
        items = [draw.any([draw.word(), draw.value(THINGS), draw.value(ANIMALS)]) for _ in range(draw.number(2, 5))]
        question = draw.phrase(
            [
                "Write {x} as a JSON array.",
                "Put {x} into a JSON list.",
                "As a JSON list: {x}",
                "Make a JSON array of {x}.",
                "JSON array: {x}",
                "Turn {x} into a JSON list.",
                "Give me a JSON array with {x}.",
            ]
        )
        return exchange("json pairs", question.format(x=_list_of(items, draw)), _json(items), accept=items)
    kind = draw.any(list(_KINDS))
    count = draw.number(2, 5)
    question = draw.phrase(
        [
            "List {n} {k} as JSON.",
            "Give me {n} {k} as a JSON list.",
            "Name {n} {k} in a JSON array.",
            "Write a JSON array of {n} {k}.",
            "{n} {k} as a JSON array",
            "A JSON list with {n} {k}, please.",
        ]
    )
    said = draw.any([str(count), ["two", "three", "four", "five"][count - 2]])
    # The first few of each kind, so that the answer does not have to be guessed.
    return exchange(
        "json keys", question.format(n=said, k=kind), _json(_KINDS[kind][:count]), accept=_KINDS[kind][:count]
    )


_INVENTED: dict[str, list[Any]] = {
    "name": ["Alice", "Bob", "Maria"],
    "age": [30, 25, 42],
    "city": ["Paris", "Berlin", "Oslo"],
    "email": ["alice@example.com", "bob@example.com"],
    "color": ["blue", "red", "green"],
    "price": [10, 25, 99],
    "title": ["The small wheel", "Water and light"],
    "author": ["Alice", "Maria"],
    "year": [1999, 2010, 2024],
    "country": ["France", "Norway", "Spain"],
    "id": [1, 7, 42],
    "active": [True, False],
    "job": ["engineer", "teacher"],
    "temperature": [18, 21, 25],
    "status": ["ok"],
    "tags": [["small", "fast"], ["red", "blue"]],
    "language": ["English"],
    "size": ["small", "large"],
    "weight": [2, 5, 12],
    "answer": [42],
    "phone": ["555-0100"],
    "street": ["Main Street 1"],
    "quantity": [3, 5],
    "date": ["2024-05-01"],
    "greeting": ["hello"],
    "message": ["Hello!"],
    "score": [7, 9],
    "animal": ["cat", "dog"],
    "hobbies": [["music", "chess"]],
    "type": ["demo"],
}

_OBJECTS = {
    "person": ["name", "age", "city"],
    "book": ["title", "author", "year"],
    "city": ["name", "country"],
    "product": ["name", "price", "color"],
    "user": ["id", "name", "email"],
    "car": ["color", "year", "price"],
    "cat": ["name", "age", "color"],
    "employee": ["name", "job", "age"],
}


def keys(draw: Draw) -> Talk:
    """An object with given keys and invented values: right if it is valid and has these keys."""
    if draw.chance(0.3):
        thing = draw.any(list(_OBJECTS))
        asked = _OBJECTS[thing]
        question = draw.phrase(
            [
                "Describe a {t} as JSON.",
                "Give me a {t} as JSON.",
                "Write a JSON object for a {t}.",
                "A {t} in JSON, please.",
                "Make up a {t} as JSON.",
                "Invent a {t} in JSON.",
                "Show me a {t} as a JSON object.",
            ]
        ).format(t=thing)
    else:
        asked = draw.random.sample(list(_INVENTED), draw.number(1, 4))
        if not draw.held and draw.chance(0.2):
            asked.append(draw.word())
        question = draw.phrase(
            [
                "Give me a JSON object with the keys {k}.",
                "Write JSON with the keys {k}.",
                "Answer with a JSON object that has {k}.",
                "Make a JSON object with {k}.",
                "Create JSON with the fields {k}.",
                "An example JSON object with {k}, please.",
                "Reply with JSON that has the keys {k}.",
                "Show me JSON with {k}.",
                "Invent a JSON object with the keys {k}.",
            ]
        ).format(k=_list_of(asked, draw))
    answer = {key: draw.any(_INVENTED.get(key, ["example"])) for key in asked}
    return exchange("json keys", roughen(draw, question), _json(answer), accept={"keys": asked})


def json_reply(draw: Draw) -> Talk:
    make = draw.random.choices([extract, pairs, lists, keys], [45, 25, 12, 18])[0]
    return make(draw)
