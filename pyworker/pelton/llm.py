"""`LLM`: the engine of the server in this process, for scripts and notebooks. No port is opened; the worker runs beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pelton import demo_dir
from pelton.progress import Progress

Message = Mapping[str, Any]

# Requests under way at once: enough to fill any batch, while the rest need no memory.
IN_FLIGHT = 1024
# How often a wait looks for Ctrl-C.
PATIENCE_S = 0.2


@dataclass(frozen=True)
class Answer:
    """One answer. With `n` > 1 a prompt has several, one after the other."""

    text: str
    finish_reason: str
    token_ids: list[int] = field(repr=False)
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    # What the model thought, where a chat's format tells that from its answer.
    reasoning: str = ""
    # As in the HTTP API's answer, if asked for.
    logprobs: dict[str, Any] | None = field(default=None, repr=False)


class LLM:
    """A loaded model.

    `model` is a folder in Hugging Face layout, ORG/NAME of the hub, or "demo". Settings are the flags of `pelton serve` with
    underscores: `LLM("demo", max_model_len="2k", threads=2)`.
    """

    def __init__(self, model: str | Path = "demo", *, progress: bool = True, **settings: object) -> None:
        from pelton import _pelton

        said = [("model", str(model)), *((name, _text(value)) for name, value in settings.items())]
        self._shows_progress = progress
        self._is_closed = False
        self._router = _pelton.Router(said, sys.executable, str(demo_dir()))
        with Progress("loading", shown=progress, of_bytes=True) as bar:
            while (step := self._router.wait_loaded(PATIENCE_S)) is not None:
                stage, done, total = step
                bar.show(done, total, stage)

    def generate(
        self, prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], **fields: Any
    ) -> list[Answer]:
        """Continues each prompt (a text, or token ids). Fields are those of `/v1/completions`: max_tokens, temperature, ...

        The answers come as a list in the order of the prompts, `n` for each.
        """
        return self._run(self._router.complete, [{**fields, "prompt": prompt} for prompt in _listed(prompts)])

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]], **fields: Any) -> list[Answer]:
        """Answers one conversation, or each of several. Fields are those of `/v1/chat/completions`.

        The answers come as a list in the order of the conversations, `n` for each.
        """
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise TypeError(f"`messages` is {messages!r}; allowed: a list of messages, or a list of such lists")
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self._run(self._router.chat, [{**fields, "messages": conversation} for conversation in conversations])

    def close(self) -> None:
        """Ends the worker. The object is of no use afterwards."""
        self._is_closed = True
        self._router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this LLM was closed; make another one")

    def _run(self, submit: Callable[[str], int], bodies: list[dict[str, Any]]) -> list[Answer]:
        """Submits all bodies, a bounded number at a time; answers in the order of the prompts."""
        self._check_open()
        if any(body.get("stream") for body in bodies):
            raise ValueError("`stream` is True; answers come whole here: use `pelton serve` for streams")
        waiting = list(enumerate(bodies))[::-1]
        running: dict[int, int] = {}
        answers: list[list[Answer]] = [[] for _ in bodies]
        tokens = 0
        try:
            with Progress("answers", shown=self._shows_progress and len(bodies) > 1) as bar:
                while waiting or running:
                    while waiting and len(running) < IN_FLIGHT:
                        index, body = waiting.pop()
                        running[submit(json.dumps({"return_token_ids": True, **body, "stream": False}))] = index
                    if (came := self._router.next(PATIENCE_S)) is None:
                        self._check_open()  # another thread may have closed it
                        continue
                    ticket, text = came
                    index = running.pop(ticket)
                    answers[index] = _answers(json.loads(text))
                    tokens += sum(answer.completion_tokens for answer in answers[index])
                    bar.show(len(bodies) - len(waiting) - len(running), len(bodies), f"{tokens} tokens")
        finally:
            # After an error or Ctrl-C, what still runs is of no use to anybody.
            for ticket in running:
                self._router.cancel(ticket)
        return [answer for several in answers for answer in several]


def _text(value: object) -> str:
    """A setting as on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(prompts: str | Sequence[Any]) -> Sequence[Any]:
    """One prompt, or several, as a list of prompts."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(f"`prompts` is {prompts!r}; allowed: a text, a list of token ids, or a list of these")
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if is_one else prompts


def _answers(response: dict[str, Any]) -> list[Answer]:
    usage = response["usage"]
    choices = response["choices"]
    return [
        Answer(
            text=choice["text"] if "text" in choice else choice["message"].get("content") or "",
            finish_reason=choice["finish_reason"],
            token_ids=choice["token_ids"],
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=len(choice["token_ids"]),
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            tool_calls=choice.get("message", {}).get("tool_calls") or [],
            reasoning=choice.get("message", {}).get("reasoning") or "",
            logprobs=choice.get("logprobs"),
        )
        for choice in choices
    ]
