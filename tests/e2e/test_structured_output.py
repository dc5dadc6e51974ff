"""Answers that have to fit something fit it, whatever the model would rather say; an independent validator is the judge."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.checkpoints import VOCAB, Variant, make_checkpoint
from support.server import Server, serving, sse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["good", "bad", None]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


def complete(server: Server, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": "Once", "max_tokens": 300, "temperature": 1, "seed": 7, **fields}
    response = server.post(COMPLETIONS, body)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def any_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose documents are short enough to be drawn by a model that knows nothing."""
    least = rng.randint(0, 3)
    leaves: list[dict[str, Any]] = [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer", "minimum": -least, "maximum": 10 * least + 1},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "minLength": least, "maxLength": least + 4},
        {"type": "string", "pattern": "^(ab|[x-z])+$", "maxLength": 8},
        {"enum": ["a", 1, None, "é"]},
        {"const": {"x": [1]}},
        {"type": "string", "format": "date"},
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    inner = [any_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    names = [f"m{index}" for index in range(len(inner))]
    return rng.choice(
        [
            {"type": "array", "items": inner[0], "minItems": least, "maxItems": least + 1},
            {"type": "array", "prefixItems": inner, "items": False, "minItems": len(inner)},
            {"anyOf": inner},
            {
                "type": "object",
                "properties": dict(zip(names, inner, strict=True)),
                "required": names[: rng.randint(0, len(names))],
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/d"}}, "required": ["a"],
             "additionalProperties": False, "$defs": {"d": rng.choice(leaves)}} if depth == 3 else rng.choice(leaves),
        ]
    )  # fmt: skip


def test_every_document_that_is_complete_is_valid(server: Server) -> None:
    complete_ones = 0
    for seed in range(40):
        schema = any_schema(random.Random(seed))
        jsonschema.Draft202012Validator.check_schema(schema)
        for choice in complete(server, structured_outputs={"json": schema}, n=2, seed=seed):
            if choice["finish_reason"] == "stop":
                jsonschema.validate(json.loads(choice["text"]), schema)
                complete_ones += 1
    assert complete_ones >= 60, "most of these documents are short"


def test_a_tree_may_refer_to_itself(server: Server) -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 1}},
        "required": ["v", "kids"],
        "additionalProperties": False,
    }  # fmt: skip
    schema = {"$defs": {"n": node}, "$ref": "#/$defs/n"}
    done = [c for c in complete(server, guided_json=schema, n=4) if c["finish_reason"] == "stop"]
    assert done
    for choice in done:
        jsonschema.validate(json.loads(choice["text"]), schema)


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2},
        {"min_tokens": 40},
        {"ignore_eos": True},
        {"temperature": 0},
        {"top_k": 3, "top_p": 0.9, "logprobs": 3, "n": 3},
        {"logit_bias": {"40": 50.0}},
    ],
)
def test_it_goes_with_everything_that_changes_a_draw(server: Server, fields: dict[str, Any]) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for choice in complete(server, response_format=format_, **fields):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), PERSON)


def test_a_stream_is_the_same_as_the_whole(server: Server) -> None:
    asked = {"structured_outputs": {"json": PERSON}}
    (whole,) = complete(server, **asked)
    body = {"prompt": "Once", "max_tokens": 300, "temperature": 1, "seed": 7, "stream": True, **asked}
    with server.stream(COMPLETIONS, body) as response:
        text = "".join(choice["text"] for event in sse(response) for choice in event["choices"])
    assert text == whole["text"]
    assert complete(server, **asked) == [whole]
    (cut,) = complete(server, stop=[":"], **asked)
    assert cut["text"] == whole["text"].split(":")[0]


def test_regexes_choices_and_grammars(server: Server) -> None:
    for choice in complete(server, structured_outputs={"regex": "[0-9]{3}-[a-f]{2,4}"}, n=4):
        assert re.fullmatch("[0-9]{3}-[a-f]{2,4}", choice["text"])
    said = {choice["text"] for choice in complete(server, guided_choice=["yes", "no", "per haps"], n=12)}
    assert said <= {"yes", "no", "per haps"}
    assert len(said) > 1
    for grammar in ('start: "(" start ")" | /[0-9]/', 'root ::= "(" root ")" | [0-9]'):
        for choice in complete(server, structured_outputs={"grammar": grammar}, n=4):
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(r"\(*[0-9]\)*", choice["text"])
                assert choice["text"].count("(") == choice["text"].count(")")
    (plain,) = complete(server, response_format={"type": "text"})
    assert plain == complete(server)[0]


