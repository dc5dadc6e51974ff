"""A chat may bring its template, where the operator lets it; such a template is a stranger's program, which harms nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, children, client, serving

CHAT, RENDER, TOKENIZE = "/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"
ASKED = [{"role": "user", "content": "Why is the sky blue?"}]
PLAIN = "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}{% if add_generation_prompt %}<me>{% endif %}"
# Doubles a text at each level, and nothing is set on the way.
GROWING = "{% macro more(x) %}{{ more(x ~ x) }}{% endmacro %}{{ more(messages[0].content) }}"
LISTS = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x + ['a' * 90000000] %}{% endfor %}{{ n.x }}"
ENDLESS = "{% for i in range(10000) %}{% for j in range(10000) %}{{ messages[0].content | upper | lower }}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def trusting(checkpoints: Path) -> Iterator[Server]:
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512", "--trust-request-chat-template") as running:
        yield running


def body(**fields: Any) -> dict[str, Any]:
    return {
        "messages": ASKED,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def ids(server: Server, text: str) -> list[int]:
    found: list[int] = server.post(TOKENIZE, {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return found


def test_the_prompt_is_what_the_requests_template_writes(trusting: Server) -> None:
    expected = ids(trusting, "<user> Why is the sky blue?<me>")
    answer = trusting.post(CHAT, body(chat_template=PLAIN)).json()
    assert answer["prompt_token_ids"] == expected
    asked = {name: value for name, value in body(prompt=expected).items() if name != "messages"}
    told = trusting.post("/v1/completions", asked).json()
    assert answer["choices"][0]["token_ids"] == told["choices"][0]["token_ids"], "the answer is to that very prompt"
    assert trusting.post(RENDER, body(chat_template=PLAIN)).json()["token_ids"] == expected
    assert trusting.post(TOKENIZE, {"messages": ASKED, "chat_template": PLAIN}).json()["tokens"] == expected
    models = trusting.post(CHAT, body()).json()
    assert models["prompt_token_ids"] != expected, "the model's own template writes something else"


def test_it_is_told_what_other_templates_are(trusting: Server) -> None:
    template = (
        "{{ bos_token }}|{{ wish }}|{{ tools[0].function.name }}|{{ documents[0].text }}|{{ messages[0].content }}"
    )
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    # This model's format has no calls, so a chat with tools is neither answered nor rendered.
    said = {
        "messages": ASKED,
        "chat_template": template,
        "chat_template_kwargs": {"wish": "short"},
        "tools": [tool],
        "documents": [{"text": "paper"}],
    }
    assert trusting.post(RENDER, said).json() == trusting.post(CHAT, said).json()
    written = trusting.post(TOKENIZE, said).json()["tokens"]
    text = trusting.post("/detokenize", {"tokens": written}).json()["prompt"]
    assert text.endswith("|short|look|paper|Why is the sky blue?"), text


def test_nobody_asked_for_it_and_it_is_refused(server: Server) -> None:
    for path, sent in ((CHAT, body(chat_template=PLAIN)), (TOKENIZE, {"messages": ASKED, "chat_template": PLAIN})):
        refused = server.post(path, sent)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in error["message"]
    hidden = server.post(CHAT, body(chat_template_kwargs={"chat_template": PLAIN}))
    assert (hidden.status_code, hidden.json()["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in %}", "cannot be read"),
        ("{{ raise_exception('only poems') }}", "only poems"),
        ("{{ nobody(1) }}", "cannot render"),
        ("{{ 'a' * 9000000 }}", "longer than"),
        ("x" * 300_000, "allowed: at most 262144 bytes"),
        (GROWING, ""),
        (LISTS, ""),
        (ENDLESS, ""),
        ("{{ " + "(" * 100_000 + ")" * 100_000 + " }}", ""),
    ],
    ids=["syntax", "raises", "unknown", "long", "large", "macros", "lists", "endless", "deep"],
)
def test_what_goes_wrong_is_the_senders_alone(trusting: Server, template: str, said: str) -> None:
    refused = trusting.post(CHAT, body(chat_template=template))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "chat_template"), error
    assert said in error["message"], error["message"]
    assert error["code_name"] == ("invalid_value" if "allowed" in said else "invalid_chat_template")
    assert "/" not in error["message"].replace("and/or", ""), "no path"
    assert trusting.post(CHAT, body(chat_template=PLAIN)).status_code == 200


def test_the_longest_there_is_delays_nobody_and_leaves_nothing(trusting: Server) -> None:
    before = children(trusting.process.pid)
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(trusting.post, CHAT, body(chat_template=ENDLESS)) for _ in range(4)]
        sent += [pool.submit(trusting.post, CHAT, body(chat_template=GROWING)) for _ in range(4)]
        begun = time.monotonic()
        assert trusting.post(CHAT, body()).status_code == 200, "a chat without a template goes past all of them"
        passed = time.monotonic() - begun
        statuses = [one.result().status_code for one in sent]
    assert statuses == [400] * 8
    assert passed < 30
    trusting.wait_until("all renderers have ended", lambda: children(trusting.process.pid) == before)


def test_a_client_that_leaves_takes_its_renderer_along(trusting: Server) -> None:
    before = children(trusting.process.pid)
    with client() as one, pytest.raises(Exception, match="timed out"):
        one.post(trusting.url + CHAT, json=body(chat_template=ENDLESS), timeout=0.3)
    trusting.wait_until("it has ended", lambda: children(trusting.process.pid) == before, within_s=5)
