"""A budget of thoughts: exactly so many tokens of reasoning, then the mark that ends them, then the answer as if the model had ended them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import CHAT_TEMPLATE, END, SPECIALS, Variant, make_checkpoint
from support.server import Server, serving, sse, sse_lines

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
ASKED = [{"role": "user", "content": "Why is the sky blue?"}]
TOKENS = 40
# Opens the thoughts itself, as many templates do, unless it is told not to.
TEMPLATE = CHAT_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}{# </think> #}",
)
# The marks are control tokens that the vocabulary has anyway.
WITH_CONTROL_TOKENS = """
name = "control"
[reasoning]
open = ["<|im_start|>"]
close = ["<|im_end|>"]
"""
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["blue", "grey"]}, "sure": {"type": "boolean"}},
    "required": ["sky", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose chat template opens thoughts; its vocabulary has no token for the marks."""
    variant = Variant("thinker", "llama", {"max_position_embeddings": 2048})
    made = make_checkpoint(tmp_path_factory.mktemp("thinker") / "thinker", variant)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    weights = load_file(made / "model.safetensors")
    weights["lm_head.weight"][END] = 0  # never the likeliest: it ends nothing by itself
    save_file(weights, made / "model.safetensors", {"format": "pt"})
    return made


@pytest.fixture(scope="module")
def thinker(folder: Path) -> Iterator[Server]:
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def close(thinker: Server) -> list[int]:
    ids: list[int] = thinker.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False}).json()["tokens"]
    assert len(ids) > 1, "a mark of several tokens is the harder case"
    return ids


def body(**fields: Any) -> dict[str, Any]:
    drawn = {"max_tokens": TOKENS, "temperature": 1, "seed": 7, "ignore_eos": True, "return_token_ids": True}
    return {"messages": ASKED, **drawn, **fields}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    response = server.post(CHAT, body(**fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def tokens(answer: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in answer["choices"]]


def thought(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])


def end_of_thoughts(server: Server, drawn: list[int], budget: int, close: list[int]) -> int:
    """How many tokens there are to the end of the mark. It stands behind the budget and the rest of a character, or the model has
    begun it by chance with the last tokens of its budget."""
    places = range(max(0, budget - len(close) + 1), budget + 4)
    end = next(place for place in places if drawn[place : place + len(close)] == close)
    for cut in range(budget, end):
        assert server.post("/detokenize", {"tokens": drawn[:cut]}).json()["prompt"].endswith("\ufffd"), (drawn, cut)
    return end + len(close)


@pytest.mark.parametrize("budget", [0, 1, 7, 20])
def test_thoughts_end_at_their_budget_and_the_answer_goes_on(thinker: Server, close: list[int], budget: int) -> None:
    (free,) = tokens(ask(thinker))
    answer = ask(thinker, thinking_token_budget=budget)
    (bound,) = tokens(answer)
    assert bound[:budget] == free[:budget], "until then nothing is changed"
    behind = end_of_thoughts(thinker, bound, budget, close)
    assert thought(answer) == behind
    assert answer["choices"][0]["message"]["content"]
    # As if the model had ended them: so it goes on behind the same tokens.
    prompt = thinker.post(CHAT + "/render", {"messages": ASKED}).json()["token_ids"]
    fields = {**body(prompt=prompt + bound[:behind], max_tokens=TOKENS - behind)}
    del fields["messages"]
    continued = thinker.post(COMPLETIONS, fields).json()
    assert bound[behind:] == continued["choices"][0]["token_ids"]
    assert tokens(ask(thinker, thinking_budget=budget)) == [bound]


def test_a_budget_that_is_not_used_up_changes_nothing(thinker: Server) -> None:
    free = ask(thinker)
    assert free["choices"][0]["message"]["content"] is None, "left alone, this model thinks to the end"
    for fields in ({"thinking_token_budget": TOKENS}, {"thinking_token_budget": -1}, {"thinking_token_budget": None}):
        assert ask(thinker, **fields)["choices"] == free["choices"]
    sober = {"chat_template_kwargs": {"enable_thinking": False}}
    assert tokens(ask(thinker, thinking_token_budget=0, **sober)) == tokens(ask(thinker, **sober)), "no thought, no end"


def test_streams_penalties_and_several_answers(thinker: Server, close: list[int]) -> None:
    for fields in (
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"repetition_penalty": 1.3, "presence_penalty": 1.0, "logit_bias": {str(close[0]): -100}},
        {"temperature": 0, "min_tokens": TOKENS},
    ):
        whole = ask(thinker, thinking_token_budget=9, **fields)
        ends = [end_of_thoughts(thinker, drawn, 9, close) for drawn in tokens(whole)]
        assert thought(whole) == sum(ends)
        streamed = [dict.fromkeys(("reasoning", "content"), "") for _ in whole["choices"]]
        with thinker.stream(CHAT, body(thinking_token_budget=9, stream=True, **fields)) as response:
            for event in sse(response):
                for choice in event["choices"]:
                    for part in ("reasoning", "content"):
                        streamed[choice["index"]][part] += choice["delta"].get(part) or ""
        said = [{part: choice["message"][part] for part in ("reasoning", "content")} for choice in whole["choices"]]
        assert streamed == said