def test_structural_tags_constrain_parts_of_an_answer(server: Server) -> None:
    tag = {"begin": "<f=age>", "end": "</f>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}}
    parts = [{"type": "const_string", "value": "Age: "}, {"type": "tag", **tag}, {"type": "const_string", "value": "."}]
    sequence = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    (aged,) = complete(server, response_format=sequence)
    assert re.fullmatch(r"Age: <f=age>\s*-?\d+\s*</f>\.", aged["text"]) or aged["finish_reason"] == "length"
    either = {"type": "tags_with_separator", "tags": [tag], "separator": "; ", "at_least_one": True}
    alone = {"type": "structural_tag", "format": either}
    for asked in ({"response_format": alone}, {"structured_outputs": {"structural_tag": json.dumps(alone)}}):
        choices = complete(server, n=4, **asked)
        assert any(choice["finish_reason"] == "stop" for choice in choices), choices
        for choice in choices:
            if choice["finish_reason"] == "stop":
                assert re.fullmatch(r"<f=age>\s*-?\d+\s*</f>(; <f=age>\s*-?\d+\s*</f>)*", choice["text"])
    # The bias makes a tag of free text: whatever follows the trigger is a tag.
    nudge = {server.post("/tokenize", {"prompt": "<"}).json()["tokens"][-1]: 20}
    older = {
        "type": "structural_tag",
        "structures": [{"begin": "<f=age>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<"],
    }
    texts = [choice["text"] for choice in complete(server, response_format=older, logit_bias=nudge, max_tokens=40, n=4)]
    assert any("<" in text for text in texts)
    for text in texts:
        for tail in text.split("<f=age>")[1:]:
            assert re.match(r"\s*-?\d*\s*(</f>|<?/?f?$|$)", tail), text
        assert "<" not in re.sub(r"<f=age>\s*-?\d*\s*(</f>|</f|</|<|$)|<f?=?a?g?e?$", "", text), text


def test_who_is_beside_a_constrained_answer_draws_what_it_draws_alone(server: Server) -> None:
    alone = complete(server, prompt="Twice")[0]["text"]
    asked = {"prompt": ["Twice", "Once"], "structured_outputs": {"json": PERSON}}
    both = complete(server, **asked)
    assert [choice["text"] for choice in both][1] == complete(server, structured_outputs={"json": PERSON})[0]["text"]
    assert complete(server, prompt="Twice")[0]["text"] == alone


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "text"}}}}},
         "structured_outputs.json/properties/a/type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"items": {"pattern": "("}}}}},
         "response_format.json_schema.schema/items/pattern"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"response_format": {"type": "structural_tag", "triggers": ["<"], "structures": [
            {"begin": "<a>", "schema": {"items": {"type": "text"}}, "end": "</a>"}]}},
         "response_format.structures[0].schema/items/type"),
        ({"response_format": {"type": "structural_tag", "triggers": ["<b"], "structures": []}}, "response_format"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),  # B:SO2
        ({"structured_outputs": {"json": False}}, "structured_outputs.json"),
        ({"guided_json": {"allOf": [{"minimum": 5}, {"maximum": 4}], "type": "integer"}}, "guided_json/allOf"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused_before_it_is_admitted(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    response = server.post(COMPLETIONS, {"prompt": "a", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert complete(server, max_tokens=3), "the server stays up"


def ask(demo: Server, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "What is Pelton?"}], "temperature": 0, "max_tokens": 200, **fields}
    response = demo.post(CHAT, body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_a_chat_answers_in_json(demo: Server) -> None:
    schema = {**PERSON, "properties": {**PERSON["properties"], "name": {"enum": ["Anna", "Ben"]}}}  # type: ignore[dict-item]
    answer = ask(demo, response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}})
    assert answer["finish_reason"] == "stop"
    jsonschema.validate(json.loads(answer["message"]["content"]), schema)
    answer = ask(demo, response_format={"type": "json_object"}, max_tokens=400)
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_is_demanded_comes_and_fits(demo: Server, choice: Any) -> None:
    for seed in range(3):
        answer = ask(
            demo, tools=[WEATHER, TIME], tool_choice=choice, temperature=1, seed=seed, parallel_tool_calls=False
        )
        if answer["finish_reason"] == "length":
            continue
        (call,) = answer["message"]["tool_calls"]
        assert answer["message"]["content"] is None
        if call["function"]["name"] == "get_weather":
            jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])
        else:
            assert choice == "required"
            assert call["function"]["name"] == "get_time"


def test_a_demanded_call_wins_over_a_form_of_the_text(demo: Server) -> None:
    """B:SO1"""
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(demo, tools=[WEATHER], tool_choice=named, response_format={"type": "json_object"})
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["get_weather"]


