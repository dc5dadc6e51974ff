"""A gRPC client made from the protos, the standard health and reflection services, on the port that HTTP uses too."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc
from support.load import complete
from support.server import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ModuleType]:
    """Messages and stubs, generated from proto/ as a user would."""
    out = tmp_path_factory.mktemp("stubs")
    code = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto' / 'pelton' / 'v1'}",
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            "pelton.proto",
        ]
    )
    assert code == 0
    sys.path.insert(0, str(out))
    try:
        return importlib.import_module("pelton_pb2"), importlib.import_module("pelton_pb2_grpc")
    finally:
        sys.path.remove(str(out))


@pytest.fixture
def channel(server: Server) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel


def test_generate_streams_the_tokens_that_http_gives(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    request = messages.GenerateRequest(
        token_ids=messages.TokenIds(ids=[40, 41, 42]),
        sampling=messages.Sampling(max_tokens=20, temperature=0.8, seed=11, ignore_eos=True, logprobs=2),
    )
    answer = list(stub.Generate(request, timeout=60))
    tokens = [token for message in answer for token in message.token_ids]
    over_http = complete(server, [40, 41, 42], max_tokens=20, temperature=0.8, seed=11)
    assert tokens == over_http.tokens
    assert "".join(message.text for message in answer) == over_http.text
    finish = answer[-1].finish
    assert (finish.reason, finish.prompt_tokens, finish.completion_tokens) == ("length", 3, 20)
    logprobs = [entry for message in answer for entry in message.logprobs]
    assert [entry.token_id for entry in logprobs] == tokens
    assert all(len(entry.top) == 2 for entry in logprobs)


def test_words_and_circles_are_kept_as_over_http(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    fields = {"allowed_token_ids": [7, 8], "bad_words": [server.post("/detokenize", {"tokens": [8]}).json()["prompt"]]}
    circles = {"max_pattern_size": 2, "min_count": 3}
    sampling = messages.Sampling(
        max_tokens=24,
        temperature=0,
        ignore_eos=True,
        repetition_detection=messages.RepetitionDetection(**circles),
        **fields,
    )
    request = messages.GenerateRequest(token_ids=messages.TokenIds(ids=[3, 4]), sampling=sampling)
    told = list(services.PeltonStub(channel).Generate(request, timeout=60))
    over_http = complete(server, [3, 4], max_tokens=24, temperature=0, repetition_detection=circles, **fields)
    assert [token for message in told for token in message.token_ids] == over_http.tokens
    assert set(over_http.tokens) <= {7, 8}
    assert told[-1].finish.reason == "repetition"


def test_tokens_that_are_told_are_those_that_were_asked_for(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    sampling = messages.Sampling(max_tokens=3, temperature=0, ignore_eos=True, logprobs=0, logprob_token_ids=[400, 5])
    ids = messages.TokenIds(ids=[7, 21, 300])
    answer = services.PeltonStub(channel).Generate(messages.GenerateRequest(token_ids=ids, sampling=sampling))
    told = [entry for message in answer for entry in message.logprobs]
    body = {"prompt": [7, 21, 300], "max_tokens": 3, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    over_http = server.post("/v1/completions", {**body, "logprob_token_ids": [400, 5]}).json()["choices"][0]["logprobs"]
    assert [[one.token_id for one in entry.top] for entry in told] == [[400, 5]] * 3
    assert [entry.logprob for entry in told] == pytest.approx(over_http["token_logprobs"], abs=1e-5)


def test_a_template_of_the_requests_own_needs_leave(stubs: Any, channel: grpc.Channel) -> None:
    messages, services = stubs
    chat = messages.Chat(messages=[messages.Message(role="user", content="hi")], chat_template="{{ 1 }}")
    with pytest.raises(grpc.RpcError) as refused:
        list(services.PeltonStub(channel).Generate(messages.GenerateRequest(chat=chat)))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "`chat.chat_template`" in refused.value.details()
    assert "--trust-request-chat-template" in refused.value.details()


def test_tokenize_and_detokenize_are_inverse(stubs: Any, channel: grpc.Channel) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    text = "a wheel, ein Rad, 水車"
    ids = stub.Tokenize(messages.TokenizeRequest(text=text)).token_ids
    assert stub.Detokenize(messages.DetokenizeRequest(token_ids=ids)).text == text
    assert len(stub.Models(messages.ModelsRequest()).models) == 1


def test_a_prompt_is_scored_and_answers_are_searched_for_as_over_http(
    stubs: Any, channel: grpc.Channel, server: Server
) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    prompt = [40, 41, 42, 43]
    sampling = messages.Sampling(max_tokens=5, prompt_logprobs=2, beam_search=messages.BeamSearch())
    request = messages.GenerateRequest(token_ids=messages.TokenIds(ids=prompt), sampling=sampling, n=3)
    answer = list(stub.Generate(request, timeout=60))
    body = {"prompt": prompt, "max_tokens": 5, "n": 3, "prompt_logprobs": 2, "use_beam_search": True}
    over_http = server.post("/v1/completions", {**body, "return_token_ids": True}).json()["choices"]
    for index, choice in enumerate(over_http):
        mine = [message for message in answer if message.choice == index]
        assert [token for message in mine for token in message.token_ids] == choice["token_ids"]
        scored = [one for message in mine for one in message.prompt_logprobs]
        assert [one.logprob.token_id for one in scored] == prompt[1:]
        for one, expected in zip(scored, choice["prompt_logprobs"][1:], strict=True):
            own = expected[str(one.logprob.token_id)]
            assert (one.rank, one.logprob.logprob) == (own["rank"], pytest.approx(own["logprob"], abs=1e-6))
            assert len(one.logprob.top) == 2


def test_errors_are_statuses_that_name_the_field(stubs: Any, channel: grpc.Channel) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    cases = [
        (messages.GenerateRequest(), "input", grpc.StatusCode.INVALID_ARGUMENT),
        (
            messages.GenerateRequest(text="x", sampling=messages.Sampling(temperature=-1)),
            "`sampling.temperature`",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", keep_prompt_s=999_999),
            "`keep_prompt_s` is 999999 seconds",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", sampling=messages.Sampling(bad_words=[""])),
            "sampling.bad_words",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", sampling=messages.Sampling(prompt_logprobs=999)),
            "`sampling.prompt_logprobs`",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(token_ids=messages.TokenIds(ids=[1 << 30])),
            "token_ids",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", sampling=messages.Sampling(thinking_token_budget=1)),
            "sampling.thinking_token_budget` cannot be used: the model marks no reasoning",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(
                text="x", sampling=messages.Sampling(beam_search=messages.BeamSearch(length_penalty=99))
            ),
            "sampling.beam_search.length_penalty",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", sampling=messages.Sampling(regex="a", whitespace_pattern=" ?")),
            "`sampling.whitespace_pattern` is only allowed together with a JSON schema",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", truncate_prompt_tokens=-2),
            "`truncate_prompt_tokens` is -2",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(text="x", suffix="y"),
            "`suffix` cannot be used: the model's vocabulary has no marks",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            messages.GenerateRequest(
                chat=messages.Chat(messages=[messages.Message(role="user", content="hi")], reasoning_effort="some")
            ),
            "`chat.reasoning_effort`",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (messages.GenerateRequest(text="x", request_id="a b"), "`request_id`", grpc.StatusCode.INVALID_ARGUMENT),
        (messages.GenerateRequest(text="x", model="other"), "other", grpc.StatusCode.NOT_FOUND),
    ]
    for request, names, status in cases:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=60))
        assert caught.value.code() == status, caught.value.details()
        assert names in caught.value.details()


def test_a_prompt_is_cut_as_over_http(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    prompt = list(range(40, 60))
    for side, kept in (("", prompt[-7:]), ("left", prompt[-7:]), ("right", prompt[:7])):
        request = messages.GenerateRequest(
            token_ids=messages.TokenIds(ids=prompt),
            truncate_prompt_tokens=7,
            truncation_side=side,
            sampling=messages.Sampling(max_tokens=5, temperature=0, ignore_eos=True),
        )
        told = list(services.PeltonStub(channel).Generate(request, timeout=60))
        over_http = complete(server, kept, max_tokens=5, temperature=0)
        assert [token for message in told for token in message.token_ids] == over_http.tokens
        assert told[-1].finish.prompt_tokens == 7


def test_an_answer_is_named_by_its_request_else_by_its_call(stubs: Any, channel: grpc.Channel) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    call = [("x-request-id", "call")]
    for own, expected in (("", "call"), ("own", "own")):
        request = messages.GenerateRequest(text="x", request_id=own, sampling=messages.Sampling(max_tokens=1))
        answer = stub.Generate(request, timeout=60, metadata=call)
        assert list(answer)
        assert dict(answer.initial_metadata())["x-request-id"] == expected
        request.sampling.temperature = -1
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(request, timeout=60, metadata=call))
        assert dict(refused.value.trailing_metadata())["x-request-id"] == expected


def test_terms_are_read_from_metadata_and_from_fields(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    long = messages.GenerateRequest(
        token_ids=messages.TokenIds(ids=range(40, 140)),
        sampling=messages.Sampling(max_tokens=400, ignore_eos=True),
        user="ann",
        priority=-3,
    )
    for metadata, status, names in [
        ([("x-request-timeout-ms", "5")], grpc.StatusCode.DEADLINE_EXCEEDED, "not finished within 0.005 s"),
        ([("x-request-priority", "high")], grpc.StatusCode.INVALID_ARGUMENT, "x-request-priority"),
        ([("x-request-timeout-ms", "soon")], grpc.StatusCode.INVALID_ARGUMENT, "x-request-timeout-ms"),
    ]:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(long, timeout=60, metadata=metadata))
        assert caught.value.code() == status, caught.value.details()
        assert names in caught.value.details()
    server.wait_until("blocks are free", lambda: server.metric("pelton_blocks_held") == 0)


def test_a_cancelled_call_frees_its_blocks(stubs: Any, channel: grpc.Channel, server: Server) -> None:
    messages, services = stubs
    stub = services.PeltonStub(channel)
    request = messages.GenerateRequest(text="x", sampling=messages.Sampling(max_tokens=400, ignore_eos=True))
    call = stub.Generate(request, timeout=60)
    next(call)
    call.cancel()
    server.wait_until("blocks are free", lambda: server.metric("pelton_blocks_held") == 0)


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "pelton.v1.Pelton"):
        status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {"pelton.v1.Pelton", "grpc.health.v1.Health"} <= set(services)


def code_name(error: grpc.RpcError) -> str:
    """The stable name that every refusal has."""
    return str(dict(error.trailing_metadata())["pelton-code-name"])


@pytest.mark.parametrize(
    ("method", "message", "code", "name"),
    [
        ("Tokenize", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_message"),
        ("Generate", b"\x0a\xff", grpc.StatusCode.INVALID_ARGUMENT, "invalid_message"),
        ("Nothing", b"", grpc.StatusCode.UNIMPLEMENTED, "unknown_route"),
        ("Tokenize", b"", grpc.StatusCode.INVALID_ARGUMENT, "missing_parameter"),
    ],
)
def test_every_refusal_has_the_same_details(
    channel: grpc.Channel, method: str, message: bytes, code: grpc.StatusCode, name: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(channel.unary_stream(f"/pelton.v1.Pelton/{method}")(message))
    assert refused.value.code() == code
    assert code_name(refused.value) == name


def test_a_text_that_is_too_long_is_named(stubs: Any, channel: grpc.Channel) -> None:
    v1, services = stubs
    with pytest.raises(grpc.RpcError) as refused:
        services.PeltonStub(channel).Tokenize(v1.TokenizeRequest(text="a" * (9 << 20)))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "`text`" in refused.value.details()


def test_an_echo_comes_before_the_answer_that_http_gives(stubs: Any, server: Server, channel: grpc.Channel) -> None:
    v1, services = stubs
    ask = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    over_http = server.post("/v1/completions", {"prompt": "The wheel", "echo": True, **ask}).json()
    request = v1.GenerateRequest(text="The wheel", echo=True, cache_salt="mine", sampling=v1.Sampling(**ask))
    answer = "".join(message.text for message in services.PeltonStub(channel).Generate(request))
    assert answer == over_http["choices"][0]["text"]


def test_a_tool_is_called_and_its_answer_taken(stubs: Any, demo: Server) -> None:
    v1, services = stubs
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    user = v1.Message(role="user", content="What is the weather in Paris?")
    chat = v1.Chat(messages=[user], tools_json=json.dumps([tool]))
    with grpc.insecure_channel(f"127.0.0.1:{demo.port}") as channel:
        stub = services.PeltonStub(channel)
        sampling = v1.Sampling(temperature=0, max_tokens=64)
        messages = list(stub.Generate(v1.GenerateRequest(chat=chat, sampling=sampling)))
        pieces = [piece for message in messages for piece in message.tool_calls]
        arguments = "".join(piece.arguments for piece in pieces)
        assert messages[-1].finish.reason == "tool_calls"
        assert pieces[0].name == "get_weather"
        assert isinstance(json.loads(arguments), dict)
        called = v1.Message(
            role="assistant", tool_calls=[v1.ToolCall(id=pieces[0].id, name=pieces[0].name, arguments=arguments)]
        )
        answered = v1.Message(role="tool", tool_call_id=pieces[0].id, content='{"temperature": 21}')
        chat = v1.Chat(messages=[user, called, answered], tools_json=chat.tools_json)
        last = list(stub.Generate(v1.GenerateRequest(chat=chat, sampling=sampling)))[-1]
        assert last.finish.reason in ("stop", "length", "tool_calls")


def test_a_message_that_holds_too_much_is_refused_before_it_is_decoded(channel: grpc.Channel, server: Server) -> None:
    def field(number: int, inner: bytes) -> bytes:
        head, length = bytes([number << 3 | 2]), len(inner)
        while length >= 0x80:
            head, length = head + bytes([length & 0x7F | 0x80]), length >> 7
        return head + bytes([length]) + inner

    generate = channel.unary_stream("/pelton.v1.Pelton/Generate")  # of bytes
    empty = field(1, b"")
    for body in (field(4, empty * 8_000_000), field(5, field(12, b"") * 8_000_000)):
        # It is held once as it comes, in a buffer that doubles, and 144 bytes of 2 would be made of it.
        with server.within_memory(3 * len(body) + (16 << 20)), pytest.raises(grpc.RpcError) as refused:
            list(generate(body, timeout=60))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "131072 texts and messages" in refused.value.details()
    too_long = field(2, b"a" * (65 << 20))
    with server.within_memory(16 << 20), pytest.raises(grpc.RpcError) as refused:
        list(generate(too_long, timeout=60))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    detokenize = channel.unary_unary("/pelton.v1.Pelton/Detokenize")
    with server.within_memory(16 << 20), pytest.raises(grpc.RpcError) as refused:
        detokenize(too_long, timeout=60)
    assert (refused.value.code(), code_name(refused.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "body_too_large")
    with pytest.raises(grpc.RpcError) as refused:
        detokenize(field(2, b"\x05" * (16 << 20)), timeout=60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "`token_ids` is 16777216 tokens" in refused.value.details()
