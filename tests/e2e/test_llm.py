"""`pelton.LLM`: the same answers as the server's, from Python, with nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pelton import LLM
from support.load import complete, prompts
from support.server import Server, children


def test_answers_are_the_servers(checkpoints: Path, server: Server) -> None:
    asked = prompts(5, seed=31)
    before = set(children(os.getpid()))
    with LLM(checkpoints / "llama-gqa", max_model_len=512, progress=False) as llm:
        fields = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}
        answers = llm.generate(asked, **fields)
        assert [a.token_ids for a in answers] == [complete(server, p, **fields).tokens for p in asked]
        assert all(a.finish_reason == "length" and a.completion_tokens == 12 for a in answers)
        several = llm.chat([{"role": "user", "content": "hello"}], n=3, max_tokens=4, temperature=1.0)
        assert len(several) == 3
        with pytest.raises(ValueError, match="temperature"):
            llm.generate("x", temprature=1.0)
        with pytest.raises(ValueError, match="max_tokens"):
            llm.generate(["x", "y"], max_tokens=0)
        for prompts_, kind, what in [
            (5, TypeError, "prompts"),
            (b"x", TypeError, "prompts"),
            ("x", ValueError, "stream"),
        ]:
            with pytest.raises(kind, match=what):
                llm.generate(prompts_, **({"stream": True} if kind is ValueError else {}))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="messages"):
            llm.chat("hi")  # type: ignore[arg-type]
        assert len(llm.generate("after an error", max_tokens=3)) == 1
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")
    assert set(children(os.getpid())) <= before


def test_a_setting_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        LLM("demo", max_modell_len=100)