def test_beside_tools_an_answer_is_a_call_or_fits(demo: Server) -> None:
    for seed in range(4):
        answer = ask(demo, tools=[WEATHER], guided_choice=["yes", "no"], temperature=1, seed=seed, max_tokens=300)
        message = answer["message"]
        if message.get("tool_calls"):
            for call in message["tool_calls"]:
                if answer["finish_reason"] != "length":
                    json.loads(call["function"]["arguments"])
        elif answer["finish_reason"] == "stop":
            assert message["content"] in {"yes", "no"}


def test_strict_tools_leave_text_free_and_constrain_calls(demo: Server) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    assert "server" in ask(demo, tools=[strict])["message"]["content"]
    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(demo, messages=weather, tools=[strict])
    (call,) = answer["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER["function"]["parameters"])


@pytest.mark.parametrize("format_", ["llama3-json", "llama4-pythonic", "xlam"])
def test_an_answer_that_begins_like_a_call_is_one_of_a_strict_tool(checkpoints: Path, format_: str) -> None:
    properties = {"days": {"type": "integer", "minimum": 1, "maximum": 9}, "hourly": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["days"], "additionalProperties": False}
    strict = {"type": "function", "function": {"name": "forecast", "parameters": schema, "strict": True}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [strict], "temperature": 1, "max_tokens": 150}
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--format", format_) as server:

        def drawn(seed: int, **fields: Any) -> dict[str, Any]:
            response = server.post(CHAT, {**body, "seed": seed, **fields})
            assert response.status_code == 200, response.text
            choice: dict[str, Any] = response.json()["choices"][0]
            return choice

        begin = server.post("/tokenize", {"prompt": "[", "add_special_tokens": False}).json()["tokens"][-1]
        for seed in range(6):
            free = drawn(seed, logit_bias={str(begin): -100})
            assert free["finish_reason"] in {"stop", "length", "tool_calls"}
            answer = drawn(seed, logit_bias={str(begin): 100})
            if answer["finish_reason"] == "length":
                continue
            assert answer["message"]["tool_calls"]
            assert not answer["message"]["content"]
            for call in answer["message"]["tool_calls"]:
                assert call["function"]["name"] == "forecast"
                jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


def test_what_cannot_be_fitted_is_said_in_our_words(server: Server) -> None:
    for asked, param, said in [
        ({"regex": "[^\\s\\S]"}, "structured_outputs.regex", "no text matches"),
        ({"regex": "a(b"}, "structured_outputs.regex", "at character 2: the group `(` is not closed"),
        ({"grammar": 'start: "a" other'}, "structured_outputs.grammar", "line 1, column 8: `other` is not defined"),
        ({"foo": 1}, "structured_outputs.foo", "is not a parameter of this request"),
        ({"choices": ["a"]}, "structured_outputs.choices", "did you mean `choice`"),
    ]:
        error = server.post(COMPLETIONS, {"prompt": "x", "structured_outputs": asked}).json()["error"]
        assert (error["param"], error["code"]) == (param, 400), error
        assert said in error["message"], error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [1]}, "strict": True}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "no"}}}}}],
          "tool_choice": "required"}, "tools[0].function.parameters/properties/x/type"),
    ],
)  # fmt: skip
def test_a_demand_that_cannot_be_met_is_refused(demo: Server, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [WEATHER], **fields}
    response = demo.post(CHAT, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_what_stands_between_the_tokens_of_a_document_may_be_said(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for more, spaced in [
        ({"disable_any_whitespace": True}, r'\{"a":"[xy]"\}'),
        ({"whitespace_pattern": " ?"}, r'\{ ?"a" ?: ?"[xy]" ?\}'),
    ]:
        for choice in complete(server, structured_outputs={"json": schema, **more}, n=4, max_tokens=200):
            assert re.fullmatch(spaced, choice["text"]), choice


def test_a_grammar_has_no_tokens_that_its_model_cannot_draw(tmp_path: Path) -> None:
    """A tokenizer may have more than its model has logits for, as Gemma 3's of 1 B has: to force one ended worker after worker."""
    folder = make_checkpoint(tmp_path / "more", Variant("more", "llama", {}))
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({**flags, "id": VOCAB, "content": "<more>", "special": True})
    path.write_text(json.dumps(tokenizer))
    with serving(folder) as server:
        worker = server.worker_pids()
        for grammar in (f"start: <[{VOCAB}]>", "start: <more>", f'start: "The work of the License" <[{VOCAB}]> "."'):
            asked = {"prompt": "x", "structured_outputs": {"grammar": grammar}}
            response = server.post(COMPLETIONS, asked)
            assert response.status_code == 400, (grammar, response.text)
            assert response.json()["error"]["param"] == "structured_outputs.grammar"
        [choice] = complete(server, structured_outputs={"grammar": 'start: "The <more> License"'})
        assert choice["text"] == "The <more> License"
        assert server.worker_pids() == worker
