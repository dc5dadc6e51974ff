"""Bodies that are made to cost: large, long, deep. Each is refused by name, takes no more memory than what was sent, and nobody waits."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server, serving, sse

MIB = 1 << 20
MANY = 1_000_000
DEEP = 10_000
# The most values that a request may have.
VALUES = 1 << 17
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# A body is held once, and its buffer is doubled as it grows: 2. The longest lists that are made of it are token ids: 4 bytes of 2 that
# came, again doubled: 4.
TIMES_MAX = 6
# What a body's size does not bound: threads of the pool and of the runtime touch their stacks and arenas (12 to 17 MiB where a large
# body came before, 47 with a server's first one). One more copy of the largest body would not fit into it.
REST_MAX = 32 * MIB

HI = '{"role":"user","content":"hi"}'


def many(item: str, count: int = MANY) -> str:
    """A list of so many."""
    return "[" + ",".join([item] * count) + "]"


def deep(levels: int = DEEP) -> str:
    """Lists within lists."""
    return "[" * levels + "]" * levels


def members(count: int, value: str = "1") -> str:
    """An object of so many members, by numbers."""
    return "{" + ",".join(f'"{number}":{value}' for number in range(count)) + "}"


def chat(message: str = HI, **fields: str) -> str:
    """A chat of one message, with further fields as JSON."""
    return "{" + ",".join([f'"messages":[{message}]', *(f'"{name}":{value}' for name, value in fields.items())]) + "}"


def completion(**fields: str) -> str:
    """A completion with further fields as JSON."""
    return "{" + ",".join(f'"{name}":{value}' for name, value in {"prompt": '"a"', **fields}.items()) + "}"


def saying(content: str) -> str:
    """A user's message with this content."""
    return f'{{"role":"user","content":{content}}}'


def calling(arguments: str, times: int = 1) -> str:
    """An assistant's message with calls, whose arguments are this text."""
    call = json.dumps({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}})
    return f'{{"role":"assistant","tool_calls":{many(call, times)}}}'


def tools(count: int) -> str:
    """Functions that the model may call."""
    return "[" + ",".join(f'{{"type":"function","function":{{"name":"f{at}"}}}}' for at in range(count)) + "]"


def tool(schema: str) -> str:
    """One function with such parameters."""
    return f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'


def schema_format(schema: str) -> str:
    """A form of the text."""
    return f'{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}}'


PART = '{"type":"text","text":""}'

