"""Checkpoints as their formats say: compressed-tensors written by its own package, GPTQ and AWQ bit by bit from what their programs agree on.

Nothing here is rounded as Pelton rounds. Codes of GPTQ and AWQ are drawn, and so are zero points, from all that a format has place for;
floats are what the definition makes of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor, pack_to_int32
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded
from pelton.quantization.codes import unpacked
from pelton_kernels.ops import Scheme
from random_checkpoints import KINDS, SHAPE, VARIANTS, logits
from safetensors.torch import load_file, save_file
from tensor_sizes import Largest
from test_models import forward, prompts
from test_quantization import change_config, schemes
from tiny_router import load_whole
from torch import Tensor

# Three groups of 128 and two, and what no group of 96 divides.
WIDE = {"hidden_size": 256, "intermediate_size": 384, "n_inner": 384, "head_dim": 64, "initializer_range": 0.05}


def write(folder: Path, variant: str, layers: int, vocab: int = SHAPE["vocab_size"]) -> Path:
    family, overrides = VARIANTS[variant]
    make_config, make_model = KINDS[family]
    torch.manual_seed(sum(map(ord, variant)))
    sizes = WIDE | {"num_hidden_layers": layers, "vocab_size": vocab}
    make_model(make_config(**{**SHAPE, **overrides, **sizes})).save_pretrained(folder)
    return folder


def check(folder: Path, plain: Path, quantize: str = "auto") -> Loaded:
    """What the codes say is what the floats say."""
    loaded = load_whole(folder, quantize=quantize)
    tokens = prompts(1)[-1]
    got, expected = forward(loaded, tokens), logits(plain, tokens)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())
    return loaded


@dataclass(frozen=True)
class Weight:
    """scales[o, g] · (codes[o, i] - zeros[o, g]), with g = groups_of[i]."""

    bits: int
    codes: Tensor
    scales: Tensor
    zeros: Tensor
    groups_of: Tensor

    @property
    def floats(self) -> Tensor:
        return self.scales.float()[:, self.groups_of] * (self.codes - self.zeros[:, self.groups_of])


def drawn(height: int, width: int, bits: int, group: int, is_symmetric: bool, is_ordered: bool) -> Weight:
    """`group` -1: one for all inputs. What shares its inputs shares its order, as GPTQ finds it from them."""
    size = width if group == -1 else group
    groups_of = torch.arange(width) // size
    if is_ordered:
        groups_of = groups_of[torch.randperm(width, generator=torch.Generator().manual_seed(width))]
    shape = height, -(-width // size)
    zeros = torch.full(shape, 1 << (bits - 1)) if is_symmetric else torch.randint(1 << bits, shape)
    scales = (torch.empty(shape).uniform_(0.1, 0.3) / (1 << bits)).half()
    return Weight(bits, torch.randint(1 << bits, (height, width)), scales, zeros, groups_of)


def words(rows: list[list[int]]) -> Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.uint32).view(np.int32))


def gptq(weight: Weight, version: str = "gptq") -> dict[str, Tensor]:
    """Codes stand along the inputs, zero points along the outputs, the first in the lowest bits. In the format "gptq" whole words of zero
    points are less by a 1 at each place, so that a 0 borrows from its neighbour (GPTQModel's conversions between the formats)."""
    bits, per_word = weight.bits, 32 // weight.bits
    height, width = weight.codes.shape
    qweight = [[0] * height for _ in range(width // per_word)]
    qzeros = [[0] * (height // per_word) for _ in range(weight.zeros.shape[1])]
    for at, row in enumerate(weight.codes.tolist()):
        for place, code in enumerate(row):
            qweight[place // per_word][at] |= code << (bits * (place % per_word))
    for at, row in enumerate(weight.zeros.tolist()):
        for group, zero in enumerate(row):
            qzeros[group][at // per_word] |= zero << (bits * (at % per_word))
    if version == "gptq":
        ones = sum(1 << (bits * place) for place in range(per_word))
        qzeros = [[(word - ones) % (1 << 32) for word in row] for row in qzeros]
    return {
        "qweight": words(qweight),
        "qzeros": words(qzeros),
        "scales": weight.scales.T.contiguous(),
        "g_idx": weight.groups_of.int(),
    }


def awq(weight: Weight) -> dict[str, Tensor]:
    """All stands along the outputs: at four bits each, from the lowest on, neighbours 0, 2, 4, 6, 1, 3, 5 and 7 of eight."""
    bit_of = {neighbour: 4 * place for place, neighbour in enumerate([0, 2, 4, 6, 1, 3, 5, 7])}
    height, width = weight.codes.shape
    qweight = [[0] * (height // 8) for _ in range(width)]
    qzeros = [[0] * (height // 8) for _ in range(weight.zeros.shape[1])]
    for numbers, packed in ((weight.codes, qweight), (weight.zeros, qzeros)):
        for at, row in enumerate(numbers.tolist()):
            for place, number in enumerate(row):
                packed[place][at // 8] |= number << bit_of[at % 8]
    return {"qweight": words(qweight), "qzeros": words(qzeros), "scales": weight.scales.T.contiguous()}


def is_product(name: str) -> bool:
    return name.endswith(("_proj.weight", "attn.c_attn.weight", "c_proj.weight", "c_fc.weight"))


def rewrite(
    folder: Path,
    config: dict[str, Any],
    draw: Callable[[int, int], Weight],
    pack: Callable[[Weight], dict[str, Tensor]],
    is_coded: Callable[[str], bool] = is_product,
) -> Path:
    """Puts drawn codes in the place of weights, and the floats that they stand for into a folder beside it; returns that."""
    tensors = load_file(folder / "model.safetensors")
    plain = folder.with_name("floats")
    plain.mkdir()
    (plain / "config.json").write_text((folder / "config.json").read_text())
    coded, floats = dict(tensors), dict(tensors)
    for name in filter(is_coded, tensors):
        is_turned = ".c_" in name  # GPT-2's weights stand transposed, and codes do not
        height, width = tensors[name].shape[::-1] if is_turned else tensors[name].shape
        weight = draw(height, width)
        floats[name] = weight.floats.T.contiguous() if is_turned else weight.floats
        del coded[name]
        coded |= {name.replace("weight", kind): tensor for kind, tensor in pack(weight).items()}
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    save_file(coded, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config=config)
    return plain


@pytest.mark.parametrize(
    ("variant", "bits", "group", "version", "is_symmetric", "is_ordered"),
    [
        ("qwen3", 4, 32, "gptq", True, False),
        ("qwen3", 4, 128, "gptq", False, True),
        ("qwen3", 4, -1, "gptq_v2", False, False),
        ("llama", 8, 128, "gptq", False, True),
        ("llama", 4, -1, "gptq", True, True),
        ("llama", 4, 32, "gptq_v2", False, True),
        ("llama", 4, 96, "gptq", False, True),
        ("phi3", 4, 32, "gptq", False, True),
        ("phi3", 8, -1, "gptq", False, False),
        ("phi3", 4, 128, "gptq_v2", True, False),
        ("gpt2", 4, 32, "gptq", False, True),
        ("gpt2", 4, 128, "gptq", True, False),
        ("gpt2", 8, -1, "gptq_v2", False, False),
    ],
)  # fmt: skip
def test_gptq(
    tmp_path: Path, variant: str, bits: int, group: int, version: str, is_symmetric: bool, is_ordered: bool
) -> None:
    config = {"bits": bits, "group_size": group, "desc_act": is_ordered, "sym": is_symmetric}
    folder = write(tmp_path / "model", variant, 1)
    plain = rewrite(
        folder,
        config | {"quant_method": "gptq", "checkpoint_format": version},
        lambda height, width: drawn(height, width, bits, group, is_symmetric, is_ordered),
        lambda weight: gptq(weight, version),
    )
    assert schemes(check(folder, plain)) == {Scheme(4 if bits == 4 else 8, max(group, 0), "float")}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize(
    ("said", "is_coded"),
    [
        ({"lm_head": True}, lambda name: is_product(name) or name == "lm_head.weight"),
        ({"modules_in_block_to_quantize": [["mlp.down_proj"], ["mlp.gate_proj", "mlp.up_proj"]]}, lambda name: ".mlp." in name),
        ({"dynamic": {r"-:.*\.self_attn\..*": {}}}, lambda name: ".mlp." in name),
    ],
    ids=["head", "named", "excluded"],
)  # fmt: skip
def test_some_layers_of_gptq_stay_floats(tmp_path: Path, said: dict[str, Any], is_coded: Callable[[str], bool]) -> None:
    folder = write(tmp_path / "model", "llama", 1, vocab=200)
    plain = rewrite(
        folder, GPTQ | said, lambda height, width: drawn(height, width, 4, 64, False, False), gptq, is_coded
    )
    check(folder, plain)


def test_biases_of_gptq_that_the_model_lacks_are_nobodys_as_long_as_they_are_zero(tmp_path: Path) -> None:
    """AutoGPTQ gave every layer one (its issue 555)."""
    folder = write(tmp_path / "model", "llama", 1)
    plain = rewrite(folder, GPTQ, lambda height, width: drawn(height, width, 4, 64, False, False), gptq)
    tensors = load_file(folder / "model.safetensors")
    biases = {
        name.replace("qweight", "bias"): torch.zeros(words.shape[1])
        for name, words in tensors.items()
        if name.endswith(".qweight")
    }
    save_file(tensors | biases, folder / "model.safetensors", {"format": "pt"})
    check(folder, plain)
    [*_, (name, bias)] = biases.items()
    bias[-1] = 1
    save_file(tensors | biases, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=f"unexpected.*{re.escape(name)}"):
        load_whole(folder)


@pytest.mark.parametrize(
    ("variant", "group", "said"),
    [
        ("qwen3", 32, {}),
        ("llama", 128, {"version": "GEMM"}),
        ("phi3", -1, {}),
        ("llama", 64, {"zero_point": False}),
        ("qwen3", 64, {"modules_to_not_convert": ["self_attn"]}),
    ],
)
def test_awq(tmp_path: Path, variant: str, group: int, said: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", variant, 1)
    plain = rewrite(
        folder,
        AWQ | {"group_size": group} | said,
        lambda height, width: drawn(height, width, 4, group, not said.get("zero_point", True), False),
        awq,
        lambda name: is_product(name) and not any(kept in name for kept in said.get("modules_to_not_convert", [])),
    )
    check(folder, plain)


def test_zero_points_of_awq_that_its_config_denies_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 1)
    rewrite(folder, AWQ | {"zero_point": False}, lambda height, width: drawn(height, width, 4, 64, False, False), awq)
    with pytest.raises(LoadError, match=r"`zero_point` in config.json is false \(AWQ\), but not all of `qzeros` are 8"):
        load_whole(folder)


def ints(bits: int, group: int, is_symmetric: bool) -> QuantizationArgs:
    return QuantizationArgs(num_bits=bits, group_size=group, symmetric=is_symmetric)


TOKENS = QuantizationArgs(num_bits=8, strategy="token", dynamic=True)


def compress(folder: Path, groups: list[QuantizationScheme], ignored: list[str]) -> Path:
    """Lets the package quantise, save and dequantise a model; returns the folder of its floats."""
    plain = folder.with_name("floats")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    names = set(load_file(folder / "model.safetensors"))
    config = QuantizationConfig(config_groups={f"group_{at}": group for at, group in enumerate(groups)}, ignore=ignored)
    apply_quantization_config(model, config, show_progress=False)
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "quantization_scheme"):
            arguments = layer.quantization_scheme.weights
            size = arguments.group_size if arguments.strategy == "group" else layer.weight.shape[1]
            parts = layer.weight.detach().unflatten(1, (-1, size))
            scales, zeros = calculate_qparams(parts.amin(2), parts.amax(2), arguments)
            layer.weight_scale.data, layer.weight_zero_point.data = scales, zeros
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    plain.mkdir()
    config_of = json.loads((folder / "config.json").read_text())
    del config_of["quantization_config"]
    (plain / "config.json").write_text(json.dumps(config_of))
    floats = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in names}
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    return plain


LINEAR, HEAD = ["Linear"], ["lm_head"]


@pytest.mark.parametrize(
    ("variant", "groups", "ignored", "found"),
    [
        ("qwen3", [(LINEAR, ints(4, 128, True), None)], HEAD, {Scheme(4, 128, "float")}),
        ("qwen3", [(LINEAR, ints(4, 32, False), None)], HEAD, {Scheme(4, 32, "float")}),
        ("llama", [(LINEAR, ints(4, -1, False), None)], HEAD, {Scheme(4, 0, "float")}),
        ("llama", [(LINEAR, ints(8, -1, True), None)], [], {Scheme(8, 0, "float")}),
        ("phi3", [(LINEAR, ints(4, 32, True), None)], HEAD, {Scheme(4, 32, "float")}),
        ("phi3", [(LINEAR, ints(8, 128, False), None)], HEAD, {Scheme(8, 128, "float")}),
        ("qwen3", [(LINEAR, ints(8, -1, True), TOKENS)], HEAD, {Scheme(8, 0, "int8")}),
        ("phi3", [(LINEAR, ints(8, -1, False), TOKENS)], ["re:.*down_proj", *HEAD], {Scheme(8, 0, "int8"), None}),
        # A name goes before a pattern, a pattern before a class, wherever their groups stand.
        (
            "llama",
            [
                (LINEAR, ints(4, 32, True), None),
                (["re:.*down_proj"], ints(8, 128, False), None),
                (["model.layers.1.mlp.down_proj"], ints(4, -1, True), None),
            ],
            ["re:.*layers.0.self_attn.*", "model.layers.1.self_attn.o_proj", *HEAD],
            {Scheme(4, 32, "float"), Scheme(8, 128, "float"), Scheme(4, 0, "float"), None},
        ),
        # Several patterns: the first in the alphabet. And a name is all of it, no end.
        (
            "qwen3",
            [
                (["re:.*mlp.*"], ints(4, 64, True), None),
                (["re:.*down_proj"], ints(8, -1, True), None),
                (LINEAR, ints(4, 128, False), None),
            ],
            ["q_proj", *HEAD],
            {Scheme(4, 64, "float"), Scheme(8, 0, "float"), Scheme(4, 128, "float")},
        ),
    ],
)  # fmt: skip
def test_compressed_tensors(
    tmp_path: Path,
    variant: str,
    groups: list[tuple[list[str], QuantizationArgs, QuantizationArgs | None]],
    ignored: list[str],
    found: set[Scheme | None],
) -> None:
    folder = write(tmp_path / "model", variant, 2)
    made = [
        QuantizationScheme(targets=targets, weights=args, input_activations=inputs) for targets, args, inputs in groups
    ]
    plain = compress(folder, made, ignored)
    assert schemes(load_whole(folder)) == found
    are_rounded = any(scheme is not None and scheme.activations == "int8" for scheme in found)
    check(folder, plain, "int8-a16" if are_rounded else "auto")


@pytest.mark.parametrize(("bits", "is_symmetric"), [(4, False), (8, True)])
@pytest.mark.parametrize("actorder", ["group", "dynamic", True])
def test_compressed_tensors_of_old_name_the_group_of_each_input(
    tmp_path: Path, bits: int, is_symmetric: bool, actorder: str | bool
) -> None:
    """The package wrote `weight_g_idx` until August 2026, and reads it no more; -1 everywhere, where no order had been looked for."""
    folder = write(tmp_path / "model", "phi3", 1)
    arguments = {"num_bits": bits, "symmetric": is_symmetric, "strategy": "group", "group_size": 64}

    def pack(weight: Weight) -> dict[str, Tensor]:
        middle, in_order = 1 << (bits - 1), torch.equal(weight.groups_of, weight.groups_of.sort().values)
        zeros = pack_to_int32((weight.zeros - middle).to(torch.int8), bits, packed_dim=0)
        return {
            "weight_packed": pack_to_int32((weight.codes - middle).to(torch.int8), bits),
            "weight_scale": weight.scales,
            "weight_g_idx": torch.full_like(weight.groups_of, -1).int() if in_order else weight.groups_of.int(),
            "weight_shape": torch.tensor(weight.codes.shape),
        } | ({} if is_symmetric else {"weight_zero_point": zeros})

    plain = rewrite(
        folder,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments | {"actorder": actorder}}},
            "ignore": ["lm_head"],
        },
        lambda height, width: drawn(height, width, bits, 64, is_symmetric, width == 256),
        pack,
    )
    check(folder, plain)


def without(folder: Path, kind: str) -> None:
    """Drops the tensors whose names end so."""
    tensors = load_file(folder / "model.safetensors")
    rest = {name: tensor for name, tensor in tensors.items() if not name.endswith(f".{kind}")}
    assert len(rest) < len(tensors)
    save_file(rest, folder / "model.safetensors", {"format": "pt"})


def test_gptq_in_order_needs_no_groups_of_inputs(tmp_path: Path) -> None:
    """Some programs make `g_idx` anew where `desc_act` is false."""
    folder = write(tmp_path / "model", "llama", 1)
    plain = rewrite(folder, GPTQ, lambda height, width: drawn(height, width, 4, 64, False, False), gptq)
    without(folder, "g_idx")
    check(folder, plain)
    change_config(folder, quantization_config=GPTQ | {"desc_act": True})
    with pytest.raises(LoadError, match=r"7 missing: model\.layers\.0\.self_attn\.q_proj\.g_idx"):
        load_whole(folder)


@pytest.mark.parametrize(("bits", "layout"), [(4, "pack-quantized"), (8, "pack-quantized"), (8, "int-quantized")])
def test_compressed_tensors_of_old_leave_out_what_says_nothing(tmp_path: Path, bits: int, layout: str) -> None:
    """Zero points that are all 0, and groups of inputs that are all -1."""
    folder = write(tmp_path / "model", "llama", 1)
    arguments = {"num_bits": bits, "symmetric": False, "strategy": "group", "group_size": 64, "actorder": "group"}
    group = {"targets": ["Linear"], "weights": arguments}

    def pack(weight: Weight) -> dict[str, Tensor]:
        codes = (weight.codes - (1 << (bits - 1))).to(torch.int8)
        kept = {"weight_packed": pack_to_int32(codes, bits)} if layout == "pack-quantized" else {"weight": codes}
        return kept | {"weight_scale": weight.scales}

    plain = rewrite(
        folder,
        {
            "quant_method": "compressed-tensors",
            "format": layout,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        },
        lambda height, width: drawn(height, width, bits, 64, True, False),
        pack,
    )
    check(folder, plain)


def test_groups_of_one_scheme_are_quantised_alike(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 1)
    targets = [["re:.*(q|gate)_proj"], ["re:.*(k|up)_proj"], LINEAR]
    groups = [QuantizationScheme(targets=each, weights=ints(4, 64, True)) for each in targets]
    check(folder, compress(folder, groups, HEAD))


def test_a_checkpoint_of_both_sizes_of_codes_is_told_that_neither_fits_all(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 1)
    groups = [
        QuantizationScheme(targets=LINEAR, weights=ints(4, 64, True)),
        QuantizationScheme(targets=["re:.*down_proj"], weights=ints(8, 64, True)),
    ]
    check(folder, compress(folder, groups, HEAD))
    for bits, other in ((4, 8), (8, 4)):
        with pytest.raises(LoadError, match=f"auto, and int{bits} and int{bits}-a16 where all layers have {bits} bits"):
            load_whole(folder, quantize=f"int{other}")


def test_patterns_of_gptq_that_change_nothing_are_taken_and_the_first_that_fits_decides(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 2)
    rules: dict[str, Any] = {"+:.*layers\\.0\\..*": {"bits": 4, "sym": False}, "-:.*self_attn.*": None, "lm_head": {}}
    plain = rewrite(
        folder,
        GPTQ | {"dynamic": rules},
        lambda height, width: drawn(height, width, 4, 64, False, False),
        gptq,
        lambda name: is_product(name) and ("layers.0." in name or ".mlp." in name),
    )
    check(folder, plain)


def test_scaled_activations_of_awq_are_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 1)
    rewrite(folder, AWQ, lambda height, width: drawn(height, width, 4, 64, False, False), awq)
    tensors = load_file(folder / "model.safetensors") | {"model.layers.0.mlp.act.scales": torch.ones(384)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    why = "scaled activations (AWQ), `model.layers.0.mlp.act.scales`; supported: none"
    with pytest.raises(LoadError, match=f"^{re.escape(why)}$"):
        load_whole(folder)


def test_a_layer_of_a_size_that_the_format_has_not_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "llama", 1)
    change_config(folder, quantization_config=GPTQ | {"lm_head": True})
    with pytest.raises(LoadError, match="`lm_head`: a weight of 199 by 256 is no GPTQ weight"):
        load_whole(folder)


def test_vectors_need_no_head_of_codes_either(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "qwen3", 1, vocab=200)
    config = GPTQ | {"lm_head": True}
    is_coded = lambda name: is_product(name) or name == "lm_head.weight"  # noqa: E731
    rewrite(folder, config, lambda height, width: drawn(height, width, 4, 64, False, False), gptq, is_coded)
    assert load_whole(folder, task="embed", pooling="last").pooling is not None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_codes_are_unpacked_in_a_byte_each(bits: int, dim: int) -> None:
    packed = torch.randint(-(1 << 31), 1 << 31, (24, 40), dtype=torch.int32)
    with Largest() as largest:
        codes = unpacked(packed, bits, dim)
    assert largest.bytes == codes.numel() == packed.numel() * 32 // bits
    shifts = torch.arange(0, 32, bits)
    expected = ((packed.unsqueeze(dim + 1) >> (shifts if dim else shifts[:, None])) & ((1 << bits) - 1)).flatten(
        dim, dim + 1
    )
    assert torch.equal(codes, expected.to(torch.uint8))
