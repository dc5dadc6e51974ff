"""From folder to model: shards, formats, what does not fit together, and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load
from pelton.loading.wish import Wish
from plans import Admit
from random_checkpoints import greedy, write
from safetensors.torch import load_file, save_file
from tiny_router import Request, TinyRouter, load_whole

PROMPT = [7, 3, 150, 20]


def says(loaded: Loaded) -> list[int]:
    return TinyRouter(loaded).run(Request(Admit(0), PROMPT, 12))[0]


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    folder = write(tmp_path / "sharded", "llama", shard="100KB")
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert says(load_whole(folder)) == greedy(folder, PROMPT, 12)


@pytest.mark.parametrize(
    ("stored", "asked", "computed"),
    [
        (torch.bfloat16, "auto", "bfloat16"),
        (torch.float16, "auto", "float32"),
        (torch.float32, "auto", "float32"),
        (torch.float32, "bfloat16", "bfloat16"),
        (torch.bfloat16, "float32", "float32"),
    ],
)
def test_the_dtype_is_the_stored_one_or_the_asked_one(
    tmp_path: Path, stored: torch.dtype, asked: str, computed: str
) -> None:
    folder = write(tmp_path / "model", "qwen3", stored)
    loaded = load_whole(folder, dtype=asked)
    assert loaded.dtype == computed
    assert str(loaded.kv.layers[0][0].dtype) == f"torch.{computed}"
    if computed == "float32":
        assert says(loaded) == greedy(folder, PROMPT, 12)


def test_what_old_and_tied_checkpoints_carry_too_many_is_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama-tied-biased")
    expected = says(load_whole(folder))
    change_tensors(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    change_tensors(folder, lambda t: t | {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert says(load_whole(folder)) == expected


def test_tensors_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama")

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        del tensors["model.layers.2.mlp.up_proj.weight"]
        tensors["model.norm.weight"] = torch.ones(63)
        return tensors | {"model.layers.3.mlp.up_proj.weight": torch.ones(1)}

    change_tensors(folder, change)
    with pytest.raises(LoadError) as error:
        load_whole(folder)
    assert "1 missing: model.layers.2.mlp.up_proj.weight" in str(error.value)
    assert "1 unexpected: model.layers.3.mlp.up_proj.weight" in str(error.value)
    assert "1 of another shape: model.norm.weight [63] instead of [64]" in str(error.value)


MASKS = {
    "transformer.h.1.attn.bias": torch.ones(1, 1, 8, 8),
    "transformer.h.1.attn.masked_bias": torch.tensor(-1e4),
    "gpt_neox.layers.1.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
    "gpt_neox.layers.1.attention.masked_bias": torch.tensor(-1e9),
    "gpt_neox.layers.1.attention.rotary_emb.inv_freq": torch.ones(4),
}


@pytest.mark.parametrize(("variant", "first"), [("gpt2", "transformer."), ("gpt_neox-serial", "gpt_neox.")])
def test_checkpoints_of_the_model_without_its_head_and_their_masks_are_read(
    tmp_path: Path, variant: str, first: str
) -> None:
    folder = write(tmp_path / "model", variant)
    expected = greedy(folder, PROMPT, 12)
    change_tensors(folder, lambda t: t | {name: mask for name, mask in MASKS.items() if name.startswith(first)})
    assert says(load_whole(folder)) == expected
    change_tensors(folder, lambda t: {name.removeprefix(first): tensor for name, tensor in t.items()})
    assert says(load_whole(folder)) == expected


def test_a_head_is_found_under_its_old_and_its_new_name_and_old_configs_say_the_same(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "gpt_neox")
    expected = greedy(folder, PROMPT, 12)
    change_tensors(folder, lambda t: {name.replace("embed_out", "lm_head"): tensor for name, tensor in t.items()})
    assert says(load_whole(folder)) == expected
    change_config(folder, rope_parameters=None, rotary_pct=0.25, rotary_emb_base=10000)
    assert says(load_whole(folder)) == expected
    change_config(folder, rotary_emb_base=300)
    assert says(load_whole(folder)) != expected


def test_tensors_of_gpt2_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "gpt2")

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["transformer.h.1.attn.c_attn.weight"] = tensors["transformer.h.1.attn.c_attn.weight"].T.contiguous()
        del tensors["transformer.h.2.ln_1.bias"]
        return tensors | {"transformer.h.2.ln_3.bias": torch.ones(64)}

    change_tensors(folder, change)
    with pytest.raises(LoadError) as error:
        load_whole(folder)
    assert "1 missing: transformer.h.2.ln_1.bias" in str(error.value)
    assert "1 unexpected: transformer.h.2.ln_3.bias" in str(error.value)
    assert "transformer.h.1.attn.c_attn.weight [192, 64] instead of [64, 192]" in str(error.value)


def test_the_budget_comes_before_any_weight_and_progress_counts_bytes(checkpoints: Path) -> None:
    folder = checkpoints / "llama"
    loading = load(Wish(folder, threads=1, kv_bytes=8 << 20))
    said = [next(loading)]
    while said[-1].budget is None:
        said.append(next(loading))
    assert said[-1].done == 0, "no weight was read yet"
    said += list(loading)
    done = [progress.done for progress in said]
    assert done == sorted(done)
    assert done[-1] == said[-1].total > 100_000


def test_memory_that_was_taken_for_weights_before_they_are_read_counts_once(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pelton.loading.load.devices.memory", lambda *_: (300 << 20, 101 << 20))
    with pytest.raises(LoadError, match=r"the worker itself \(100"):
        list(load(Wish(checkpoints / "llama", threads=1), 200 << 20))


def test_a_context_that_does_not_fit_is_shortened_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "model", "llama")
    change_config(folder, max_position_embeddings=10**12)
    loaded = load_whole(folder)
    assert loaded.budget.max_model_len < 10**9
    assert "tokens instead of the model's 1000000000000: more does not fit" in caplog.text


def test_a_dtype_that_is_not_the_stored_one_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    load_whole(write(tmp_path / "half", "llama", torch.float16))
    assert "--dtype auto is float32: the weights are stored as float16" in caplog.text


def change_tensors(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}, "brings Python code of its own"),  # B:A7
        (
            {"architectures": ["NoSuchForCausalLM"]},
            "NoSuchForCausalLM; supported for this `model_type`: LlamaForCausalLM",
        ),
        ({"architectures": None}, "none; supported"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            r"quantised \(fp8\); supported: gptq, awq, compressed-tensors",
        ),
        ({"hidden_act": "sinus"}, "`hidden_act` in config.json is 'sinus'; supported: silu"),  # B:M3
        ({"hidden_act": 5}, "`hidden_act` in config.json is 5; supported: silu"),
        ({"hidden_size": "64"}, "`hidden_size` in config.json is '64'; supported: a whole number from 1"),
        ({"hidden_size": None}, "config.json has no `hidden_size`"),
        ({"num_hidden_layers": 10**8}, "`num_hidden_layers` in config.json is 100000000; supported: up to 10000"),
        ({"num_hidden_layers": 9999}, "`num_hidden_layers` in config.json is 9999; the files in .* have 3"),
        ({"hidden_size": 10**12}, "`hidden_size` in config.json is 1000000000000; the largest side of a tensor"),
        ({"head_dim": 10**12}, "times `head_dim` in config.json is 8000000000000"),
        ({"vocab_size": 10**12}, "`vocab_size` in config.json is 1000000000000"),
        ({"num_key_value_heads": 3}, "no multiple of `num_key_value_heads` 3"),
        ({"rms_norm_eps": 0}, "`rms_norm_eps` in config.json is 0"),
        ({"tie_word_embeddings": "yes"}, "supported: true or false"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "`rope_parameters.rope_type` .* is 'ntk'"),
        ({"rope_theta": 10**400, "rope_parameters": None}, "`rope_theta` in config.json is 1000"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1e308}},
            r"`factor` of rope in config.json is 1e\+308; supported: contexts of up to 2147483648 tokens",
        ),
        ({"architectures": [["LlamaForCausalLM"]]}, "none; supported"),
        ({"rope_theta": {"__float__": "Infinity"}, "rope_parameters": None}, "`rope_theta` in config.json is inf;"),
        ({"rope_parameters": {"rope_type": "linear"}}, "config.json has no `rope_parameters.factor`"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "`partial_rotary_factor`"),
    ],
)
def test_a_config_that_is_not_served_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    folder = write(tmp_path / "model", "llama")
    change_config(folder, **fields)
    with pytest.raises(LoadError, match=why):
        load_whole(folder)


@pytest.mark.parametrize(
    ("variant", "fields", "why"),
    [
        (
            "gpt2",
            {"activation_function": "sinus"},
            "`activation_function` .* is 'sinus'; supported: silu or gelu_pytorch",
        ),
        (
            "phi3-longrope",
            {"original_max_position_embeddings": 1},
            "`original_max_position_embeddings` in config.json is 1; supported with longrope: 2 and more",
        ),
        ("gpt2", {"add_cross_attention": True}, "`add_cross_attention` in config.json is true; supported: false"),
        ("gpt2", {"n_embd": None}, "config.json has no `n_embd`"),
        ("gpt2", {"n_layer": 9999}, "`n_layer` in config.json is 9999; the files in .* have 3"),
        ("gpt2", {"n_inner": 10**12}, "`n_inner` in config.json is 1000000000000; the largest side of a tensor"),
        ("gpt2", {"layer_norm_epsilon": 0}, "`layer_norm_epsilon` in config.json is 0; supported: a number above 0"),
        ("gpt_neox", {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "`rope_parameters.rope_type`"),
        ("gpt_neox", {"rope_parameters": None, "rotary_pct": "1"}, "`rotary_pct` in config.json is '1'"),
        (
            "gpt_neox",
            {"rope_parameters": None, "rotary_pct": 2.0},
            "`rotary_pct` in config.json is 2; supported: up to 1",
        ),
        ("starcoder2", {"use_bias": 1}, "`use_bias` in config.json is 1; supported: true or false"),
        ("llama", {"per_layer_config": {"0": {"rms_norm_eps": 1.0}}}, "`per_layer_config` in config.json: layers that"),
        ("cohere", {"hidden_act": "sinus"}, "`hidden_act` in config.json is 'sinus'; supported: silu"),
        ("cohere", {"logit_scale": -1.0}, "`logit_scale` in config.json is -1.0; supported: a number above 0"),
        ("cohere2", {"sliding_window": None}, "`sliding_window` in config.json is null; supported: a whole number"),
        ("cohere2", {"layer_types": ["full_attention"]}, "`layer_types` .* supported: 5 times full_attention or"),
    ],
)
def test_what_a_family_does_not_serve_is_refused_by_its_own_name(
    tmp_path: Path, variant: str, fields: dict[str, Any], why: str
) -> None:
    folder = write(tmp_path / "model", variant)
    change_config(folder, **fields)
    with pytest.raises(LoadError, match=why):
        load_whole(folder)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, r"cannot read .*config.json"),
        ({"config.json": "{"}, "is no JSON"),
        ({"config.json": "[]"}, "is no JSON object"),
        ({"config.json": "{}"}, "neither model.safetensors nor model.safetensors.index.json"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "There is pytorch_model.bin, but only safetensors"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, "has no `weight_map`"),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "../b.safetensors"}}'},
            "not a .safetensors file of its folder",
        ),
        # A kept model is made anew when a file of weights changes, and goes by its name.
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "weights.st"}}'},
            "names 'weights.st', which is not a .safetensors file",
        ),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "\\u0000.safetensors"}}'},
            r"names '\\x00.safetensors', which is not a .safetensors file",
        ),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "\\ud800.safetensors"}}'},
            r"names '\\ud800.safetensors', which is not a .safetensors file",
        ),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, files: dict[str, str], why: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LoadError, match=why):
        load_whole(tmp_path)


@pytest.mark.parametrize(
    ("wish", "why"), [({"dtype": "float16"}, "--dtype float16"), ({"device": "tpu"}, "--device tpu")]
)
def test_a_wish_that_cannot_be_met_names_its_flag(checkpoints: Path, wish: dict[str, Any], why: str) -> None:
    with pytest.raises(LoadError, match=why):
        load_whole(checkpoints / "llama", **wish)
