"""Models that bring Python code of their own: refused unless asked for, run from the folder alone, and tried before they serve."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from pelton.loading.error import LoadError
from pelton.loading.fingerprint import fingerprint
from plans import Admit
from random_checkpoints import VOCAB, greedy, write
from tiny_router import Request, TinyRouter, load_whole

CONFIG = """
from transformers import LlamaConfig

class OwnConfig(LlamaConfig):
    model_type = "own-model"
"""

# `{body}` is what the model makes of the embeddings and positions before Llama's layers.
MODEL = """
import torch
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, input_ids=None, position_ids=None, logits_to_keep=0, **others):
        x = self.model.embed_tokens(input_ids) * 2
        {body}
        return super().forward(inputs_embeds=x, position_ids=position_ids, logits_to_keep=logits_to_keep, **others)
"""
HONEST = "pass"
CONVOLVES = "x = x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)"
CONVOLVES_A_LITTLE = CONVOLVES.replace("x + torch", "x + 0.02 * torch")
COUNTS = "position_ids = torch.arange(x.shape[1], device=x.device)[None]"

BLOCK_BYTES = 2 * 3 * 2 * 8 * 8 * 4  # keys and values, 3 layers, 2 heads of 8 columns, 8 tokens, float32

# As models were written before there was an attention interface.
OLD = """
    @classmethod
    def is_backend_compatible(cls):
        return False
"""

AUTO_MAP = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}


def own(folder: Path, body: str = HONEST, auto_map: dict[str, str] | None = None) -> Path:
    """A checkpoint of Llama's shape whose code doubles the embeddings."""
    write(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own-model", "architectures": ["OwnForCausalLM"], "auto_map": auto_map or AUTO_MAP}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(CONFIG)
    (folder / "modeling_own.py").write_text(MODEL.replace("{body}", body))
    return folder


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """transformers copies code into a cache before it runs it: here into one of these tests' own."""
    cache = str(tmp_path_factory.mktemp("modules"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.setattr(sys, "path", list(sys.path))
        yield


def test_code_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    (folder := own(tmp_path / "model")).joinpath("modeling_own.py").write_text("raise SystemExit('it ran')")
    for backend in ("auto", "native", "transformers"):
        with pytest.raises(LoadError, match=r"brings Python code of its own.*set --trust-remote-code"):
            load_whole(folder, model_backend=backend)


def test_code_that_is_trusted_runs_batched(tmp_path: Path) -> None:
    folder = own(tmp_path / "model")
    loaded = load_whole(folder, trust_remote_code=True)
    assert loaded.family == "OwnForCausalLM of transformers"
    doubled = write(tmp_path / "doubled", "llama")  # what its code computes, without code
    state = transformers.AutoModelForCausalLM.from_pretrained(doubled)
    with torch.no_grad():
        state.model.embed_tokens.weight *= 2
    state.save_pretrained(doubled)
    source = random.Random(1)
    prompts = [[source.randrange(VOCAB) for _ in range(count)] for count in (3, 20, 60)]
    drawn = TinyRouter(loaded, seed=4).run(*(Request(Admit(0), prompt, 20) for prompt in prompts))
    assert drawn == [greedy(doubled, prompt, 20) for prompt in prompts]


def test_code_that_was_changed_is_another_model(tmp_path: Path) -> None:
    """KV that the old code computed lies on disks and in living workers."""
    folder = own(tmp_path / "model")
    before = fingerprint(folder), load_whole(folder, trust_remote_code=True).numerics_id
    code = folder / "modeling_own.py"
    code.write_text(code.read_text() + "# changed\n")
    after = fingerprint(folder), load_whole(folder, trust_remote_code=True).numerics_id
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    "reference", ["ORG/NAME--modeling_own.OwnForCausalLM", "sub.modeling_own.OwnForCausalLM", "other.Own", "Own"]
)
def test_code_from_elsewhere_is_refused(tmp_path: Path, reference: str) -> None:
    folder = own(tmp_path / "model", auto_map=AUTO_MAP | {"AutoModelForCausalLM": reference})
    with pytest.raises(LoadError, match=r"supported: FILE.CLASS of a file FILE.py in .*Pelton downloads no code"):
        load_whole(folder, trust_remote_code=True)


def test_code_that_fails_is_named(tmp_path: Path) -> None:
    (folder := own(tmp_path / "model")).joinpath("modeling_own.py").write_text("import no_such_package")
    with pytest.raises(LoadError, match=r"the model's own code in .*modeling_own.py cannot be used: .*no_such_package"):
        load_whole(folder, trust_remote_code=True)


@pytest.mark.parametrize("what", ["import no_such_package", MODEL.replace("{body}", "pass") + OLD])
def test_code_of_another_day_gives_way_to_the_class_that_transformers_has_now(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "model", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": AUTO_MAP}))
    (folder / "configuration_own.py").write_text(CONFIG)
    (folder / "modeling_own.py").write_text(what)
    loaded = load_whole(folder, trust_remote_code=True, model_backend="transformers")
    assert loaded.family == "LlamaForCausalLM of transformers"
    assert "transformers' own LlamaForCausalLM runs instead of the folder's code" in caplog.text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (CONVOLVES, "OwnForCausalLM mixes the requests of a step"),
        (CONVOLVES_A_LITTLE, "OwnForCausalLM mixes the requests of a step"),
        # Rotary angles are relative: a whole row that stands elsewhere is the same, one that goes on in another step is not.
        (COUNTS, "OwnForCausalLM goes on otherwise after a step than within it"),
    ],
)
def test_a_model_whose_rows_are_not_their_own_is_found_out(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        load_whole(own(tmp_path / "model", body), trust_remote_code=True)


def test_a_state_is_found_out_where_only_one_request_fits(tmp_path: Path) -> None:
    # One block: no second request beside the first, so that the second of two steps has to show it.
    with pytest.raises(LoadError, match="goes on otherwise after a step than within it"):
        load_whole(own(tmp_path / "model", CONVOLVES), trust_remote_code=True, kv_bytes=BLOCK_BYTES, max_model_len=8)
