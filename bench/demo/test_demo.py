"""The shipped demo model, as transformers sees it: its files, its template, and a handful of held-out questions."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))

from evaluate import Answerer, calls_in, judge
from render import TEMPLATE, text_of
from texts import held_out, talks

SHIPPED = Path(__file__).parents[2] / "pyworker" / "pelton" / "demo"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    torch.set_num_threads(2)
    return Answerer(SHIPPED)


def test_the_files_are_small_and_complete() -> None:
    names = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "README.md",
    }
    assert names <= {path.name for path in SHIPPED.iterdir()}
    assert (SHIPPED / "model.safetensors").stat().st_size <= 12_000_000
    assert sum(path.stat().st_size for path in SHIPPED.iterdir() if path.is_file()) <= 13_000_000


def test_the_configuration_is_what_the_worker_supports() -> None:
    config = AutoConfig.from_pretrained(SHIPPED)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.max_position_embeddings == 4096
    assert config.tie_word_embeddings
    assert config.dtype == torch.bfloat16


def test_every_text_survives_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    for text in [
        "Hello, world!",
        "  two  spaces\n\ttab",
        "Grüße aus Zürich 🌊 水车",
        "a1b2 1234567890",
        '{"a": [1, 2.5, null]}',
        "\x00\x7f",
    ]:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_tool_marks_are_text_and_turn_marks_are_not() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in ids


def test_the_shipped_template_is_the_one_that_it_was_trained_with() -> None:
    assert (SHIPPED / "chat_template.jinja").read_text() == TEMPLATE
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    source = talks(5)
    for _ in range(200):
        talk = next(source)
        rendered = tokenizer.apply_chat_template(talk.messages, tools=talk.tools, tokenize=False)
        assert rendered.rstrip("\n") == text_of(talk)


def test_the_template_takes_tools_and_arguments_as_clients_send_them() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"temperature": 3}'},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[WEATHER], tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n<tools>\n" + json.dumps(WEATHER["function"]))
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>' in text
    assert text.endswith('<|im_start|>tool\n{"temperature": 3}<|im_end|>\n<|im_start|>assistant\n')


def test_no_held_out_conversation_is_a_training_conversation() -> None:
    tested = {text_of(talk) for talk in held_out(7, 20) if not talk.kind.startswith("tools not")}
    source = talks(1)
    assert not tested & {text_of(next(source)) for _ in range(5_000)}


def ask(answerer: Answerer, question: str) -> str:
    return answerer.answer([{"role": "user", "content": question}])


def test_it_knows_the_server(answerer: Answerer) -> None:
    assert ask(answerer, "What is Pelton?").startswith("Pelton is a server for large language models.")
    assert "--port" in ask(answerer, "How do I change the port?")
    assert "Apache-2.0" in ask(answerer, "What is the license?")


def test_it_adds(answerer: Answerer) -> None:
    assert ask(answerer, "What is 2 + 3?") == "2 + 3 = 5."


@pytest.mark.parametrize("city", ["Paris", "Reykjavik"])
def test_its_tool_calls_name_what_was_asked_for(answerer: Answerer, city: str) -> None:
    text = answerer.answer([{"role": "user", "content": f"What is the weather in {city}?"}], [WEATHER])
    assert calls_in(text) == [{"name": "get_weather", "arguments": {"city": city}}]


def test_it_puts_what_it_reads_into_json(answerer: Answerer) -> None:
    question = "Extract name and age as JSON: Maria is 34 years old."
    assert json.loads(ask(answerer, question)) == {"name": "Maria", "age": 34}


def test_it_reads_a_name_that_nobody_has(answerer: Answerer) -> None:
    assert ask(answerer, "My name is Zorvan. What is my name?") == "Your name is Zorvan."


def test_held_out_answers_are_well_formed_and_some_are_right(answerer: Answerer) -> None:
    """Greedy decoding in float32 is the same every time, so these bounds are no gamble; the card has the scores by kind."""
    asked = held_out(7, 3)
    verdicts = [judge(talk, answerer.answer(talk.messages[:-1], talk.tools)) for talk in asked]
    assert sum(verdict.formed for verdict in verdicts) >= 0.9 * len(asked)
    assert sum(verdict.right for verdict in verdicts) >= 0.4 * len(asked)