BODIES = {
    "messages": (CHAT, lambda: f'{{"messages":{many(HI)}}}', "messages"),
    "messages that say nothing": (CHAT, lambda: f'{{"messages":{many(saying(json.dumps("")))}}}', "messages"),
    "messages of a response": ("/v1/responses", lambda: f'{{"input":{many(HI)}}}', "input"),
    "messages of Anthropic's": ("/v1/messages", lambda: f'{{"max_tokens":5,"messages":{many(HI)}}}', "messages"),
    "messages to be counted": ("/tokenize", lambda: f'{{"messages":{many(HI)}}}', "messages"),
    "tools": (CHAT, lambda: chat(tools=tools(500_000)), "tools"),
    "parts": (CHAT, lambda: chat(saying(many(PART))), "messages"),
    "calls": (CHAT, lambda: chat(calling("{}", times=300_000)), "messages"),
    "documents": (CHAT, lambda: chat(documents=many("{}")), "documents"),
    "numbers that are not looked at": (
        CHAT,
        lambda: chat(f'{{"role":"user","content":"a","annotations":{many("1", 8 * MANY)}}}'),
        "messages",
    ),
    "numbers in the arguments of a call": (
        CHAT,
        lambda: chat(calling("[" + "1," * 8 * MANY + "1]") + f",{HI}"),
        "messages",
    ),
    "stop ids": (COMPLETIONS, lambda: completion(stop_token_ids=many("1")), "stop_token_ids"),
    "sixteen times as many": (COMPLETIONS, lambda: completion(stop_token_ids=many("1", 16 * MANY)), "stop_token_ids"),
    "ids that are none": (COMPLETIONS, lambda: completion(stop_token_ids=many("1.5", 8 * MANY)), "stop_token_ids"),
    "ids with points": (COMPLETIONS, lambda: completion(stop_token_ids=many("1.0", 8 * MANY)), "stop_token_ids"),
    "told ids": (COMPLETIONS, lambda: completion(logprobs="1", logprob_token_ids=many("1")), "logprob_token_ids"),
    "allowed ids": (COMPLETIONS, lambda: completion(allowed_token_ids=many("99999")), "allowed_token_ids"),
    "stop texts": (COMPLETIONS, lambda: completion(stop=many('"a"')), "stop"),
    "bad words": (COMPLETIONS, lambda: completion(bad_words=many('"a"')), "bad_words"),
    "biases": (COMPLETIONS, lambda: completion(logit_bias=members(MANY)), "logit_bias"),
    "choices": (COMPLETIONS, lambda: completion(structured_outputs=f'{{"choice":{many(chr(34) + "ab" + chr(34))}}}'),
                "structured_outputs"),
    "an enum": (COMPLETIONS, lambda: completion(response_format=schema_format(f'{{"enum":{many("1", 8 * MANY)}}}')),
                "response_format"),
    "an enum in a text": (COMPLETIONS, lambda: completion(guided_json=json.dumps(f'{{"enum":{many("1", 8 * MANY)}}}')),
                          "guided_json"),
    "a schema that is none": (COMPLETIONS, lambda: completion(guided_json=many("1", 8 * MANY)), "guided_json"),
    "metadata": ("/v1/responses", lambda: f'{{"input":"hi","metadata":{members(MANY, chr(34) * 2)}}}', "metadata"),
    "fields": (COMPLETIONS, lambda: '{"prompt":"a",' + members(2 * MANY)[1:], None),
    "prompts": (COMPLETIONS, lambda: completion(prompt=many('"a"')), "prompt"),
    "prompts of ids": (COMPLETIONS, lambda: completion(prompt=many("[1]", 5 * MANY)), "prompt"),
    "a prompt of ids": (COMPLETIONS, lambda: completion(prompt=many("5", 16 * MANY)), "prompt"),
    "a prompt of ids that is shown": (
        COMPLETIONS,
        lambda: completion(prompt=many("5", 15 * MANY), return_prompt_text="true", echo="true"),
        "prompt",
    ),
    "tokens of more text than is made at once": (
        "/detokenize",
        lambda: f'{{"tokens":{many("5", 16 * MANY)}}}',
        "tokens",
    ),
    "inputs": ("/v1/embeddings", lambda: f'{{"input":{many(chr(34) + "a" + chr(34))}}}', "input"),
    "documents to be ranked": ("/rerank", lambda: f'{{"query":"a","documents":{many(chr(34) + "a" + chr(34))}}}',
                               "documents"),
    "deep content": (CHAT, lambda: chat(saying(deep())), "messages"),
    "a deep schema": (CHAT, lambda: chat(tools=tool('{"items":' * DEEP + "{}" + "}" * DEEP)), "tools"),
    "a deep form": (CHAT, lambda: chat(response_format=schema_format('{"items":' * DEEP + "{}" + "}" * DEEP)),
                    "response_format"),
    "a deep form in a text": (CHAT, lambda: chat(guided_json=json.dumps('{"items":' * DEEP + "{}" + "}" * DEEP)),
                              "guided_json"),
    "deep arguments": (CHAT, lambda: chat(calling(deep()) + f",{HI}"), "messages"),
    "deep input of a call": (
        "/v1/messages",
        lambda: '{"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f",'
                f'"input":{{"a":{deep()}}}}}]}}]}}',
        "messages",
    ),
    "deep metadata": ("/v1/responses", lambda: f'{{"input":"hi","metadata":{{"a":{deep()}}}}}', "metadata"),
    "deep variables": (CHAT, lambda: chat(chat_template_kwargs=f'{{"a":{deep()}}}'), "chat_template_kwargs"),
    "deep without an end": (CHAT, lambda: "[" * MANY, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(checkpoints: Path) -> Iterator[Server]:
    """A server of the file's own: what others ask at the same time would be measured, too."""
    with serving(checkpoints / "llama-gqa", "--max-model-len", "512") as running:
        for _ in range(4):  # what is made at the first use
            running.post(CHAT, {"messages": [{"role": "user", "content": "hi " * 50}], "max_tokens": 2})
        path, make, _ = BODIES["a prompt of ids"]
        send(running, path, make().encode())
        yield running


@pytest.fixture(scope="module")
def streaming(target: Server) -> Iterator[Streaming]:
    """Another client, who reads one stream after another all the while."""
    client = Streaming(target)
    client.start()
    yield client
    client.stop()


class Streaming(threading.Thread):
    """Streams until it is told to stop; `tokens` is what has come."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server, self.over = server, threading.Event()
        self.tokens, self.failed = 0, ""

    def run(self) -> None:
        body = {"prompt": "The wheel", "max_tokens": 400, "ignore_eos": True, "stream": True, "return_token_ids": True}
        try:
            while not self.over.is_set():
                before = self.tokens
                with self.server.stream(COMPLETIONS, body) as response:
                    assert response.status_code == 200, response.read()
                    for event in sse(response):
                        self.tokens += sum(len(choice["token_ids"]) for choice in event["choices"])
                assert self.tokens - before == body["max_tokens"], f"{self.tokens - before} tokens"
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Lets the stream that runs come to its end."""
        self.over.set()
        self.join()
        assert not self.failed, self.failed


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a whole response."""
    head, body = answer.split(b"\r\n\r\n", 1)
    error = json.loads(body)["error"]
    return int(head.split()[1]), error


def send(server: Server, path: str, body: bytes, length: int | None = None) -> bytes:
    """One request as bytes, so that nothing of it is made of the body here; a server that has enough need not read it all."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length or len(body)}\r\n"
        with contextlib.suppress(ConnectionError):
            client.sendall(f"{head}connection: close\r\n\r\n".encode())
            client.sendall(body)
        return answer_of(client)


def answer_of(client: socket.socket) -> bytes:
    """What comes until the server closes, in whatever way: of a body that it has not read the kernel says that it was lost."""
    answer = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(1 << 16):
            answer += piece
    return bytes(answer)


@pytest.mark.parametrize("name", BODIES)
def test_it_is_refused_by_name_within_a_bound_of_memory_and_others_go_on(
    target: Server, streaming: Streaming, name: str
) -> None:
    path, make, param = BODIES[name]
    body = make().encode()
    assert len(body) < 32 * MIB, "not by its size"
    with target.within_memory(TIMES_MAX * len(body) + REST_MAX):
        status, error = error_of(send(target, path, body))
    assert status == 400, error
    if path == "/v1/messages":  # Anthropic's errors have no `param`
        assert f"`{param}`" in error["message"], error
    else:
        assert error["param"] == param, error
    assert len(error["message"]) < 1000
    seen = streaming.tokens
    target.wait_until("the stream goes on", lambda: streaming.tokens > seen or streaming.failed)
    assert not streaming.failed, streaming.failed


def test_the_most_values_that_are_read_take_a_bounded_memory(target: Server) -> None:
    # 1 KiB for each: two copies of a message of three values (as it came and as templates see it), and its text.
    with target.within_memory(VALUES << 10):
        count = VALUES // 3 - 10
        status, error = error_of(send(target, CHAT, f'{{"messages":{many(HI, count)}}}'.encode()))
    assert (status, error["param"], error["code_name"]) == (400, "messages", "context_length_exceeded"), error


def test_a_hundred_megabytes_are_refused_by_their_size(target: Server) -> None:
    body = b'{"prompt":"' + b"a" * 100_000_000 + b'"}'
    with target.within_memory(REST_MAX):
        answer = send(target, COMPLETIONS, body)
    status, error = error_of(answer)
    assert (status, error["code_name"]) == (413, "body_too_large")


def test_it_is_told_before_anything_is_sent_and_the_connection_ends(target: Server) -> None:
    with socket.create_connection(("127.0.0.1", target.port), timeout=60) as client:
        client.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "content-length: 100000000\r\nexpect: 100-continue\r\n\r\n".encode()
        )
        answer = answer_of(client)
    head = answer.split(b"\r\n\r\n", 1)[0].lower()
    assert head.startswith(b"http/1.1 413 "), head
    assert b"\r\nconnection: close" in head, head


def test_a_body_without_a_length_is_read_up_to_the_limit_and_no_further(target: Server) -> None:
    piece = b"a" * MIB
    with (
        target.within_memory(2 * 32 * MIB + REST_MAX),
        socket.create_connection(("127.0.0.1", target.port), timeout=60) as client,
    ):
        client.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 1000 * MIB:
                client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
        answer = answer_of(client)
    assert sent < 100 * MIB, "it went on taking what it refuses"
    status, error = error_of(answer)
    assert (status, error["code_name"]) == (413, "body_too_large")
    assert b"\r\nconnection: close" in answer.lower()
