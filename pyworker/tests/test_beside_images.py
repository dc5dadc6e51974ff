"""The text of Gemma 3 that looks at images, too: its config within another, its tensors beside others. `test_models` and `test_vectors`
hold it against `transformers` as every family; here is what it has of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pelton.kept.entry import Kept, keep, read
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.loading.error import LoadError
from pelton.loading.load import Loaded, load_whole
from pelton.models import resolve
from pelton.models.config import DecoderConfig
from plans import Admit
from random_checkpoints import IMAGES, greedy, logits, write
from safetensors.torch import load_file, save_file
from test_kept import draws, ended, wish_for
from test_loading import change_config, change_tensors
from test_models import forward, prompts
from tiny_router import Request, TinyRouter
from tiny_router import load_whole as load

TIED, UNTIED = "gemma3-beside-images", "gemma3-beside-images-untied"
PROMPT = [7, 3, 150, 20]


def says(folder: Path) -> list[int]:
    return TinyRouter(load(folder)).run(Request(Admit(0), PROMPT, 12))[0]


def renamed(folder: Path, *changes: tuple[str, str]) -> None:
    """Names that begin with the first word of a change begin with its second; the first change that fits counts."""

    def name_of(name: str) -> str:
        return next((new + name.removeprefix(old) for old, new in changes if name.startswith(old)), name)

    change_tensors(folder, lambda tensors: {name_of(name): tensor for name, tensor in tensors.items()})


PUBLISHED = "language_model.model."
FORMS: dict[str, list[tuple[str, str]]] = {
    "as published": [],
    "as transformers 5 calls them": [
        (PUBLISHED, "model.language_model."),
        ("language_model.lm_head", "lm_head"),
        ("vision_tower", "model.vision_tower"),
        ("multi_modal_projector", "model.multi_modal_projector"),
    ],
    "published but for the head": [("language_model.lm_head", "lm_head")],
    "without the head's model": [(PUBLISHED, "language_model."), ("language_model.lm_head", "lm_head")],
}


@pytest.mark.parametrize("variant", [TIED, UNTIED])
@pytest.mark.parametrize("form", FORMS)
def test_tensors_are_found_under_all_names_that_they_have_had(tmp_path: Path, variant: str, form: str) -> None:
    folder = write(tmp_path / "model", variant)
    names = load_file(folder / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {"language_model", "vision_tower", "multi_modal_projector"}
    assert ("language_model.lm_head.weight" in names) == (variant == UNTIED)
    expected = greedy(folder, PROMPT, 12)
    renamed(folder, *FORMS[form])
    assert says(folder) == expected


@pytest.mark.parametrize("head", ["language_model.lm_head.weight", "lm_head.weight"])
def test_a_tied_head_may_be_stored_too(tmp_path: Path, head: str) -> None:
    folder = write(tmp_path / "model", TIED)
    expected = says(folder)
    change_tensors(folder, lambda tensors: tensors | {head: tensors[f"{PUBLISHED}embed_tokens.weight"].clone()})
    assert says(folder) == expected


@pytest.mark.parametrize("begin", [PUBLISHED, "model.language_model."])
def test_missing_and_unknown_tensors_are_named(tmp_path: Path, begin: str) -> None:
    folder = write(tmp_path / "model", TIED)
    renamed(folder, (PUBLISHED, begin))
    gone, added = f"{begin}layers.2.mlp.up_proj.weight", f"{begin}layers.2.mlp.gate.weight"
    change_tensors(
        folder,
        lambda tensors: (
            {name: tensor for name, tensor in tensors.items() if name != gone}
            | {added: torch.ones(2), "audio_tower.weight": torch.ones(2)}
        ),
    )
    with pytest.raises(LoadError) as error:
        load(folder)
    assert f"1 missing: {gone}; 2 unexpected: audio_tower.weight, {added}" in str(error.value)


@pytest.mark.parametrize("variant", ["gemma3", "llama"])
def test_what_looks_at_images_is_unknown_to_models_of_text_alone(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / "model", variant)
    change_tensors(folder, lambda tensors: tensors | {"vision_tower.weight": torch.ones(2)})
    with pytest.raises(LoadError, match=r"1 unexpected: vision_tower\.weight"):
        load(folder)


def alone(folder: Path, to: Path) -> Path:
    """The same model as a checkpoint of text alone."""
    to.mkdir()
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"] | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    (to / "config.json").write_text(json.dumps(text))
    tensors = load_file(folder / "model.safetensors")
    own = {name.removeprefix("language_model."): tensor for name, tensor in tensors.items() if PUBLISHED in name}
    save_file(own, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.parametrize(
    "said",
    [
        {"dtype": "bfloat16"},
        {"quantize": "int8"},
        {"quantize": "int4-a16", "quantize_skip": "none"},
        {"quantize": "int8", "quantize_skip": f"head,{PUBLISHED}layers.1.*"},
        {"max_model_len": 50},
        {"kv_dtype": "int8"},
    ],
    ids=str,
)
def test_whatever_is_asked_it_has_the_bits_of_the_text_alone_kept_too(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", TIED)
    wish = wish_for(folder, **said)
    loaded = load_whole(wish)
    text = {
        name: value.replace("language_model.", "") if isinstance(value, str) else value for name, value in said.items()
    }
    other = load_whole(wish_for(alone(folder, tmp_path / "alone"), **text))
    assert facts(loaded) == facts(other)
    assert draws(loaded) == draws(other)
    kept_folder = KeptFolder.open(tmp_path / "kept", 1 << 30)
    assert kept_folder is not None
    keep(kept_folder, wish, key_of(wish), loaded)
    kept = ended(read(kept_folder, wish))
    assert isinstance(kept, Kept)
    assert draws(kept) == draws(other)


def facts(loaded: Loaded) -> tuple[object, ...]:
    held = sum(tensor.numel() * tensor.element_size() for tensor in loaded.model.state_dict().values())
    return loaded.family, loaded.numerics_id, loaded.budget.max_model_len, loaded.shape, loaded.is_invariant, held


# As Google published them, less what says how to look at images.
PUBLISHED_TEXTS: dict[str, dict[str, Any]] = {
    "4b": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "27b": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "nothing": {},
}


def outer(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 4,
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model", **IMAGES},
    }


@pytest.mark.parametrize("name", PUBLISHED_TEXTS)
def test_what_a_published_config_leaves_out_is_as_in_transformers(name: str) -> None:
    config = outer(PUBLISHED_TEXTS[name])
    family, got = resolve(config)
    assert family.name == "gemma3"
    assert stated(got) == theirs(transformers.Gemma3Config.from_dict(config))


def stated(config: DecoderConfig) -> dict[str, object]:
    return {
        "sizes": (config.vocab, config.width, config.layers, config.heads, config.kv_heads, config.head_dim),
        "mlp": (config.mlp_width, config.activation),
        "positions": config.positions,
        "eps": config.norm_eps,
        "scale": config.attention_scale,
        "windows": config.windows,
        "ropes": [(rope.kind, rope.theta, rope.factor) for rope in config.ropes],
        "switches": (config.is_tied, config.qkv_bias, config.logit_cap, config.attention_cap),
    }


def theirs(config: transformers.Gemma3Config) -> dict[str, object]:
    text: Any = config.text_config
    ropes = [text.rope_parameters[kind] for kind in text.layer_types]
    return {
        "sizes": (
            text.vocab_size,
            text.hidden_size,
            text.num_hidden_layers,
            text.num_attention_heads,
            text.num_key_value_heads,
            text.head_dim,
        ),
        "mlp": (text.intermediate_size, {"gelu_pytorch_tanh": "gelu_tanh"}[text.hidden_activation]),
        "positions": text.max_position_embeddings,
        "eps": text.rms_norm_eps,
        "scale": text.query_pre_attn_scalar**-0.5,
        "windows": tuple(text.sliding_window if kind == "sliding_attention" else None for kind in text.layer_types),
        "ropes": [(rope["rope_type"], rope["rope_theta"], rope.get("factor", 1.0)) for rope in ropes],
        "switches": (
            config.tie_word_embeddings,
            text.attention_bias,
            text.final_logit_softcapping,
            text.attn_logit_softcapping,
        ),
    }


def test_with_a_published_config_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """With all that is usual but the widths: 262,208 tokens, 8 heads of 256 columns."""
    text = {**PUBLISHED_TEXTS["4b"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7}
    config = outer({**text, "sliding_window": 19})
    torch.manual_seed(5)
    model = transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config.from_dict(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}))
    tokens = prompts(1)[-1][:40]
    got, expected = forward(load(tmp_path, max_model_len=100), tokens), logits(tmp_path, tokens)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * expected.abs().max().item())


def within(**text: Any) -> Callable[[Path], None]:
    """Changes the text's config."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change_config(folder, text_config=config["text_config"] | text)

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            within(num_hidden_layers=8, layer_types=None),
            "`text_config.num_hidden_layers` in config.json is 8; the files in .* have 7",
        ),
        (within(vocab_size=None), "`text_config.vocab_size` in config.json is 262208; the largest side of a tensor"),
        (
            within(head_dim=10**12),
            "`text_config.num_attention_heads` times `text_config.head_dim` in config.json is 4000000000000; the",
        ),
        (within(hidden_size="64"), "`text_config.hidden_size` in config.json is '64'; supported: a whole number"),
        (
            within(rope_parameters={"full_attention": {"rope_type": "linear"}}),
            "config.json has no `text_config.rope_parameters.factor`",
        ),
        (
            within(model_type="qwen3"),
            "`text_config.model_type` in config.json is 'qwen3'; supported: gemma3_text; nor does it run through "
            "transformers: .* takes more than text",
        ),
        (within(use_bidirectional_attention=True), "`use_bidirectional_attention` in config.json is true"),
        (lambda folder: change_config(folder, text_config=None), "config.json has no `text_config`"),
        (lambda folder: change_config(folder, text_config=[]), r"`text_config` in config.json is \[\]; supported: an"),
        (
            lambda folder: change_config(folder, tie_word_embeddings="yes"),
            "`tie_word_embeddings` in config.json is 'yes'; supported: true or false",
        ),
    ],
)
def test_a_config_that_is_not_served_is_refused_by_the_fields_place(
    tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    folder = write(tmp_path / "model", TIED)
    change(folder)
    with pytest.raises(LoadError, match=why):
        load(folder)
