"""What is told of prompts and tokens beside the answer, and prompts that are cut."""

from __future__ import annotations

from typing import Any

import pytest
from support.server import Server, sse

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
TEXT = "The sky is blue because short waves are scattered more than long ones."
ASKED = [{"role": "user", "content": TEXT}]
DRAWN = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ids_of(server: Server, text: str) -> list[int]:
    found: list[int] = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return found


def test_the_prompts_text_is_what_was_tokenised(server: Server) -> None:
    chat = server.post(CHAT, {"messages": ASKED, **DRAWN, "return_prompt_text": True}).json()
    assert TEXT in chat["prompt_text"]
    assert ids_of(server, chat["prompt_text"]) == chat["prompt_token_ids"]
    body = {"prompt": [TEXT, "Why?"], **DRAWN, "return_prompt_text": True}
    whole = server.post(COMPLETIONS, body).json()
    assert [choice["prompt_text"] for choice in whole["choices"]] == [TEXT, "Why?"]
    assert not any(choice["text"].startswith(TEXT) for choice in whole["choices"]), "it is no echo"
    for path, sent in ((CHAT, {"messages": ASKED, **DRAWN}), (COMPLETIONS, {"prompt": TEXT, **DRAWN})):
        assert "prompt_text" not in server.post(path, sent).text
        with server.stream(path, {**sent, "return_prompt_text": True, "stream": True}) as response:
            chunks = list(sse(response))
        told = [at for at, chunk in enumerate(chunks) if "prompt_text" in str(chunk)]
        assert told == [0], "on the first chunk alone"


def test_log_probabilities_name_tokens_by_their_ids(server: Server) -> None:
    asked = {**DRAWN, "return_tokens_as_token_ids": True}
    choice = server.post(COMPLETIONS, {"prompt": TEXT, **asked, "logprobs": 2, "echo": True}).json()["choices"][0]
    names = [f"token_id:{token}" for token in choice["prompt_token_ids"] + choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    for name, top in list(zip(names, choice["logprobs"]["top_logprobs"], strict=True))[1:]:
        assert name in top
        assert all(other.startswith("token_id:") for other in top)
    chat = server.post(CHAT, {"messages": ASKED, **asked, "logprobs": True, "top_logprobs": 2}).json()["choices"][0]
    content = chat["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [f"token_id:{token}" for token in chat["token_ids"]]
    assert all(other["token"].startswith("token_id:") for entry in content for other in entry["top_logprobs"])


@pytest.mark.parametrize("side", ["left", "right", None])
def test_a_prompt_is_cut_on_the_side_that_is_asked_for(server: Server, side: str | None) -> None:
    ids = ids_of(server, TEXT)
    cut = {"truncate_prompt_tokens": 7, **({} if side is None else {"truncation_side": side})}
    expected = ids[:7] if side == "right" else ids[-7:]
    answer = server.post(COMPLETIONS, {"prompt": TEXT, **DRAWN, **cut, "echo": True}).json()
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == expected
    assert answer["usage"]["prompt_tokens"] == 7
    plain = server.post(COMPLETIONS, {"prompt": expected, **DRAWN, "echo": True}).json()["choices"][0]
    assert (choice["text"], choice["token_ids"]) == (plain["text"], plain["token_ids"])
    params = {name: value for name, value in DRAWN.items() if name != "return_token_ids"}
    told = server.post(GENERATE, {"token_ids": ids, "sampling_params": {**params, **cut}}).json()
    assert told["choices"][0]["token_ids"] == plain["token_ids"]
    chat = server.post(CHAT, {"messages": ASKED, **DRAWN}).json()["prompt_token_ids"]
    short = server.post(CHAT, {"messages": ASKED, **DRAWN, **cut}).json()["prompt_token_ids"]
    assert short == (chat[:7] if side == "right" else chat[-7:])


def test_a_prompt_that_fits_no_context_is_cut_to_it(server: Server) -> None:
    long = TEXT * 60
    assert server.post(COMPLETIONS, {"prompt": long, **DRAWN}).status_code == 400
    answer = server.post(COMPLETIONS, {"prompt": long, **DRAWN, "truncate_prompt_tokens": -1}).json()
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 511,
        "completion_tokens": 1,
        "total_tokens": 512,
        "prompt_tokens_details": None,
    }
    short = server.post(COMPLETIONS, {"prompt": TEXT, **DRAWN, "truncate_prompt_tokens": -1}).json()["choices"][0]
    assert (
        short["prompt_token_ids"]
        == server.post(COMPLETIONS, {"prompt": TEXT, **DRAWN}).json()["choices"][0]["prompt_token_ids"]
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "9"}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 9, "truncation_side": "middle"}, "truncation_side"),
        ({"return_prompt_text": 1}, "return_prompt_text"),
        ({"return_tokens_as_token_ids": "yes"}, "return_tokens_as_token_ids"),
        ({"spaces_between_special_tokens": 0}, "spaces_between_special_tokens"),
    ],
)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    for path, body in ((CHAT, {"messages": ASKED}), (COMPLETIONS, {"prompt": TEXT})):
        refused = server.post(path, {**body, **DRAWN, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


def test_a_chats_answer_begins_with_the_assistants_last_message(server: Server) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "Because"}]
    body = {"messages": begun, **DRAWN, "continue_final_message": True, "n": 2, "seed": 3}
    plain = [choice["message"]["content"] for choice in server.post(CHAT, body).json()["choices"]]
    echoed = [choice["message"]["content"] for choice in server.post(CHAT, {**body, "echo": True}).json()["choices"]]
    assert echoed == ["Because" + text for text in plain]
    with server.stream(CHAT, {**body, "echo": True, "stream": True}) as response:
        parts = [part for chunk in sse(response) for part in chunk["choices"]]
    for index, text in enumerate(echoed):
        assert "".join(part["delta"].get("content") or "" for part in parts if part["index"] == index) == text
    asked = {"messages": ASKED, **DRAWN}
    assert (
        server.post(CHAT, {**asked, "echo": True}).json()["choices"][0]["message"]
        == server.post(CHAT, asked).json()["choices"][0]["message"]
    ), "a user's words are no answer"


def test_special_tokens_that_are_shown_stand_as_they_are(server: Server) -> None:
    body = {"prompt": TEXT, **DRAWN, "skip_special_tokens": False, "logit_bias": {"2": 100}, "ignore_eos": True}
    with_spaces, without = (
        server.post(COMPLETIONS, {**body, "spaces_between_special_tokens": spaces}).json()["choices"][0]["text"]
        for spaces in (True, False)
    )
    assert with_spaces == without
