"""Held-out scores of a demo model: greedy answers to questions whose words or values no training text holds.

    python bench/demo/evaluate.py pyworker/pelton/demo --each 50

An answer counts if it is exactly right: the text, the JSON value, or the calls with their names and arguments. "well formed" is the
share of answers that at least parse as what was asked for.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from texts import Talk, held_out
from transformers import AutoModelForCausalLM, AutoTokenizer

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
MAX_NEW_TOKENS = 160


class Answerer:
    """Greedy answers by transformers on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        prompt = self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        inputs = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            out = self.model.generate(
                **inputs, do_sample=False, temperature=None, top_p=None, max_new_tokens=MAX_NEW_TOKENS
            )
        return str(self.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def calls_in(text: str) -> list[dict[str, Any]] | None:
    """The calls of an answer; None if there are none, or if one does not parse."""
    try:
        calls = [json.loads(found) for found in _CALL.findall(text)]
    except ValueError:
        return None
    well = all(isinstance(call, dict) and set(call) == {"name", "arguments"} for call in calls)
    return calls if calls and well else None


@dataclass
class Verdict:
    formed: bool
    right: bool


def judge(talk: Talk, text: str) -> Verdict:
    if talk.kind.startswith("call"):
        calls = calls_in(text)
        return Verdict(calls is not None, calls == talk.accept)
    if not talk.kind.startswith("json"):
        return Verdict(bool(text), text in talk.accept)
    try:
        value = json.loads(text)
    except ValueError:
        return Verdict(False, False)
    if isinstance(talk.accept, dict) and list(talk.accept) == ["keys"] and isinstance(talk.accept["keys"], list):
        return Verdict(True, isinstance(value, dict) and list(value) == talk.accept["keys"])
    return Verdict(True, value == talk.accept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--each", type=int, default=50, help="questions of each kind")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers of each kind")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    answerer = Answerer(options.model)
    verdicts: dict[str, list[Verdict]] = {}
    wrong: dict[str, int] = {}
    for talk in held_out(options.seed, options.each):
        text = answerer.answer(talk.messages[:-1], talk.tools)
        verdict = judge(talk, text)
        verdicts.setdefault(talk.kind, []).append(verdict)
        if not verdict.right and wrong.setdefault(talk.kind, 0) < options.show:
            wrong[talk.kind] += 1
            print(f"[{talk.kind}] {talk.messages[-2]['content']!r}\n   -> {text!r}\n   not {talk.accept!r}")
    print(f"| held-out questions ({options.each} of each kind) | well formed | right |")
    print("| --- | ---: | ---: |")
    for kind, found in verdicts.items():
        formed, right = sum(v.formed for v in found), sum(v.right for v in found)
        print(f"| {kind} | {formed / len(found):.0%} | {right / len(found):.0%} |")
    everything = [v for found in verdicts.values() for v in found]
    print(
        f"| all | {sum(v.formed for v in everything) / len(everything):.0%} | {sum(v.right for v in everything) / len(everything):.0%} |"
    )


if __name__ == "__main__":
    main()
