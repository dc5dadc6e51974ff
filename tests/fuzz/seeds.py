"""Seeds for the fuzz targets, made of the examples that the tests have: `python tests/fuzz/seeds.py`, into target/corpus.

A target's doc says what its input looks like. Words that its inputs are made of go into NAME.dict, which libFuzzer splices in.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "target" / "corpus"
CUT = b"\xff"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def texts_of(path: str) -> Iterator[str]:
    """The texts in double quotes of a Rust file, with their simple escapes read."""
    escapes = {"\\n": "\n", '\\"': '"', "\\\\": "\\", "\\t": "\t"}
    for text in LITERAL.findall((ROOT / path).read_text()):
        yield re.sub(r'\\[n"\\t]', lambda escape: escapes[escape[0]], text)


def answers() -> Iterator[bytes]:
    """Every example of every format, whole and cut. The formats are in the order of their list."""
    names = re.findall(r'include_str!\("(.+)\.toml"\)', (ROOT / "router/text/src/formats/known/mod.rs").read_text())
    for at, name in enumerate(names):
        for example in tomllib.loads((ROOT / f"router/text/src/formats/examples/{name}.toml").read_text())["example"]:
            how = 8 * example.get("tools", True) + 2 * example.get("starts_in_reasoning", False)
            text = example["text"].encode()
            yield bytes([at, how]) + text
            yield bytes([at, how | 1]) + CUT.join(text[start : start + 5] for start in range(0, len(text), 5))


def marks() -> Iterator[str]:
    for path in sorted((ROOT / "router/text/src/formats/known").glob("*.toml")):
        yield from re.findall(r"['\"]([^'\"\n]*[<\[|>\]][^'\"\n]*)['\"]", path.read_text())
    yield from ["\xff", "get_weather", "city", '{"name": "', '", "arguments": ', "null", "\\u00e9"]


def templates() -> Iterator[bytes]:
    """The golden templates with a chat, and each expression."""
    golden = ROOT / "router/text/tests/golden"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat.append({"role": "assistant", "content": "Hm", "reasoning": "So", "tool_calls": [call]})
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    rest = [json.dumps(chat).encode(), json.dumps({"tools": [tool], "enable_thinking": True}).encode()]
    for path in sorted((golden / "templates").iterdir()):
        for how in (3, 5):
            yield bytes([how]) + CUT.join([path.read_bytes(), *rest])
    for expression in json.loads((golden / "expressions.json").read_text()):
        yield bytes([0]) + expression.encode()
    for text in texts_of("router/text/src/template/tests.rs"):
        if "{" in text:
            yield bytes([2]) + text.encode()


def template_words() -> Iterator[str]:
    text = " ".join(path.read_text() for path in sorted((ROOT / "router/text/tests/golden/templates").iterdir()))
    text += (ROOT / "router/text/tests/golden/expressions.json").read_text()
    yield from sorted(set(re.findall(r"[a-z_]{3,}", text)))
    yield from [
        "{%",
        "%}",
        "{{",
        "}}",
        "{#",
        "#}",
        "{%-",
        "-%}",
        "**",
        "//",
        "~",
        " ~ ",
        "\xff",
        "99999",
        "ns.a = ns.a",
    ]


def grammars() -> Iterator[bytes]:
    """Schemas, expressions and grammars of the tests, each as what it could be."""
    random = b"\x01\x02\x03\x04"
    for path in ["schemas", "grammars"]:
        source = (ROOT / f"router/grammar/tests/{path}.rs").read_text()
        for text in re.findall(r"json!\((\{.*\})\)", source):
            if not is_json(text):
                continue
            yield bytes([0, 0]) + random + text.encode()
            for kind in (18, 24, 30):
                yield bytes([kind, 0xC8]) + random + CUT.join([b"<a>", b"</a>", *[text.encode()] * 4])
    tables = ["grammars.rs", "expressions.rs", "faults.rs", "spelling.rs"]
    sources = [f"router/grammar/tests/{name}" for name in tables]
    sources += [f"router/grammar/src/{path}" for path in ("gbnf/mod.rs", "regex/mod.rs", "schema/pattern.rs")]
    for path in sources:
        for text in texts_of(path):
            for kind in (1, 2, 5):
                yield bytes([kind, 2 * (len(text) % 2)]) + random + text.encode()
    for kinds in ["sat", "saB", "fjr", "FJG", "pjr", "Pra", "esattB", "fsjaa"]:
        parts = [
            kinds,
            "<f=",
            "<f=1>",
            "</f>",
            '{"type": "integer"}',
            "<f=2>",
            "</f>",
            "[a-c/]+",
            'root ::= [0-9]+ "!"',
        ]
        yield bytes([4, 0]) + random + CUT.join(part.encode() for part in parts)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def grammar_words() -> Iterator[str]:
    sources = [*(ROOT / "router/grammar/src/schema").glob("*.rs"), *(ROOT / "router/grammar/tests").glob("*.rs")]
    for path in sorted(sources):
        yield from (text for text in re.findall(r'"([$a-zA-Z]{2,25})"', path.read_text()))
    yield from ["start: ", "root ::= ", "\xff"]
    yield from [
        r"%json",
        r"%lark",
        r"%ignore",
        r"%regex",
        r"[suffix=",
        r"[lazy]",
        r"(?s:.*)",
        r"(?i:",
        r"{2,3}",
        r"{99}",
        r"\d",
        r"\p{L}",
        r"[^",
        r"&",
        r"~",
    ]
    yield from ["@body", "<[256]>", "start", '"type"', "#/$defs/a", "1e300"]


def tokens() -> Iterator[bytes]:
    """Stop strings and ids for each tokenizer."""
    for style in range(14):
        for how, stops in [(0, [b"the"]), (1, [b" the", b"e"]), (2, ["é".encode(), b"\n"]), (3, [])]:
            head = bytes([style, how, len(stops)]) + b"".join(bytes([len(stop)]) + stop for stop in stops)
            yield head + b"".join(id.to_bytes(2, "little") for id in range(style, 330, 7))


def texts() -> Iterator[bytes]:
    """Documents in many languages and a source, in pieces, for each tokenizer."""
    whole = (ROOT / "bench/frontend/languages.txt").read_text() + Path(__file__).read_text()
    for number, start in enumerate(range(0, len(whole), 400)):
        yield bytes([number % 22]) + whole[start : start + 400].encode()


def write(name: str, seeds: Iterable[bytes], words: Iterable[str]) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    as_bytes = {CUT if word == "\xff" else word.encode() for word in words if 0 < len(word) <= 60}
    lines = ["".join(f"\\x{byte:02x}" for byte in word) for word in sorted(as_bytes)]
    if lines:  # a dictionary of no words is refused
        (CORPUS / f"{name}.dict").write_text("".join(f'"{line}"\n' for line in lines))


if __name__ == "__main__":
    write("answer", answers(), marks())
    write("template", templates(), template_words())
    write("grammar", grammars(), grammar_words())
    write("detok", tokens(), [])
    write("tokenise", texts(), ["<|end|>", "<s>", "caf\u00e9!", "e\u0301", "\u3000", "'re", "\r\n"])
