"""Conversations as the model sees them: the chat template's text, as token ids, with the assistant's own tokens marked."""

import json
from pathlib import Path
from typing import Any

import jinja2
from texts import Talk
from tokenizers import Tokenizer

HERE = Path(__file__).parent
TEMPLATE = (HERE / "chat_template.jinja").read_text()

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL = [END_OF_TEXT, START, END]
# Ordinary added tokens: one id each, but part of the text, so that a parser sees them.
TOOL_MARKS = ["<tool_call>", "</tool_call>"]

# The settings with which transformers and Pelton render templates; tojson keeps the order of keys.
_environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
_environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_template = _environment.from_string(TEMPLATE)


def text_of(talk: Talk) -> str:
    return _template.render(messages=talk.messages, tools=talk.tools).rstrip("\n")


class Marker:
    """Turns a conversation into ids and a mask of those that the assistant writes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.start, self.end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
        self.header = tokenizer.encode(f"{START}assistant\n").ids

    def ids_of(self, talk: Talk) -> tuple[list[int], list[bool]]:
        ids: list[int] = self.tokenizer.encode(text_of(talk)).ids
        own = [False] * len(ids)
        position, width = 0, len(self.header)
        while position < len(ids):
            if ids[position : position + width] != self.header:
                position += 1
                continue
            position += width
            while position < len(ids):
                own[position] = True
                position += 1
                if ids[position - 1] == self.end:
                    break
        return ids, own


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json, in the fields that transformers and Pelton read."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
