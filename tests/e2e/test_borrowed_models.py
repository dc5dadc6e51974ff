"""Models that are not native, through the whole server: they stream, batch, are cut into chunks and found in the cache."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.checkpoints import BORROWED, VARIANTS, Variant, greedy, make_checkpoint
from support.embeds import greedy as greedy_behind
from support.embeds import others, sent, told
from support.load import complete, prompts, together
from support.server import PELTON, serving

pytestmark = pytest.mark.long

TOKENS = 40
TAKES_EMBEDS = ("opt", "gpt-oss")
CPU = ("--device", "cpu", "--block-size", "8")

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own-model"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.mark.parametrize("variant", BORROWED, ids=lambda variant: variant.name)
def test_greedy_tokens_are_those_of_transformers_batched_chunked_and_cached(tmp_path: Path, variant: Variant) -> None:
    folder = make_checkpoint(tmp_path / variant.name, variant)
    asked = prompts(8, seed=len(variant.name))
    embeds = [others(folder, count, seed=count) for count in (3, 70)] if variant.name in TAKES_EMBEDS else []
    expected = [greedy(folder, prompt, TOKENS) for prompt in asked]
    # A budget of 40 tokens cuts most prompts into chunks that run beside the others' decoding.
    with serving(folder, *CPU, "--token-budget", "40", "--max-running", "6", "--enable-prompt-embeds") as server:
        jobs = [{"prompt": prompt, "max_tokens": TOKENS} for prompt in asked]
        assert [done.tokens for done in together(server, jobs)] == expected, "in a mixed batch with chunked prefill"
        again = [complete(server, prompt, max_tokens=TOKENS) for prompt in asked]
        assert [done.tokens for done in again] == expected, "with the prefix cached"
        assert sum(done.cached for done in again) > 0, "the second round found nothing in the cache"
        assert all(done.cached < len(prompt) for done, prompt in zip(again, asked, strict=True))
        for given in embeds:
            assert told(server, sent(given))[0] == [greedy_behind(folder, given)], "behind embeddings"


def test_a_native_model_runs_through_transformers_if_that_is_asked_for(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "llama", VARIANTS[0])
    asked = prompts(3, seed=5)
    with serving(folder, *CPU, "--model-backend", "transformers") as server:
        said = [complete(server, prompt, max_tokens=TOKENS).tokens for prompt in asked]
    assert said == [greedy(folder, prompt, TOKENS) for prompt in asked]


def refusal(folder: Path, *flags: str) -> str:
    """What `pelton serve` says when it does not start."""
    line = [str(PELTON), "serve", str(folder), "--port", "0", *CPU, *flags]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    return ended.stderr


def test_a_model_that_is_not_native_is_refused_where_it_must_be(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "opt", next(variant for variant in BORROWED if variant.name == "opt"))
    assert "`architectures`: OPTForCausalLM; supported: LlamaForCausalLM, " in refusal(
        folder, "--model-backend", "native"
    )


def test_code_of_the_model_runs_only_if_it_is_trusted(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "own", VARIANTS[0])
    prompt = prompts(1, seed=7)[0]
    expected = greedy(folder, prompt, TOKENS)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own-model",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(CODE)
    assert "brings Python code of its own, and Pelton runs none unless told so" in refusal(folder)
    with serving(folder, *CPU, "--trust-remote-code") as server:
        assert complete(server, prompt, max_tokens=TOKENS).tokens == expected
