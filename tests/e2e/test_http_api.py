"""The HTTP API's form, as plain clients see it: routes, errors, streams, usage. What a client library hides is looked at here."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import Server, serving, sse

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def envelope(response: httpx.Response) -> dict[str, Any]:
    """The one body that every error has."""
    body = response.json()
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code", "code_name"], body
    assert error["code"] == response.status_code
    assert error["message"]
    assert response.headers["x-request-id"]
    return dict(error)


@contextlib.contextmanager
def streaming(server: Server, path: str, body: dict[str, Any]) -> Iterator[httpx.Response]:
    """A response whose body is read as it comes."""
    with server.stream(path, {**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        yield response


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with streaming(server, path, body) as response:
        return list(sse(response))


# Errors


@pytest.mark.parametrize(
    ("method", "path", "status", "code_name"),
    [
        ("GET", "/v1/chat/completion", 404, "unknown_route"),
        ("GET", COMPLETIONS, 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
    ],
)
def test_every_route_has_the_same_error_body(
    server: Server, method: str, path: str, status: int, code_name: str
) -> None:
    # B:A2
    response = httpx.request(method, server.url + path)
    assert response.status_code == status
    assert envelope(response)["code_name"] == code_name
    assert (status == 405) == ("allow" in response.headers)


def test_an_unknown_route_is_answered_with_the_nearest(server: Server) -> None:
    assert "/v1/chat/completions" in envelope(server.get("/v1/chat/completion"))["message"]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"prompt": "\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"prompt": "a"}', "text/plain", 415),
    ],
)
def test_a_body_that_cannot_be_read(server: Server, content: bytes, content_type: str, status: int) -> None:
    # C:A1
    response = httpx.post(server.url + COMPLETIONS, content=content, headers={"content-type": content_type})
    assert response.status_code == status
    envelope(response)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": list(range(5, 500)) * 2}, "prompt"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),  # B:SA3
        ({"stop_token_ids": [5] * 129}, "stop_token_ids"),  # B:SA2
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),  # B:SA2
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 1000}, "n"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 1000}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_a_wrong_field_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    response = server.post(COMPLETIONS, {"prompt": "a", **fields})
    assert response.status_code == 400
    assert envelope(response)["param"] == param


def test_a_body_beyond_the_limit_is_refused(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa", "--body-limit", "1KiB") as server:
        response = server.post(COMPLETIONS, {"prompt": "a" * 2000})
        assert response.status_code == 413
        assert envelope(response)["code_name"] == "body_too_large"


def test_a_key_opens_the_api_and_probes_need_none(checkpoints: Path) -> None:
    with serving(checkpoints / "llama-gqa", "--api-key", "sesame") as server:
        refused = server.get("/v1/models")
        assert refused.status_code == 401
        assert envelope(refused)["code_name"] == "invalid_api_key"
        assert server.post("/tokenize", {"prompt": "a"}).status_code == 401
        for headers in ({"authorization": "Bearer sesame"}, {"x-api-key": "sesame"}):
            assert server.get("/v1/models", headers=headers).status_code == 200
        for probe in ("/health", "/livez", "/readyz", "/startupz", "/ping", "/metrics"):
            assert server.get(probe).status_code == 200, probe


# Answers


ASK = {"prompt": "The wheel", "max_tokens": 24, "temperature": 0.8, "seed": 3, "ignore_eos": True}


def test_a_stream_adds_up_to_the_whole_answer(server: Server) -> None:
    ask = {**ASK, "n": 2, "logprobs": 2, "return_token_ids": True}
    whole = server.post(COMPLETIONS, ask).json()
    chunks = events(server, COMPLETIONS, {**ask, "stream_options": {"include_usage": True}})
    *parts, last = chunks
    for choice in whole["choices"]:
        mine = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [token for part in mine for token in part["token_ids"]] == choice["token_ids"]
        assert [text for part in mine for text in part["logprobs"]["tokens"]] == choice["logprobs"]["tokens"]
        names, tops = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
        assert [next(iter(top)) for top in tops] == names, "drawn tokens are named as candidates are"
        assert "" not in names
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == ["length"]
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


def test_answers_of_one_prompt_draw_with_seeds_of_their_own(server: Server) -> None:
    two = server.post(COMPLETIONS, {**ASK, "n": 2}).json()["choices"]
    alone = [server.post(COMPLETIONS, {**ASK, "seed": 3 + i}).json()["choices"][0] for i in range(2)]
    assert [choice["text"] for choice in two] == [choice["text"] for choice in alone]


def test_without_a_seed_answers_differ(server: Server) -> None:
    ask = {key: value for key, value in ASK.items() if key != "seed"}
    texts = {server.post(COMPLETIONS, ask).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) > 1


def test_a_prompt_may_be_text_or_tokens(server: Server) -> None:
    tokens = server.post("/tokenize", {"prompt": ASK["prompt"]}).json()["tokens"]
    by_text = server.post(COMPLETIONS, ASK).json()["choices"][0]["text"]
    for prompt in (tokens, [tokens], [ASK["prompt"]]):
        assert server.post(COMPLETIONS, {**ASK, "prompt": prompt}).json()["choices"][0]["text"] == by_text
    many = server.post(COMPLETIONS, {**ASK, "prompt": [tokens, tokens], "n": 2}).json()["choices"]
    assert [choice["index"] for choice in many] == [0, 1, 2, 3]
    assert many[0]["text"] == many[2]["text"] == by_text


def test_echo_shows_the_prompt_first(server: Server) -> None:
    echoed = server.post(COMPLETIONS, {**ASK, "echo": True}).json()["choices"][0]["text"]
    assert echoed == ASK["prompt"] + server.post(COMPLETIONS, ASK).json()["choices"][0]["text"]
    nothing = server.post(COMPLETIONS, {**ASK, "echo": True, "max_tokens": 0}).json()
    assert nothing["choices"][0]["text"] == ASK["prompt"]
    assert nothing["usage"]["completion_tokens"] == 0


def test_an_echo_alone_may_fill_the_context(server: Server) -> None:
    (model,) = server.get("/v1/models").json()["data"]
    full = {"prompt": [5] * model["max_model_len"], "echo": True}
    nothing = server.post(COMPLETIONS, {**full, "max_tokens": 0})
    assert nothing.status_code == 200, nothing.text
    assert nothing.json()["usage"]["completion_tokens"] == 0
    for fields in ({"max_tokens": 1}, {"max_tokens": 0, "logprobs": 1}):
        assert server.post(COMPLETIONS, {**full, **fields}).json()["error"]["param"] == "prompt"


def test_stop_ids_end_an_answer_and_are_named(server: Server) -> None:
    ask = {**ASK, "return_token_ids": True}
    free = server.post(COMPLETIONS, ask).json()["choices"][0]
    stop = free["token_ids"][5]
    cut = server.post(COMPLETIONS, {**ask, "stop_token_ids": [stop]}).json()["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["stop_reason"] == stop
    assert cut["token_ids"] == free["token_ids"][: free["token_ids"].index(stop) + 1]
    # B:SA4
    later = server.post(COMPLETIONS, {**ask, "stop_token_ids": [stop], "min_tokens": 20}).json()["choices"][0]
    assert stop not in later["token_ids"][:20]
    assert len(later["token_ids"]) >= 20


def test_a_stop_text_is_counted_and_named(server: Server) -> None:
    free = server.post(COMPLETIONS, {**ASK, "temperature": 0}).json()["choices"][0]["text"]
    stop = free[4:7]
    body = server.post(COMPLETIONS, {**ASK, "temperature": 0, "stop": stop}).json()
    choice = body["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["text"] == free[: free.index(stop)]
    assert 0 < body["usage"]["completion_tokens"] <= ASK["max_tokens"]
    shown = server.post(COMPLETIONS, {**ASK, "temperature": 0, "stop": stop, "include_stop_str_in_output": True})
    assert shown.json()["choices"][0]["text"] == choice["text"] + stop


def test_cached_tokens_are_told(server: Server) -> None:
    prompt = list(range(10, 210))
    asks = [server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}).json()["usage"] for _ in range(2)]
    assert asks[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert asks[1]["prompt_tokens_details"]["cached_tokens"] < len(prompt)


def test_a_logit_bias_decides(server: Server) -> None:
    answer = server.post(COMPLETIONS, {**ASK, "logit_bias": {"70": 100}, "temperature": 0, "return_token_ids": True})
    assert set(answer.json()["choices"][0]["token_ids"]) == {70}


def test_a_chat_streams_role_then_text_then_reason(server: Server) -> None:
    chunks = events(server, CHAT, {"messages": HI, "max_tokens": 8, "ignore_eos": True, "seed": 1})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert all("role" not in choice["delta"] for choice in choices[1:])
    whole = server.post(CHAT, {"messages": HI, "max_tokens": 8, "ignore_eos": True, "seed": 1}).json()
    assert (
        "".join(choice["delta"].get("content", "") for choice in choices) == whole["choices"][0]["message"]["content"]
    )


def test_a_message_can_be_continued(server: Server) -> None:
    messages = [*HI, {"role": "assistant", "content": "It turns"}]
    body = {"messages": messages, "continue_final_message": True}
    tokens = server.post("/tokenize", body).json()["tokens"]
    text = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert text.endswith("It turns")
    assert server.post(CHAT, {**body, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        # This checkpoint's template knows no tools.
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"store": True}, "store"),
    ],
)  # fmt: skip
def test_a_chats_wrong_field_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    response = server.post(CHAT, {"messages": HI, **fields})
    assert response.status_code == 400, response.text
    assert envelope(response)["param"] == param


def test_what_changes_no_answer_is_accepted(server: Server) -> None:
    extra = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "logprobs": False}
    assert server.post(CHAT, {"messages": HI, "max_tokens": 1, **extra}).status_code == 200


# Around them


def test_tokenize_and_detokenize_are_inverse(server: Server) -> None:
    text = "a wheel, ein Rad, 水車 🌊"
    answer = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert server.post("/detokenize", {"tokens": answer["tokens"]}).json()["prompt"] == text
    refused = server.post("/detokenize", {"tokens": [1 << 30]})
    assert (refused.status_code, envelope(refused)["param"]) == (400, "tokens")


def test_a_request_id_is_kept(server: Server) -> None:
    response = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "cmpl-mine-1"


def test_streams_are_not_buffered_by_proxies(server: Server) -> None:
    with streaming(server, COMPLETIONS, {"prompt": "a", "max_tokens": 1}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"


def test_metrics_are_there_by_the_names_that_readers_know(server: Server) -> None:
    server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 3, "ignore_eos": True})
    text = server.get("/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:lora_requests_info",
    ):
        assert f"# TYPE {name} gauge" in text
        assert len([line for line in text.splitlines() if line.startswith(name + "{")]) == 1, "one series per name"
    assert server.metric("vllm:time_to_first_token_seconds_count") > 0
    assert server.metric("vllm:generation_tokens_total") >= 3
    assert "NaN" not in text


def test_what_a_worker_did_with_the_time_in_which_it_had_requests_is_told(server: Server) -> None:
    def told() -> tuple[float, float]:
        computing, occupied = (f"pelton_worker_{what}_seconds_total" for what in ("computing", "occupied"))
        return server.metric(computing), server.metric(occupied)

    def asked(tokens: int) -> tuple[float, float, float]:
        """What a request adds, and how long it was under way."""
        computing, occupied = told()
        began = time.monotonic()
        server.post(COMPLETIONS, {"prompt": "a", "max_tokens": tokens, "ignore_eos": True})
        took = time.monotonic() - began
        now = told()
        return now[0] - computing, now[1] - occupied, took

    asked(1)  # behind the steps of those who asked before
    for _ in range(2):  # the time between the two, in which nobody asks, is not the second one's
        computing, occupied, took = asked(100)
        assert 0 < computing <= occupied <= took
        time.sleep(0.3)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_noticed_and_its_blocks_come_back(server: Server, stream: bool) -> None:
    left = server.metric("pelton_requests_cancelled_total")
    body = json.dumps({"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": stream}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + body)
        server.wait_until("the request runs", lambda: server.metric("vllm:num_requests_running") == 1)
    server.wait_until("the client is missed", lambda: server.metric("pelton_requests_cancelled_total") == left + 1)
    server.wait_until("its blocks are back", lambda: server.metric("pelton_blocks_held") == 0)


def test_http_2_is_spoken_on_the_same_port(server: Server) -> None:
    """The connection preface of HTTP/2 is answered with a SETTINGS frame (type 4)."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert client.recv(9)[3] == 4


def test_of_more_answers_the_likeliest_are_told(server: Server) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 9, "temperature": 1, "seed": 11, "logprobs": 0, "ignore_eos": True}
    every = server.post("/v1/completions", body | {"n": 5}).json()["choices"]
    likeliest = sorted(every, key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
    told = server.post("/v1/completions", body | {"n": 2, "best_of": 5}).json()
    assert [choice["text"] for choice in told["choices"]] == [choice["text"] for choice in likeliest[:2]]
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert told["usage"]["completion_tokens"] == 45
