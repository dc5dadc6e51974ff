"""Fields that every client may send: what answers tell of them, and what the loaded model cannot serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.checkpoints import CHAT_TEMPLATE, Variant, make_checkpoint
from support.server import Server, client, serving, sse

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
ASKED = {"messages": HI, "max_tokens": 2}
KNOWING = (
    "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}{% if reasoning_effort is defined %}<{{ reasoning_effort }}>{% endif %}"
    + CHAT_TEMPLATE
)


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose template shows documents, and tells how hard to think."""
    folder = make_checkpoint(tmp_path_factory.mktemp("knowing") / "knowing", Variant("knowing", "llama", {}))
    (folder / "chat_template.jinja").write_text(KNOWING)
    with serving(folder) as running:
        yield running


def prompt(server: Server, **fields: Any) -> str:
    ids = server.post(CHAT + "/render", {"messages": HI, **fields}).json()["token_ids"]
    return str(server.post("/detokenize", {"tokens": ids}).json()["prompt"])


def refusal(server: Server, path: str, body: dict[str, Any]) -> tuple[str | None, str]:
    response = server.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error.get("param"), error["message"]


def chunks(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.stream(path, {**body, "stream": True}) as response:
        assert response.status_code == 200
        return list(sse(response))


def test_the_fingerprint_is_the_models(server: Server, knowing: Server) -> None:
    bodies = [(CHAT, ASKED), (COMPLETIONS, {"prompt": "Hi", "max_tokens": 2})]
    told = {server.post(path, body).json()["system_fingerprint"] for path, body in bodies}
    for path, body in bodies:
        told |= {chunk["system_fingerprint"] for chunk in chunks(server, path, body)}
    (fingerprint,) = told
    assert fingerprint.startswith("pelton-")
    assert knowing.post(CHAT, ASKED).json()["system_fingerprint"] != fingerprint
    assert "system_fingerprint" not in server.post(RESPONSES, {"input": "Hi", "max_output_tokens": 2}).json()


def test_a_tier_is_told_where_it_is_asked_for(server: Server) -> None:
    assert "service_tier" not in server.post(CHAT, ASKED).json()
    for word in ["auto", "default", "flex", "scale", "priority"]:
        assert server.post(CHAT, {**ASKED, "service_tier": word}).json()["service_tier"] == "default"
    assert {chunk["service_tier"] for chunk in chunks(server, CHAT, {**ASKED, "service_tier": "auto"})} == {"default"}
    response = server.post(RESPONSES, {"input": "Hi", "max_output_tokens": 2, "service_tier": "flex"})
    assert response.json()["service_tier"] == "default"
    for path, body in [(CHAT, ASKED), (COMPLETIONS, {"prompt": "Hi"}), (RESPONSES, {"input": "Hi"})]:
        assert refusal(server, path, {**body, "service_tier": "turbo"})[0] == "service_tier"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/inference/v1/generate"])
def test_chunks_have_as_many_tokens_as_are_asked_for(server: Server, path: str) -> None:
    drawn: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    body: dict[str, Any] = {
        CHAT: {"messages": HI, **drawn, "return_token_ids": True},
        COMPLETIONS: {"prompt": "Hi", **drawn, "return_token_ids": True},
    }.get(path, {"token_ids": [5], "sampling_params": drawn})

    def tokens(interval: int) -> list[list[int]]:
        told = chunks(server, path, {**body, "stream_interval": interval})
        return [ids for chunk in told for choice in chunk["choices"] if (ids := choice.get("token_ids"))]

    each = tokens(1)
    by_six = tokens(6)
    assert [token for ids in by_six for token in ids] == [token for ids in each for token in ids]
    assert all(len(ids) >= 6 for ids in by_six[1:-1])
    assert len(by_six) <= 5
    assert refusal(server, path, {**body, "stream_interval": 6})[0] == "stream_interval"


def test_nobody_is_told_of_a_cache_before_it_is_known(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    told = [chunk["usage"] for chunk in chunks(server, CHAT, {**ASKED, "max_tokens": 8, "stream_options": options})]
    knows = ["prompt_tokens_details" in usage for usage in told]
    # What was drawn last and the end of the answer may come in one step, and be told in two chunks.
    assert knows == sorted(knows)
    assert not knows[0]
    assert all("cached_tokens" in usage["prompt_tokens_details"] for usage in told[-2:])


def test_the_peers_header_of_priority_is_read(server: Server) -> None:
    assert server.post(CHAT, ASKED, headers={"x-vllm-priority": "3"}).status_code == 200
    refused = server.post(CHAT, ASKED, headers={"x-vllm-priority": "high"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-vllm-priority")
    ignored = {"X-data-parallel-rank": "7", "X-Session-ID": "s"}
    assert server.post(CHAT, ASKED, headers=ignored).status_code == 200


def test_an_effort_that_no_template_would_be_told_is_refused(server: Server, knowing: Server) -> None:
    for effort in ["minimal", "low", "medium", "high", "xhigh", "max"]:
        for path, body, param in [
            (CHAT, {**ASKED, "reasoning_effort": effort}, "reasoning_effort"),
            (CHAT + "/render", {**ASKED, "reasoning_effort": effort}, "reasoning_effort"),
            ("/tokenize", {"messages": HI, "reasoning_effort": effort}, "reasoning_effort"),
            (RESPONSES, {"input": "Hi", "reasoning": {"effort": effort}}, "reasoning.effort"),
            (MESSAGES, {**ASKED, "output_config": {"effort": effort}}, "output_config.effort"),
        ]:
            _, message = refusal(server, path, body)
            assert message.startswith(f'`{param}` is "{effort}", and the model\'s chat template knows neither'), message
            assert knowing.post(path, body).status_code == 200, (path, effort)
        assert f"<{effort}>" in prompt(knowing, reasoning_effort=effort)
    for effort in ["none", None]:
        assert server.post(CHAT, {**ASKED, "reasoning_effort": effort}).status_code == 200
        response = server.post(RESPONSES, {"input": "Hi", "max_output_tokens": 2, "reasoning": {"effort": effort}})
        assert response.status_code == 200
    assert refusal(knowing, CHAT, {**ASKED, "reasoning_effort": "huge"})[0] == "reasoning_effort"


def test_documents_that_no_template_shows_are_refused(server: Server, knowing: Server) -> None:
    documents = [{"text": "paper"}]
    param, message = refusal(server, CHAT, {**ASKED, "documents": documents})
    assert (param, "put them into a message" in message) == ("documents", True)
    assert server.post(CHAT, {**ASKED, "documents": []}).status_code == 200
    assert "[paper]" in prompt(knowing, documents=documents)


def test_thoughts_of_a_model_that_has_none_are_refused(server: Server, knowing: Server) -> None:
    body = {**ASKED, "max_tokens": 2000, "stop_sequences": ["e"]}
    enabled = {**body, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    _, message = refusal(server, MESSAGES, enabled)
    assert message.startswith('`thinking` is "enabled", and the model thinks neither by itself nor')
    assert refusal(server, MESSAGES + "/count_tokens", {k: enabled[k] for k in ("messages", "thinking")})[1] == message
    for kind in ["adaptive", "disabled"]:
        short = {**ASKED, "thinking": {"type": kind}}
        assert server.post(MESSAGES, short).status_code == 200
    assert (
        knowing.post(MESSAGES + "/count_tokens", {k: enabled[k] for k in ("messages", "thinking")}).status_code == 200
    )


def test_what_was_refused_before_may_be_sent_back(server: Server) -> None:
    said = {"role": "assistant", "content": "No."}
    empty = {"annotations": None, "audio": None, "function_call": None, "tool_calls": None, "name": None}
    part = [{"type": "refusal", "refusal": "No."}]
    told = prompt(server, messages=[*HI, said, *HI])
    for message in [
        {**said, **empty, "refusal": None},
        {**empty, "role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": part},
    ]:
        assert prompt(server, messages=[*HI, message, *HI]) == told
    both = {**said, "refusal": "No."}
    assert refusal(server, CHAT, {**ASKED, "messages": [*HI, both, *HI]})[0] == "messages[1].refusal"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1e308}, "`temperature` is 1e308; allowed: a number from 0 to 2"),
        ({"stop": [1]}, "`stop` is a list whose item 0 is 1; allowed: a text or a list of texts"),
        (
            {"structured_outputs": {"choice": ["a", 1]}},
            "`structured_outputs.choice` is a list whose item 1 is 1; allowed: a list of at least one text",
        ),
        (
            {"logit_bias": {"a": 1}},
            '`logit_bias` is an object with the key "a"; allowed: an object from token ids to numbers from -100 to 100',
        ),
        ({"logit_bias": {"5": "x"}}, '`logit_bias` is an object whose "5" is the text "x"; allowed: '),
        ({"logit_bias": {"5": 200}}, "`logit_bias` is 200 for token 5; allowed: numbers from -100 to 100"),
        ({"metadata": {"a": 1}}, '`metadata` is an object whose "a" is 1; allowed: an object from texts to texts'),
        (
            {"messages": [{"role": "user", "content": [{"type": "imgae_url"}]}]},
            '`messages[0].content[0].type` is "imgae_url"; allowed: "text"',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            '`messages[0].content[0].type` is "image_url"; allowed: "text" (and "refusal", in a message of the assistant\'s); '
            "not served yet: content that is not text",
        ),
        ({"messages": [{"role": "function", "content": "x"}]}, '`messages[0].role` is the text "function"; allowed: '),
        (
            {"ec_transfer_params": {}},
            "`ec_transfer_params` is an object; allowed: null; not served yet: moving encodings between servers",
        ),
    ],
)
def test_an_error_shows_what_is_wrong(server: Server, fields: dict[str, Any], expected: str) -> None:
    # 1e308 is a number that not every client's JSON can write.
    body = json.dumps({**ASKED, **fields}).replace("1e+308", "1e308")
    with client() as one:
        response = one.post(server.url + CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(expected), response.text


def test_empty_messages_are_empty_texts(server: Server) -> None:
    empty = [{"role": "user", "content": []}]
    assert server.post(CHAT, {**ASKED, "messages": empty}).status_code == 200
    assert server.post(MESSAGES, {**ASKED, "messages": empty}).status_code == 200
    assert server.post(RESPONSES, {"input": empty, "max_output_tokens": 2}).status_code == 200
    assert refusal(server, CHAT, {**ASKED, "messages": []})[1].startswith("`messages` is an empty list; allowed: ")


def test_what_a_query_may_include(server: Server) -> None:
    made = server.post(RESPONSES, {"input": "Hi", "max_output_tokens": 2}).json()["id"]
    for path in [f"{RESPONSES}/{made}", f"{RESPONSES}/{made}/input_items"]:
        assert server.get(path, params={"include[]": "reasoning.encrypted_content"}).status_code == 200
        for include, code_name in [
            ("message.output_text.logprobs", "not_served_yet"),
            ("file_search_call.results", "not_served_yet"),
            ("all", "invalid_value"),
        ]:
            error = server.get(path, params={"include[]": include}).json()["error"]
            assert (error["param"], error["code_name"]) == ("include[]", code_name)
