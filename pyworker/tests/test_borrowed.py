"""Models that transformers defines, on our blocks: its logits and its tokens, whatever the batch; and what it takes from a checkpoint."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from borrowed_checkpoints import VARIANTS, write
from pelton import inspect
from pelton.borrowed.attention import Heard, attending, attention
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load
from pelton.loading.ready import Progress
from pelton.loading.wish import Wish
from pelton.models.model import LanguageModel
from pelton.step import Step
from plans import Admit
from random_checkpoints import VOCAB, greedy, logits
from random_checkpoints import write as write_native
from safetensors.torch import load_file, save_file
from tiny_router import Request, TinyRouter, load_whole

PROMPTS = [1, 5, 17, 40, 70, 131]
TOKENS = 32


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one float32 checkpoint per variant, named as the variant."""
    root = tmp_path_factory.mktemp("borrowed")
    for name in VARIANTS:
        write(root / name, name)
    return root


def prompts(seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(VOCAB) for _ in range(length)] for length in PROMPTS]


def forward(loaded: Loaded, rows: list[list[int]]) -> list[torch.Tensor]:
    """Logits after each token of each row, in one step over blocks in reverse order."""
    size, kinds = loaded.kv.shape.block_size, len(loaded.kv.shape.kinds)
    counts = torch.tensor([len(row) for row in rows])
    width = -(-int(counts.max()) // size)
    blocks = torch.arange(loaded.kv.blocks - 1, loaded.kv.blocks - 1 - kinds * len(rows) * width, -1)
    table = blocks.view(kinds, len(rows), width)
    row = torch.arange(len(rows)).repeat_interleave(counts)
    places = torch.cat([torch.arange(len(row)) for row in rows])
    step = Step(
        ids=torch.tensor([token for row in rows for token in row], dtype=torch.int32),
        positions=places.int(),
        kv_slots=table[:, row, places // size] * size + places % size,
        block_table=table.int(),
        row_offsets=torch.cat([torch.zeros(1), counts.cumsum(0)]).int(),
        row_starts=torch.zeros(len(rows), dtype=torch.int32),
        kv=loaded.kv,
    )
    assert isinstance(loaded.model, LanguageModel)
    with torch.inference_mode():
        return list(torch.split(loaded.model.logits(step, torch.arange(len(places))), counts.tolist()))


def says(loaded: Loaded, seed: int | None = None) -> list[list[int]]:
    """Greedy tokens after each prompt, all at once: prompts in random chunks beside requests that decode."""
    return TinyRouter(loaded, seed=seed or 3).run(*(Request(Admit(0), prompt, TOKENS) for prompt in prompts(2)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(borrowed: Path, variant: str) -> None:
    loaded = load_whole(borrowed / variant)
    assert not loaded.is_invariant, "PyTorch's sums are its own affair"
    for tokens, got in zip(prompts(1)[3:], forward(loaded, prompts(1)[3:]), strict=True):
        expected = logits(borrowed / variant, tokens)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers_in_mixed_batches_with_chunked_prefill(
    borrowed: Path, variant: str
) -> None:
    folder = borrowed / variant
    assert says(load_whole(folder)) == [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]


def test_layers_of_several_sizes_share_blocks_and_windows_give_theirs_back(borrowed: Path) -> None:
    sizes = {variant: load_whole(borrowed / variant).kv.shape for variant in ("gpt-oss", "deepseek-v3", "gemma4")}
    assert [kind.window for kind in sizes["gpt-oss"].kinds] == [None, 21]
    assert sizes["deepseek-v3"].head_dim == 24, "the keys', which are wider than the values"
    assert (sizes["gemma4"].heads, sizes["gemma4"].head_dim) == (2, 32), "2 heads of 16 with a window, 1 of 32 without"
    router = TinyRouter(load_whole(borrowed / "gpt-oss"), chunk=8)
    assert router.run(Request(Admit(0), [5], 200)) == [greedy(borrowed / "gpt-oss", [5], 200)]
    # 200 tokens, the last of 201 being drawn alone, in blocks of 8 are 25 of the full kind; of a window of 21 tokens 4 at most, wherever it begins.
    assert router.held_max == 25 + 4


@pytest.mark.parametrize("variant", ["llama-tied-biased", "gemma2", "qwen3-windows"])
def test_native_families_say_the_same_through_transformers_if_that_is_asked_for(
    checkpoints: Path, variant: str
) -> None:
    folder = checkpoints / variant
    native, foreign = load_whole(folder, model_backend="native"), load_whole(folder, model_backend="transformers")
    assert (native.program is None, foreign.program is None) == (False, True)
    assert native.numerics_id != foreign.numerics_id, "blocks of one are none of the other"
    assert native.kv.shape == foreign.kv.shape
    assert says(native) == says(foreign)


@pytest.mark.parametrize(
    ("family", "field", "other"),
    [("llama", "hidden_act", "relu"), ("gpt_neox", "hidden_act", "tanh"), ("cohere", "hidden_act", "relu")],
)
def test_a_variant_that_a_native_family_lacks_goes_through_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, field: str, other: str
) -> None:
    folder = write_native(tmp_path / family, family)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {field: other}))
    loaded = load_whole(folder)
    assert (loaded.program, "of transformers" in loaded.family) == (None, True)
    said = f"`{field}` in config.json is '{other}'; supported: silu"
    assert f"not native: {said}" in caplog.text
    assert says(loaded) == [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]
    for wish in ({"model_backend": "native"}, {"quantize": "int8"}):
        with pytest.raises(LoadError, match=f"^{re.escape(said)}"):
            load_whole(folder, **wish)


def test_in_bf16_logits_are_those_of_float32_but_for_rounding(tmp_path: Path) -> None:
    folder = write(tmp_path / "glm4", "glm4", torch.bfloat16)
    loaded = load_whole(folder)
    assert loaded.dtype == "bfloat16"
    tokens = prompts(9)[-1]
    [got], expected = forward(loaded, [tokens]), logits(folder, tokens)
    # Three layers round about 10 times each to 8 bits; errors of random sign add up as the root.
    assert (got - expected).norm() / expected.norm() < 30**0.5 * 2**-8


def test_shards_are_read_and_progress_counts_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "sharded", "qwen3-moe", shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    said = list(load(Wish(folder, threads=1, kv_bytes=8 << 20, device="cpu")))
    reading = [progress for progress in said if progress.stage == "reading weights"]
    assert reading[0].budget is not None, "before any weight"
    stored = sum(tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values())
    assert {progress.total for progress in reading} == {stored}
    assert said[-1].done == stored
    assert says(load_whole(folder)) == [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]


def test_loading_ends_when_nobody_wants_it_any_more(borrowed: Path) -> None:
    loading = load(Wish(borrowed / "opt", threads=1, kv_bytes=8 << 20, device="cpu"))
    stages = []
    for said in loading:
        stages.append(said)
        if len([progress for progress in stages if progress.stage == "reading weights"]) == 2:
            break
    loading.close()
    assert next(loading, None) is None
    assert isinstance(stages[-1], Progress)


def test_weights_do_not_change_with_the_file_they_came_from(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "opt")
    loaded, expected = load_whole(folder), [greedy(folder, prompt, TOKENS) for prompt in prompts(2)]
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(bytes(file.stat().st_size // 2))
    assert says(loaded) == expected


def test_tensors_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "opt")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.decoder.layers.2.fc1.weight"]
    tensors["model.decoder.final_layer_norm.weight"] = torch.ones(63)
    tensors["model.decoder.layers.3.fc1.weight"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError) as error:
        load_whole(folder)
    assert "1 missing: model.decoder.layers.2.fc1.weight" in str(error.value)
    assert "1 unexpected: model.decoder.layers.3.fc1.weight" in str(error.value)
    assert "1 of another shape: model.decoder.final_layer_norm.weight [63] instead of [64]" in str(error.value)


def test_a_native_model_needs_no_transformers(checkpoints: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from pelton.loading.load import load_whole
from pelton.loading.wish import Wish
load_whole(Wish(Path({str(checkpoints / "llama")!r}), kv_bytes=1 << 20, device="cpu"))
sys.exit("transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_without_the_package_a_model_that_needs_it_says_so(borrowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        LoadError, match=r"OPTForCausalLM: Pelton has no such model.*pip install 'pelton\[transformers\]'"
    ):
        load_whole(borrowed / "opt")


def test_there_is_no_program_to_inspect(
    borrowed: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert inspect.main([str(borrowed / "opt"), "--threads", "1"]) == 1
    assert "the model is run eagerly; the lines above say why" in capsys.readouterr().out
    assert "OPTForCausalLM runs through transformers 5." in caplog.text


def test_quantisation_is_refused(borrowed: Path) -> None:
    with pytest.raises(
        LoadError, match="OPTForCausalLM would run through transformers, which here takes weights that are not"
    ):
        load_whole(borrowed / "opt", quantize="int8")


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("native", "OPTForCausalLM; supported: LlamaForCausalLM, "),
        ("vllm", "--model-backend vllm; supported: auto, native"),
    ],
)
def test_a_backend_that_cannot_is_refused(borrowed: Path, backend: str, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        load_whole(borrowed / "opt", model_backend=backend)


NEEDS_VALUES = "what its layers ask of attention is found out without weights, and its code needs values there ("


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"model_type": "nonsense", "architectures": ["NonsenseForCausalLM"]},
            "`model_type` in config.json is 'nonsense', which neither Pelton nor transformers",
        ),
        (
            {"model_type": "opt", "architectures": ["OPTForSequenceClassification"]},
            "OPTForSequenceClassification; supported for vectors and classes: models of Bert, Bloom, ",
        ),
        (
            {"model_type": "t5", "architectures": ["T5Model"]},
            "T5Model is no causal language model of transformers",
        ),
        (
            {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]},
            ": it takes images; supported: decoders of text",
        ),
        (
            {
                "model_type": "granitemoehybrid",
                "architectures": ["GraniteMoeHybridForCausalLM"],
                "time_step_limit": [0.0, {"__float__": "Infinity"}],
            },
            "keeps a recurrent state",
        ),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "keeps a recurrent state"),
        (
            {"model_type": "falcon", "architectures": ["FalconForCausalLM"]},
            "does not go through transformers' attention interface",
        ),
        (
            {"model_type": "minimax", "architectures": ["MiniMaxForCausalLM"]},
            "`layer_types` in config.json has linear_attention; supported: full_attention, sliding_attention",
        ),
        ({"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]}, "has chunked_attention; supported"),
        ({"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"]}, "takes more than text"),
        (
            {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "is_causal": False},
            "`is_causal` in config.json is False; supported: causal attention",
        ),
        (
            {"model_type": "hrm_text", "architectures": ["HrmTextForCausalLM"]},
            "`prefix_lm` in config.json is True; supported: causal attention",
        ),
        (
            {"model_type": "roberta", "architectures": ["RobertaForCausalLM"], "is_decoder": True},
            "RobertaForCausalLM counts its positions from the padding token's id; supported: positions from 0",
        ),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "sees the tokens behind a token, too"),
        (
            {
                "model_type": "glm4",
                "architectures": ["Glm4ForCausalLM"],
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 32,
                    "long_factor": [2.0] * 32,
                    "original_max_position_embeddings": 64,
                },
            },
            "`rope_type` in config.json is longrope, whose angles depend on the longest request of the step",
        ),
        (
            {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "hidden_size": "wide"},
            "is none that transformers",
        ),
        (
            {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "hidden_act": "sigh"},
            "cannot be made of its config.json: KeyError",
        ),
        (
            {
                "model_type": "mixtral",
                "architectures": ["MixtralForCausalLM"],
                "layer_types": ["sliding_attention"] * 32,
            },
            "which layers have a window is another thing in config.json",
        ),
        (
            {
                "model_type": "dbrx",
                "architectures": ["DbrxForCausalLM"],
                "n_layers": 1,
                "attn_config": {"rope_theta": 1e4, "clip_qkv": 8},
            },
            NEEDS_VALUES,
        ),
        ({"model_type": "jetmoe", "architectures": ["JetMoeForCausalLM"], "num_hidden_layers": 1}, NEEDS_VALUES),
        ({"model_type": "longcat_flash", "architectures": ["LongcatFlashForCausalLM"], "num_layers": 1}, NEEDS_VALUES),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    borrowed: Path, tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(borrowed / "opt" / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(changes))
    with pytest.raises(LoadError) as error:
        load_whole(tmp_path)
    assert why in str(error.value)


def test_a_head_and_a_table_that_both_misfit_are_refused(borrowed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(borrowed / "opt", tmp_path / "opt")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 240}))
    with pytest.raises(LoadError, match="a head and the table that it is tied to are both of another shape"):
        load_whole(folder)


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        ({"block_indices": torch.zeros(1)}, "Identity asks attention for `block_indices`, which Pelton's has not"),
        ({"attention_mask": torch.zeros(1)}, "Identity brings an attention mask of its own"),
        ({"is_causal": False}, "Identity sees the tokens behind a token, too"),
        ({"key": torch.zeros(1, 2, 4, 8)}, "Identity looks at other tokens than those of the step"),
        ({"key": torch.zeros(1, 3, 5, 8)}, "Identity has 4 heads for 3 of keys"),
    ],
)
def test_attention_of_other_kinds_is_refused(asks: dict[str, Any], why: str) -> None:
    given = {"query": torch.zeros(1, 4, 5, 8), "key": torch.zeros(1, 2, 5, 8), "value": torch.zeros(1, 2, 5, 8)}
    with attending(Heard()), pytest.raises(LoadError, match=why):
        attention(torch.nn.Identity(), **(given | asks))