def jobs() -> list[dict[str, Any]]:
    """Requests that think for different times, two of them in a form behind it, and some without a budget beside them."""
    bounds = [{"thinking_token_budget": budget, "seed": budget} for budget in (0, 3, 10, 17, 25, 33)]
    greedy = {"thinking_token_budget": 12, "temperature": 0}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}}
    formed = [{**form, "thinking_token_budget": budget, "seed": budget, "max_tokens": 300} for budget in (5, 21)]
    free = [
        {},
        {"seed": 8},
        {"logit_bias": {"300": 100}},
    ]  # the last one repeats itself, which is what drafts are made of
    return [*bounds, greedy, *formed, *free]


def together(server: Server) -> list[list[int]]:
    with ThreadPoolExecutor(len(jobs())) as pool:
        return [tokens(answer)[0] for answer in pool.map(lambda job: ask(server, **job), jobs())]


def test_company_a_killed_worker_and_drafts_change_no_token(thinker: Server, folder: Path) -> None:
    alone = [tokens(ask(thinker, **job))[0] for job in jobs()]
    assert together(thinker) == alone
    before = thinker.metric("pelton_generated_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(together, thinker)
        thinker.wait_until("tokens flow", lambda: thinker.metric("pelton_generated_tokens_total") > before + 30)
        os.kill(thinker.worker_pid(), signal.SIGKILL)
        assert answers.result() == alone
    with serving(folder, "--speculate", "ngram") as drafting:
        # Whether a draft is worth its time beside others, measured times say: on a busy machine perhaps not at once.
        for _ in range(20):
            assert together(drafting) == alone
            assert ask(drafting, **jobs()[-1])["choices"][0]["token_ids"] == alone[-1]
            if drafting.metric("pelton_spec_draft_tokens_total") > 0:
                break
        assert drafting.metric("pelton_spec_draft_tokens_total") > 0, "at least one that is alone has drafts"


def test_a_form_begins_behind_the_forced_end(thinker: Server, close: list[int]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": SCHEMA}}
    for budget in (0, 11):
        answer = ask(thinker, thinking_token_budget=budget, response_format=form, n=3, max_tokens=300)
        for choice in answer["choices"]:
            end_of_thoughts(thinker, choice["token_ids"], budget, close)
            if choice["finish_reason"] == "stop":
                jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        assert any(choice["finish_reason"] == "stop" for choice in answer["choices"])


def test_a_completion_thinks_where_its_prompt_does(thinker: Server, close: list[int]) -> None:
    def drawn(prompt: Any, **fields: Any) -> list[int]:
        asked = {**body(prompt=prompt, **fields)}
        del asked["messages"]
        response = thinker.post(COMPLETIONS, asked)
        assert response.status_code == 200, response.text
        ids: list[int] = response.json()["choices"][0]["token_ids"]
        return ids

    for prompt in ("Why? <think>\nWell, ", "<think>No.</think> Why? <think>"):
        assert drawn(prompt, thinking_token_budget=6)[6 : 6 + len(close)] == close
        ids = thinker.post("/tokenize", {"prompt": prompt}).json()["tokens"]
        assert drawn(ids, thinking_token_budget=6) == drawn(prompt, thinking_token_budget=6)
    sober = "<think>No.</think> Why?"
    assert drawn(sober, thinking_token_budget=0) == drawn(sober)
    form = {"prompt": "Why?", "thinking_token_budget": 1, "structured_outputs": {"regex": "a"}}
    refused = thinker.post(COMPLETIONS, form)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "thinking_token_budget"


def test_anthropics_budget_is_kept(thinker: Server) -> None:
    asked = {"messages": ASKED, "max_tokens": 1600, "temperature": 0, "seed": 7}
    limit = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    free = thinker.post(MESSAGES, {**asked, "thinking": {"type": "adaptive"}}).json()
    assert [block["type"] for block in free["content"]] == ["thinking"]
    assert free["usage"]["output_tokens"] > 1024, "left alone, this model thinks for longer"
    bound = thinker.post(MESSAGES, {**asked, **limit}).json()
    thinking, text = bound["content"]
    chat = ask(thinker, max_tokens=1600, temperature=0, thinking_token_budget=1024, ignore_eos=False)
    message = chat["choices"][0]["message"]
    assert (thinking["thinking"], text["text"]) == (message["reasoning"], message["content"])
    assert thought(chat) < free["usage"]["output_tokens"]


def test_thoughts_that_are_omitted_are_a_block_without_text(thinker: Server) -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    asked = {"messages": ASKED, "max_tokens": 12, "temperature": 0, "thinking": thinking}
    whole = thinker.post(MESSAGES, asked).json()
    assert whole["content"] == [{"type": "thinking", "thinking": "", "signature": "unsigned"}]
    assert whole["usage"]["output_tokens"] == 12
    with thinker.stream(MESSAGES, {**asked, "stream": True}) as response:
        told = [json.loads(line.removeprefix("data: ")) for line in sse_lines(response) if line.startswith("data: ")]
    events = [event for event in told if event["type"].startswith("content_block")]
    begin = {"type": "thinking", "thinking": "", "signature": ""}
    assert [event.get("content_block", event.get("delta")) for event in events] == [
        begin,
        {"type": "signature_delta", "signature": "unsigned"},
        None,
    ]
    answer = {"role": "assistant", "content": [*whole["content"], {"type": "text", "text": "Light."}]}
    assert thinker.post(MESSAGES, {**asked, "messages": [*ASKED, answer, *ASKED]}).status_code == 200


def test_marks_of_control_tokens(folder: Path, tmp_path: Path) -> None:
    form = tmp_path / "control.toml"
    form.write_text(WITH_CONTROL_TOKENS)
    opens, closes = SPECIALS.index("<|im_start|>"), SPECIALS.index("<|im_end|>")
    with serving(folder, "--format", str(form)) as server:
        # The bias has the model begin to think by itself, once and again.
        bias = {str(opens): 100, str(END): -100}
        fields = {"temperature": 0, "logit_bias": bias, "chat_template_kwargs": {"enable_thinking": False}}
        (drawn,) = tokens(ask(server, thinking_token_budget=5, **fields))
        assert drawn[:7] == [opens] * 6 + [closes], "the mark that opens them costs nothing"
        answer = ask(server, thinking_token_budget=5, **fields)
        assert thought(answer) == 7


def test_what_cannot_be_kept_is_refused(folder: Path, thinker: Server) -> None:
    said = {"messages": ASKED, "max_tokens": 2}
    limit = {"type": "enabled", "budget_tokens": 1024}
    with serving(folder, "--format", "none") as server:
        for path, fields in ((CHAT, said), (COMPLETIONS, {"prompt": "a", "max_tokens": 2}), (CHAT + "/render", said)):
            refused = server.post(path, {**fields, "thinking_token_budget": 5})
            assert refused.status_code == 400, path
            error = refused.json()["error"]
            assert error["param"] == "thinking_token_budget"
            assert "no reasoning" in error["message"]
            assert server.post(path, {**fields, "thinking_token_budget": -1}).status_code == 200
        # Anthropic's clients send one with every model, and who does not think keeps it.
        anthropic = {"messages": ASKED, "max_tokens": 1025, "thinking": limit, "stop_sequences": ["e"]}
        assert server.post(MESSAGES, anthropic).status_code == 200
    wrong = thinker.post(CHAT, body(thinking_token_budget=-2)).json()["error"]
    assert (
        wrong["message"] == "`thinking_token_budget` is -2; allowed: -1 (no limit), or an integer from 0 to 4294967295"
    )
