"""The official Python client holds conversations with the server."""

from __future__ import annotations

import openai
import pytest
from support.server import Server


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_chat_whole_and_streamed_agree(client: openai.OpenAI, server: Server) -> None:
    ask = {
        "model": server.model_name,
        "messages": [{"role": "user", "content": "What is a water turbine?"}],
        "max_completion_tokens": 24,
        "temperature": 0.7,
        "seed": 5,
    }
    whole = client.chat.completions.create(**ask)
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    # The second one finds the first one's prompt in the cache: all else is equal.
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert chunks[0].choices[0].delta.role == "assistant"


def test_completions_with_n_and_logprobs(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(
        model=server.model_name, prompt=["one two", "three"], n=2, max_tokens=6, logprobs=3, temperature=1.0, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        # A token that ends within a character is named by its bytes, and a special one is not shown.
        assert choice.logprobs.text_offset is not None
        for name, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
            assert name.startswith(("bytes:", "<")) or choice.text[offset:].startswith(name), (name, offset, choice)
        assert all(len(top) >= 3 for top in choice.logprobs.top_logprobs or [])


def test_chat_logprobs_carry_exact_bytes(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model=server.model_name,
        messages=[{"role": "user", "content": "héllo ✓"}],
        max_tokens=12,
        logprobs=True,
        top_logprobs=2,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    content = answer.choices[0].message.content
    assert content is not None
    raw = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert raw.decode("utf-8", "replace").startswith(content[:4])
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_stop_strings_never_leak(client: openai.OpenAI, server: Server) -> None:
    ask = {"model": server.model_name, "prompt": "water", "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**ask).choices[0].text
    stop = text[6:9]
    assert len(stop) == 3
    cut = client.completions.create(**ask, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = "".join(c.choices[0].text for c in client.completions.create(**ask, stop=[stop], stream=True))
    assert streamed == cut.choices[0].text


def test_models(client: openai.OpenAI, server: Server) -> None:
    listed = client.models.list().data
    assert [m.id for m in listed] == [server.model_name]
    assert client.models.retrieve(server.model_name).id == server.model_name


@pytest.mark.parametrize(
    ("fields", "error", "names"),
    [
        ({"model": "no-such-model"}, openai.NotFoundError, "no-such-model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": "many"}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "x " * 4000}]}, openai.BadRequestError, "messages"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),  # B:SA3
        ({"n": 0}, openai.BadRequestError, "n"),
    ],
)
def test_a_bad_request_names_its_parameter(
    client: openai.OpenAI, server: Server, fields: dict, error: type[openai.APIStatusError], names: str
) -> None:
    ask = {"model": server.model_name, "messages": [{"role": "user", "content": "hi"}], **fields}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**ask)
    body = caught.value.body
    assert isinstance(body, dict)
    assert set(body) >= {"message", "type", "param", "code"}
    assert names in body["message"] or names == body["param"]
