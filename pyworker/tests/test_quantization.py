"""Quantised models: rounded when they are loaded, or by a checkpoint in one of three formats; all against the floats that codes stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pelton.layers.linear import Head, Linear
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded
from pelton_kernels import reference
from pelton_kernels.ops import Scheme
from plans import Admit
from random_checkpoints import greedy, logits, write
from safetensors.torch import load_file, save_file
from test_models import forward, prompts
from tiny_router import Request, TinyRouter, eagerly, load_whole
from torch import Tensor

GROUP = 16
Change = Callable[[Path], None]


def is_product(name: str) -> bool:
    return name.endswith("_proj.weight")


def dequantised(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and what they stand for."""
    codes, scales = reference.rounded(weight, bits, group)
    wide = scales.repeat_interleave(group or weight.shape[1], dim=1)[:, : weight.shape[1]]
    return codes, scales, (codes.float() - (1 << (bits - 1))) * wide


def asymmetric(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, scales, zero points, and what they stand for: from the least to the greatest of each group."""
    parts = weight.float().view(weight.shape[0], -1, group)
    least, most = parts.amin(dim=2).clamp(max=0), parts.amax(dim=2).clamp(min=0)
    scales = (most - least) / ((1 << bits) - 1)
    zeros = (-least / scales).round()
    codes = (parts / scales[..., None] + zeros[..., None]).round().clamp(0, (1 << bits) - 1)
    floats = ((codes - zeros[..., None]) * scales[..., None]).view(weight.shape)
    return codes.view(weight.shape).to(torch.uint8), scales, zeros.to(torch.uint8), floats


def packed(codes: Tensor, bits: int, dim: int) -> Tensor:
    """As all three formats pack along a side: the lowest bits first."""
    codes = codes.to(torch.int64).movedim(dim, -1)
    words = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    whole = (words << torch.arange(0, 32, bits)).sum(dim=-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int().movedim(-1, dim).contiguous()


def gptq(
    bits: int, version: str = "gptq", is_symmetric: bool = True, is_ordered: bool = False
) -> Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]:
    def store(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        width = weight.shape[1]
        # Queries, keys and values have one order, as GPTQ finds it from their common inputs.
        torch.manual_seed(width)
        order = torch.randperm(width) if is_ordered else torch.arange(width)
        if is_symmetric:
            codes, scales, floats = dequantised(weight[:, order], bits, GROUP)
            zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8)
        else:
            codes, scales, zeros, floats = asymmetric(weight[:, order], bits, GROUP)
            zeros_at_least = 1 if version == "gptq" else 0  # AutoGPTQ has no place for less
            floats += (zeros.clamp(min=zeros_at_least).int() - zeros.int()).neg().repeat_interleave(
                GROUP, 1
            ) * scales.repeat_interleave(GROUP, 1)
            zeros = zeros.clamp(min=zeros_at_least)
        back = torch.argsort(order)
        stored_zeros = zeros - 1 if version == "gptq" else zeros
        return {
            "qweight": packed(codes[:, back].T, bits, 0),
            "qzeros": packed(stored_zeros.T, bits, 1),
            "scales": scales.T.contiguous(),
            "g_idx": (back // GROUP).int(),
        }, floats[:, back]

    return store


def awq(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, scales, zeros, floats = asymmetric(weight, 4, GROUP)
    places = [0, 2, 4, 6, 1, 3, 5, 7]  # which neighbour stands at each place of a word

    def stored(codes: Tensor) -> Tensor:
        rows = codes.T.reshape(codes.shape[1], -1, 8)[:, :, places].reshape(codes.shape[1], -1)
        return packed(rows, 4, 1)

    return {"qweight": stored(codes), "qzeros": stored(zeros), "scales": scales.T.contiguous()}, floats


def compressed_packed(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, scales, zeros, floats = asymmetric(weight, 4, GROUP)
    return {
        "weight_packed": packed(codes, 4, 1),
        "weight_scale": scales,
        "weight_zero_point": packed(zeros, 4, 0),
        "weight_shape": torch.tensor(weight.shape),
    }, floats


def compressed_int8(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, scales, floats = dequantised(weight, 8, 0)
    return {"weight": (codes.int() - 128).to(torch.int8), "weight_scale": scales}, floats


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def compressed(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


CHANNELS = WEIGHTS | {"num_bits": 8, "symmetric": True, "strategy": "channel"}
FORMATS: dict[str, tuple[dict[str, Any], Any, Scheme]] = {
    "gptq": (GPTQ, gptq(4), Scheme(4, GROUP, "float")),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, gptq(8), Scheme(8, GROUP, "float")),
    "gptq, act-order": (GPTQ | {"desc_act": True}, gptq(4, is_ordered=True), Scheme(4, GROUP, "float")),
    "gptq, asymmetric": (GPTQ | {"sym": False}, gptq(4, is_symmetric=False), Scheme(4, GROUP, "float")),
    "gptq v2, asymmetric": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        gptq(4, "gptq_v2", is_symmetric=False),
        Scheme(4, GROUP, "float"),
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
        awq,
        Scheme(4, GROUP, "float"),
    ),
    "compressed-tensors int4": (
        compressed("pack-quantized", WEIGHTS, None),
        compressed_packed,
        Scheme(4, GROUP, "float"),
    ),
    "compressed-tensors int8": (
        compressed("int-quantized", CHANNELS, TOKENS),
        compressed_int8,
        Scheme(8, 0, "int8"),
    ),
}  # fmt: skip


def quantise(folder: Path, config: dict[str, Any], store: Any) -> Path:
    """Makes a plain checkpoint one of this format, and writes the floats that it stands for beside it; returns where."""
    tensors = load_file(folder / "model.safetensors")
    coded: dict[str, Tensor] = {}
    floats: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        coded[name] = floats[name] = tensor
        if is_product(name):
            del coded[name]
            parts, floats[name] = store(name, tensor)
            coded |= {name.replace("weight", part): value for part, value in parts.items()}
    plain = folder.with_name(f"{folder.name}-floats")
    plain.mkdir()
    (plain / "config.json").write_text((folder / "config.json").read_text())
    save_file(
        {name: tensor.contiguous() for name, tensor in floats.items()}, plain / "model.safetensors", {"format": "pt"}
    )
    save_file(coded, folder / "model.safetensors")
    change_config(folder, quantization_config=config)
    return plain


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def schemes(loaded: Loaded) -> set[Scheme | None]:
    return {
        leaf.storage.scheme
        for leaf in loaded.model.modules()
        if isinstance(leaf, Linear) and not isinstance(leaf, Head)
    }


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_checkpoint_says_what_the_floats_that_it_stands_for_say(tmp_path: Path, name: str) -> None:
    config, store, scheme = FORMATS[name]
    folder = write(tmp_path / "model", "qwen3")
    plain = quantise(folder, config, store)
    loaded = load_whole(folder)
    assert schemes(loaded) == {scheme}
    assert loaded.program is not None
    assert loaded.is_invariant
    tokens = prompts(1)[-1]
    got, expected = forward(loaded, tokens), logits(plain, tokens)
    if scheme.activations == "float":
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())
        assert TinyRouter(loaded).run(Request(Admit(0), tokens, 24))[0] == greedy(plain, tokens, 24)
    else:
        # Activations are rounded, too: to 1/254 of the largest of a row, seven products and three layers deep.
        assert (got - expected).abs().max() <= 21**0.5 / 254 * 8 * expected.abs().max()
        assert not torch.equal(got, forward(load_whole(folder, quantize="int8-a16"), tokens))


@pytest.mark.parametrize("quantize", ["int8", "int8-a16", "int4", "int4-a16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_rounded_model_draws_the_same_alone_in_a_batch_chunked_and_eagerly(
    tmp_path: Path, quantize: str, dtype: torch.dtype
) -> None:
    loaded = load_whole(write(tmp_path / "model", "llama-tied-biased", dtype), quantize=quantize)
    assert loaded.program is not None
    assert loaded.is_invariant

    def requests() -> list[Request]:
        drawn: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "seed": 4, "top_k": 9}]
        rules = [Admit(0, logprobs=3, **rule) for rule in drawn]
        return [Request(rule, prompt, 12) for rule, prompt in zip(rules, prompts(4)[2:], strict=False)]

    alone = requests()
    for request in alone:
        TinyRouter(loaded).run(request)
    for router in (TinyRouter(loaded, seed=6), TinyRouter(loaded, chunk=3), TinyRouter(eagerly(loaded), seed=7)):
        together = requests()
        router.run(*together)
        assert [request.output for request in together] == [request.output for request in alone]
        assert [request.logprobs for request in together] == [request.logprobs for request in alone]


@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox", "starcoder2", "cohere-normed"])
def test_weights_that_stand_transposed_or_fused_are_rounded_as_any_other(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / "model", variant)
    tokens = prompts(1)[-1]
    loaded = load_whole(folder, quantize="int8-a16", quantize_skip="head")
    assert loaded.is_invariant
    got = forward(loaded, tokens)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if re.search(r"\.(layers|h)\.", name) and tensor.dim() == 2 and "norm" not in name:
            weight = tensor.T.contiguous() if variant == "gpt2" else tensor
            exact = dequantised(weight, 8, 0)[2]
            tensors[name] = exact.T.contiguous() if variant == "gpt2" else exact
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    expected = logits(folder, tokens)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())
    assert not torch.equal(got, forward(load_whole(folder, quantize="int8", quantize_skip="head"), tokens))


def test_what_is_skipped_stays_as_it_is_and_the_identity_says_which(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama")
    tokens = prompts(1)[-1]
    plain = load_whole(folder)
    whole = load_whole(folder, quantize="int8", quantize_skip="*")
    assert torch.equal(forward(whole, tokens), forward(plain, tokens))
    assert whole.numerics_id == plain.numerics_id, "nothing is quantised"
    rules = ["head", "", "head, blocks.1.*", "head,*.mlp.down"]
    loaded = [load_whole(folder, quantize="int4", quantize_skip=rule) for rule in rules]
    loaded.append(load_whole(folder, quantize="int4-a16"))
    assert len({one.numerics_id for one in [plain, *loaded]}) == 6, "KV of one is not another's"
    assert all("int4-g64" in one.numerics_id for one in loaded)
    heads = [one.model.get_submodule("head") for one in loaded[:2]]
    assert [head.storage.scheme for head in heads if isinstance(head, Head)] == [None, Scheme(4, 64, "int8")]
    assert loaded[0].budget.weights_bytes < plain.budget.weights_bytes


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("model.layers.1.*", "blocks.1.mlp.down"),
        ("*.k_proj", "blocks.0.attention.qkv"),
        ("model.embed_tokens", "head"),
        ("lm_head", "head"),
    ],
)
def test_layers_are_skipped_by_what_the_checkpoint_calls_their_weights_too(
    tmp_path: Path, rule: str, path: str
) -> None:
    folder = write(tmp_path / "model", "llama-tied-biased")
    model = load_whole(folder, quantize="int8", quantize_skip=rule).model
    layer = model.get_submodule(path)
    assert isinstance(layer, Linear)
    assert layer.storage.scheme is None
    assert any(isinstance(other, Linear) and other.storage.scheme for other in model.modules())


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (
            {"quantize": "int8", "quantize_skip": "head,model.blocks.*,*.mlp.down,gate"},
            "--quantize-skip model.blocks.*,gate fits no layer; supported: wildcards over layers "
            "(blocks.0.attention.qkv, blocks.0.attention.out, blocks.0.mlp.gate_up, ",
        ),
        ({"quantize_skip": "*.mlp.down"}, "--quantize-skip *.mlp.down: nothing is rounded; supported: together with"),
        ({"quantize_skip": "none"}, "--quantize-skip none: nothing is rounded"),
    ],
)
def test_what_would_skip_nothing_is_refused(tmp_path: Path, wish: dict[str, Any], why: str) -> None:
    with pytest.raises(LoadError, match=re.escape(why)):
        load_whole(write(tmp_path / "model", "llama"), **wish)


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (GPTQ, {"quantize_skip": "*.down_proj"}, r"--quantize-skip \*.down_proj: the checkpoint is quantised already"),
    ({"bits": 4}, {}, "quantised .config.json has no `quant_method`.; supported: gptq"),
    (compressed("pack-quantized", {"num_bits": 4}, None), {}, "strategy` in config.json is 'none'; supported: group or"),
    ({"quant_method": ["gptq"]}, {}, r"quantised \(\['gptq'\]\); supported: gptq, awq"),
    ({"quant_method": "fp8"}, {}, r"quantised \(fp8\); supported: gptq, awq, compressed-tensors with integers of 4 and 8 bits"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {}, r"quantised \(bitsandbytes\); supported"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, r"quantised \(modelopt\); supported"),
    (GPTQ | {"bits": 3}, {}, "quantised with 3 bits; supported: 4, 8"),
    (GPTQ | {"group_size": 12}, {}, "in groups of 12; supported: -1, and multiples of 8"),
    (GPTQ | {"checkpoint_format": "marlin"}, {}, "`quantization_config.checkpoint_format` .* 'marlin'; supported: gptq or gptq_v2"),
    (GPTQ | {"is_marlin_format": True}, {}, "`quantization_config.is_marlin_format` in config.json is True; supported: none"),
    (GPTQ | {"dynamic": {"-:b": {}, "+:a": {"bits": 8}}}, {}, r"`quantization_config.dynamic` in config.json has a scheme for '\+:a'; supported: one"),
    (GPTQ | {"dynamic": {"a": {"group_size": 2 * GROUP}}}, {}, "has a scheme for 'a'; supported: one"),
    (GPTQ | {"dynamic": {"a": {"rotation": "hadamard"}}}, {}, "has a scheme for 'a'; supported: one"),
    (GPTQ | {"dynamic": {"-:((.+)+)+!": {}}}, {}, r"`\(\(\.\+\)\+\)\+!` in config.json may take very long"),
    (GPTQ | {"dynamic": {"-:.*q_proj": {}}}, {}, "self_attn.v_proj are not quantised alike"),
    (GPTQ | {"rotation": "hadamard"}, {}, "`quantization_config.rotation` in config.json is 'hadamard'; supported: none"),
    (GPTQ | {"modules_in_block_to_quantize": [[1]]}, {}, "`modules_in_block_to_quantize` in config.json is .*; supported: lists of names"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, {}, r"is gemv \(AWQ\); supported: gemm"),
    (compressed("nvfp4-pack-quantized", WEIGHTS | {"type": "float"}, None), {}, "nvfp4-pack-quantized: float of 4 bits"),
    (compressed("float-quantized", WEIGHTS | {"type": "float", "num_bits": 8}, None), {}, "float-quantized: float of 8 bits"),
    (compressed("int-quantized", CHANNELS, TOKENS | {"dynamic": False}), {}, "`input_activations` .*; supported: none, or"),
    (compressed("pack-quantized", WEIGHTS | {"strategy": "tensor"}, None), {}, "strategy` in config.json is 'tensor'; supported: group or channel"),
    (compressed("pack-quantized", WEIGHTS, None) | {"transform_config": {"config_groups": {"a": {"type": "hadamard"}}}}, {}, "`transform_config`"),
    (compressed("pack-quantized", WEIGHTS, None) | {"config_groups": {"a": {"targets": ["Linear"], "weights": WEIGHTS, "output_activations": TOKENS}}}, {}, "`output_activations`"),
    (compressed("pack-quantized", WEIGHTS, None) | {"config_groups": {"a": {"targets": ["LlamaAttention"], "input_activations": TOKENS}}}, {}, "a group without `weights`"),
    (GPTQ | {"modules_in_block_to_quantize": 1}, {}, "`modules_in_block_to_quantize` in config.json is 1; supported: lists of names"),
    (compressed("pack-quantized", WEIGHTS, None) | {"ignore": ["re:("]}, {}, r"`\(` in config.json is no regular expression"),
    (compressed("pack-quantized", WEIGHTS, None) | {"ignore": ["re:((.+)+)+!"]}, {}, r"`\(\(\.\+\)\+\)\+!` in config.json may take very long"),
    (compressed("pack-quantized", WEIGHTS, None) | {"config_groups": {"a": {"targets": ["Linear"], "weights": WEIGHTS}, "b": {"targets": ["re:.*up_proj"], "weights": CHANNELS}}}, {}, "up_proj are not quantised alike"),
    (compressed("pack-quantized", WEIGHTS, None) | {"kv_cache_scheme": {"num_bits": 8}}, {}, "`kv_cache_scheme`"),
    (GPTQ, {"quantize": "int8"}, "--quantize int8: the checkpoint is quantised .* with 4 bits, .*; supported: auto, and int4 and int4-a16 where all layers have 4 bits"),
    ({}, {"quantize": "int3"}, "--quantize int3; supported: auto, int8, int8-a16, int4, int4-a16"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "wish", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_a_scheme_that_is_not_supported_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], wish: dict[str, Any], why: str
) -> None:
    folder = write(tmp_path / "model", "llama")
    change_config(folder, quantization_config=config)
    with pytest.raises(LoadError, match=why):
        load_whole(folder, **wish)


def test_the_first_name_of_compressed_tensors_is_read_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama")
    config, change, _ = FORMATS["compressed-tensors int4"]
    quantise(folder, config, change)
    expected = forward(load_whole(folder), prompts(1)[-1])
    fields = json.loads((folder / "config.json").read_text())
    old = fields.pop("quantization_config")
    del old["quant_method"]
    (folder / "config.json").write_text(json.dumps({**fields, "compression_config": old}))
    assert torch.equal(forward(load_whole(folder), prompts(1)[-1]), expected)


def test_codes_where_floats_are_wanted_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        LoadError, match=r"1 of another format: model.layers.0.mlp.up_proj.weight int8 instead of float32 or"
    ):
        load_whole(folder)


def test_orders_that_differ_within_one_product_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama")
    quantise(folder, GPTQ | {"desc_act": True}, gptq(4, is_ordered=True))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.g_idx"] = tensors["model.layers.1.self_attn.k_proj.g_idx"].flip(0)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        LoadError, match=r"`model.layers.1.self_attn.q_proj`: weights that .* different orders of activations"
    ):
        load_whole(folder)
