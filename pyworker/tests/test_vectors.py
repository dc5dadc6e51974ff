"""Models that give vectors, against `transformers`: close to its own, and bit for bit the same in any company."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pelton.inspect import main
from pelton.kept.entry import Kept, keep, read
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.loading.error import LoadError
from pelton.loading.fingerprint import fingerprint
from pelton.loading.load import Loaded
from pelton.loading.task import vectors_of
from pelton.loading.wish import Wish
from pelton.models import ARCHITECTURES
from plans import Plan, Row, table
from random_checkpoints import VOCAB
from safetensors.torch import load_file, save_file
from tiny_router import OneByOne, eagerly, load_whole
from transformers.models.auto import modeling_auto
from vector_checkpoints import SEPARATOR, VARIANTS, classes, hidden, pooled_by, write

Vector = NDArray[np.float32]
LENGTHS = [1, 2, 31, 8, 140, 17, 5]  # tokens; more than a window, more than a block
TOKENS = 400


def texts(seed: int, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Tokens that separate and pad nothing."""
    source = random.Random(seed)
    return [[source.randrange(SEPARATOR + 1, VOCAB) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vectors")
    for name in VARIANTS:
        write(root / name, name)
    return root


def load(folder: Path, **wish: object) -> Loaded:
    return load_whole(folder, **{"token_budget": TOKENS, "kv_bytes": 16 << 20, **wish})


def vectors(loaded: Loaded | Kept, given: Sequence[Sequence[int]]) -> list[Vector]:
    """All in one step, in this order."""
    assert loaded.pooling is not None
    worker = OneByOne(loaded, tokens=TOKENS, pooled_width=loaded.pooling.width)
    plan, block = Plan(1), 3
    for slot, tokens in enumerate(given):
        count = -(-len(tokens) // loaded.shape.block_size)
        plan.appends += table(slot, range(block + count - 1, block - 1, -1))
        plan.rows.append(Row(slot, 0, len(tokens), list(tokens), samples=False, pools=True))
        block += count
    worker.end.accept_plan(plan.to_bytes())
    results = worker.compute()
    assert not results.flags.any()
    return [vector.copy() for vector in results.pooled]


def check_close(got: Vector, expected: torch.Tensor) -> None:
    one, other = torch.from_numpy(got), expected
    assert torch.cosine_similarity(one, other, dim=0) > 0.9999
    torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-4 * other.abs().max().item())


EMBEDDERS = [name for name in VARIANTS if not name.endswith("-classes")]
CLASSIFIERS = [name for name in VARIANTS if name.endswith("-classes")]


@pytest.mark.parametrize("variant", EMBEDDERS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_embeddings_are_those_of_transformers(folders: Path, variant: str, pooling: str) -> None:
    loaded = load(folders / variant, task="embed", pooling=pooling)
    assert loaded.is_invariant, "the model is a program, all of whose calls have kernels"
    given = texts(1)
    for got, tokens in zip(vectors(loaded, given), given, strict=True):
        states = hidden(folders / variant, tokens)
        check_close(got, {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling])


@pytest.mark.parametrize("variant", EMBEDDERS)
def test_in_bf16_embeddings_are_as_close_as_those_of_transformers(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / variant, variant, torch.bfloat16)
    loaded = load(folder, task="embed", pooling="mean")
    assert loaded.dtype == "bfloat16"
    given = texts(9)
    # By the text, and of the same weights: in float32, and as transformers rounds on its way.
    true, theirs = (
        torch.stack([hidden(folder, tokens, dtype).mean(dim=0) for tokens in given])
        for dtype in (torch.float32, torch.bfloat16)
    )
    got = torch.from_numpy(np.stack(vectors(loaded, given)))
    # From 0.75 (RoBERTa) to 1.07 of theirs (BERT) were seen: both round by chance, and seven texts are few to average over.
    assert (got - true).square().mean() <= 1.2**2 * (theirs - true).square().mean()


@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_classes_are_those_of_transformers(folders: Path, variant: str) -> None:
    loaded = load(folders / variant)
    assert loaded.is_invariant
    given = texts(2)
    for got, tokens in zip(vectors(loaded, given), given, strict=True):
        expected = classes(folders / variant, tokens)
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=3e-4 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("variant", "said"),
    [(name, {}) for name in VARIANTS]
    + [("bert", {"dtype": "bfloat16"}), ("modernbert-classes", {"dtype": "bfloat16", "quantize": "int8"})],
)
def test_a_text_has_the_same_bits_alone_in_any_company_and_by_way_of_python(
    folders: Path, variant: str, said: dict[str, str]
) -> None:
    loaded = load(folders / variant, task="auto" if variant.endswith("-classes") else "embed", threads=3, **said)
    given = texts(3)
    together = vectors(loaded, given)
    order = random.Random(4).sample(range(len(given)), len(given))
    turned = vectors(loaded, [given[at] for at in order])
    for at, expected in enumerate(together):
        assert np.array_equal(vectors(loaded, [given[at]])[0], expected)
        assert np.array_equal(turned[order.index(at)], expected)
    for got, expected in zip(vectors(eagerly(loaded), given), together, strict=True):
        assert np.array_equal(got, expected)


def test_what_sentence_transformers_put_behind_a_model_is_computed_too(tmp_path: Path) -> None:
    torch.manual_seed(8)
    dense = [torch.nn.Linear(64, 48), torch.nn.Linear(48, 20, bias=False)]
    folder = pooled_by(write(tmp_path / "model", "bert"), "cls_token", normalizes=False, dense=dense)
    loaded = load(folder)
    assert loaded.pooling is not None
    assert (loaded.pooling.width, loaded.pooling.kind, loaded.pooling.normalize) == (20, "embedding", False)
    given = texts(6)
    for got, tokens in zip(vectors(loaded, given), given, strict=True):
        state = hidden(folder, tokens)[0].clone()
        for layer in dense:
            state = torch.tanh(layer(state)).detach()
        check_close(got, state)
    for got, other in zip(vectors(eagerly(loaded), given), vectors(loaded, given), strict=True):
        assert np.array_equal(got, other)
    # In bfloat16 too, where the last layer alone is float32.
    half = load(folder, dtype="bfloat16")
    assert half.is_invariant
    for got, other in zip(vectors(half, given), vectors(loaded, given), strict=True):
        assert torch.cosine_similarity(torch.from_numpy(got), torch.from_numpy(other), dim=0) > 0.99


def test_other_encoders_are_refused_whatever_they_are_asked_for(tmp_path: Path) -> None:
    for name, said in (
        ("MPNetModel", "embed"),
        ("DebertaV2ForSequenceClassification", "auto"),
        ("T5EncoderModel", "classify"),
    ):
        why = f"`architectures` in config.json: {name}; supported for vectors and classes: models of Bert, Bloom, "
        with pytest.raises(LoadError, match=why):
            vectors_of(Wish(tmp_path, task=said), {"architectures": [name]})


def test_a_decoder_of_transformers_in_a_folder_of_sentence_transformers_draws_if_told_so(tmp_path: Path) -> None:
    folder, config = pooled_by(write(tmp_path / "model", "qwen3"), "lasttoken"), {"architectures": ["OPTForCausalLM"]}
    with pytest.raises(LoadError, match=r"OPTForCausalLM; supported for vectors .* a decoder with --task generate"):
        vectors_of(Wish(folder), config)
    assert vectors_of(Wish(folder, task="generate"), config) is None


def test_a_decoder_embeds_when_its_folder_says_so_or_when_it_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "qwen3")
    assert load(folder).pooling is None
    plain = load(folder, task="embed").pooling
    assert plain is not None
    assert (plain.normalize, plain.is_bidirectional) == (True, False)
    pooled_by(folder, "lasttoken")
    said = load(folder).pooling
    assert said is not None
    assert (said.width, said.normalize, said.is_bidirectional) == (64, True, False)
    assert load(folder, task="generate").pooling is None
    mean = load(folder, pooling="mean").pooling
    assert mean is not None
    assert mean.is_bidirectional, "a mean needs the whole text in one row"


def test_a_causal_model_that_pools_the_last_token_takes_prompts_in_parts(folders: Path) -> None:
    loaded = load(folders / "qwen3", task="embed")
    tokens = texts(7, [60])[0]
    whole = vectors(loaded, [tokens])[0]
    for runs in (loaded, eagerly(loaded)):
        worker = OneByOne(runs, tokens=TOKENS, pooled_width=64)
        begin = Plan(1, appends=table(0, range(8)), rows=[Row(0, 0, 23, tokens[:23], samples=False)])
        worker.end.accept_plan(begin.to_bytes())
        worker.compute()
        rest = Plan(2, rows=[Row(0, 23, 37, tokens[23:], samples=False, pools=True)])
        worker.end.accept_plan(rest.to_bytes())
        assert np.array_equal(worker.compute().pooled[0], whole)


def test_vectors_whose_angles_follow_the_context_say_so(checkpoints: Path) -> None:
    """Keys of another context's angles lie on a disk, for vectors as for tokens."""
    folder = checkpoints / "llama-dynamic"
    ids = [
        load_whole(folder, task=task, max_model_len=longest).numerics_id
        for task in ("embed", "generate")
        for longest in (70, 100, 140)
    ]
    embeds, generates = ids[:3], ids[3:]
    assert len(set(embeds)) == 3
    assert embeds == generates


def test_a_vector_that_is_not_finite_says_so_and_the_others_are_as_ever(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "bert")
    state = load_file(folder / "model.safetensors")
    state["embeddings.word_embeddings.weight"][77] = float("inf")
    save_file(state, folder / "model.safetensors")
    given = [[5, 6, 7], [8, 77], [9]]
    expected = vectors(load(folder), [given[0], given[2]])
    for runs in (load(folder), eagerly(load(folder))):
        worker = OneByOne(runs, tokens=TOKENS, pooled_width=64)
        plan = Plan(1)
        for slot, tokens in enumerate(given):
            plan.appends += table(slot, [slot])
            plan.rows.append(Row(slot, 0, len(tokens), tokens, samples=False, pools=True))
        worker.end.accept_plan(plan.to_bytes())
        results = worker.compute()
        assert results.flags.tolist() == [0, 1, 0]
        assert np.array_equal(results.pooled[0], expected[0])
        assert np.array_equal(results.pooled[2], expected[1])


def test_the_classes_of_a_report(tmp_path: Path, folders: Path) -> None:
    def said(folder: Path) -> tuple[tuple[str, ...], str]:
        pooling = load(folder).pooling
        assert pooling is not None
        assert (pooling.kind, pooling.width) == ("classes", len(pooling.labels))
        return pooling.labels, pooling.activation

    three = ("LABEL_0", "LABEL_1", "LABEL_2")
    assert said(folders / "bert-classes") == (three, "softmax")
    assert said(folders / "roberta-classes") == (("LABEL_0",), "sigmoid")
    assert said(folders / "modernbert-classes") == (("no", "yes"), "softmax")
    assert said(folders / "qwen3-classes") == ((*three, "LABEL_3"), "sigmoid")
    folder = write(tmp_path / "model", "roberta-classes")
    change_json(folder / "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert said(folder) == (("LABEL_0",), "none")
    change_json(folder / "config.json", sentence_transformers=None, problem_type="regression")
    assert said(folder) == (("LABEL_0",), "none")
    change_json(folder / "config.json", problem_type=None)
    assert said(folder) == (("LABEL_0",), "sigmoid")
    own = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    assert said(folder) == (("LABEL_0",), "none")


def test_native_decoders_are_known_by_what_transformers_calls_them_without_the_head_that_draws(tmp_path: Path) -> None:
    kinds = [kind for kind, whole in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if whole in ARCHITECTURES]
    assert len(kinds) >= len(ARCHITECTURES)
    for task, names in (
        ("embed", modeling_auto.MODEL_MAPPING_NAMES),
        ("classify", modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    ):
        for name in (names[kind] for kind in kinds if kind in names):
            with pytest.raises(LoadError, match=f"--task generate: {name} cannot; supported for it: {task}$"):
                vectors_of(Wish(tmp_path, task="generate"), {"architectures": [name]})


REFUSALS: list[tuple[str, dict[str, str], str]] = [
    ("bert", {"task": "generate"}, "--task generate: BertModel cannot; supported for it: embed"),
    ("bert", {"task": "classify"}, "--task classify: BertModel cannot; supported for it: embed"),
    ("bert", {"task": "rank"}, "--task rank; supported: auto, generate, embed, classify"),
    ("bert", {"pooling": "max"}, "--pooling max; supported: cls, last, mean"),
    (
        "bert-classes",
        {"task": "embed"},
        "--task embed: BertForSequenceClassification cannot; supported for it: classify",
    ),
    ("bert-classes", {"pooling": "mean"}, "--pooling mean: BertForSequenceClassification is there to classify"),
    ("qwen3", {"task": "classify"}, "--task classify: Qwen3ForCausalLM cannot; supported for it: generate, embed"),
    (
        "qwen3",
        {"pooling": "mean"},
        "--pooling mean: Qwen3ForCausalLM is there to generate; supported: with --task embed",
    ),
    ("bert", {"model_backend": "transformers"}, "--model-backend transformers gives no vectors"),
    ("bert", {"max_model_len": "513"}, "--max-model-len 513 is more than the model's 512"),
    ("bert", {"max_model_len": "401"}, "set --token-budget to at least 401, or --max-model-len to at most 400"),
    ("roberta", {"max_model_len": "513"}, "--max-model-len 513 is more than the model's 512"),
]


@pytest.mark.parametrize(("variant", "wish", "why"), REFUSALS)
def test_what_a_checkpoint_is_not_for_is_refused(folders: Path, variant: str, wish: dict[str, str], why: str) -> None:
    given = {name: int(value) if name == "max_model_len" else value for name, value in wish.items()}
    with pytest.raises(LoadError, match=re.escape(why)):
        load(folders / variant, **given)


@pytest.mark.parametrize(
    ("variant", "fields", "why"),
    [
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "`position_embedding_type` in config.json is 'relative_key'",
        ),
        ("bert", {"is_decoder": True}, "`is_decoder` in config.json is true"),
        ("bert", {"hidden_act": "swish7"}, "`hidden_act` in config.json is 'swish7'"),
        ("bert", {"num_attention_heads": 5}, "`hidden_size` 64 is no multiple of `num_attention_heads` 5"),
        ("bert", {"num_hidden_layers": 4}, "`num_hidden_layers` in config.json is 4; the files in .* have 3"),
        ("roberta", {"pad_token_id": 600}, "supported: more than 601, as positions begin behind `pad_token_id`"),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn"}}, "`rope_scaling` is set"),
        ("bert-classes", {"id2label": {"0": "a", "2": "b"}}, "`id2label` in config.json is no object"),
        ("bert-classes", {"problem_type": "ranking"}, "`problem_type` in config.json is ranking"),
        ("bert-classes", {"id2label": {"0": "a"}}, "classifier.weight \\[3, 64\\] instead of \\[1, 64\\]"),
    ],
)
def test_a_config_that_is_not_served_is_refused_by_name(
    tmp_path: Path, variant: str, fields: dict[str, object], why: str
) -> None:
    folder = write(tmp_path / "model", variant)
    change_json(folder / "config.json", **fields)
    with pytest.raises(LoadError, match=why):
        load(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}},
            "one of cls_token",
        ),
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "pools by max_tokens; supported"),
        (
            {"1_Pooling/config.json": {"pooling_mode": "max"}},
            "`pooling_mode` in .* is max; supported: cls, lasttoken, mean",
        ),
        (
            {"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False}},
            "`include_prompt` in .* is false",
        ),
        (
            {"modules.json": [{"type": "x.Transformer", "path": ""}, {"type": "x.WordWeights", "path": "1"}]},
            "WordWeights",
        ),
        ({"modules.json": [{"type": "x.Transformer", "path": "../elsewhere"}]}, "the `path` of a folder"),
    ],
)
def test_modules_that_are_not_served_are_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    folder = pooled_by(write(tmp_path / "model", "bert"), "mean_tokens")
    for name, value in change.items():
        (folder / name).write_text(json.dumps(value))
    with pytest.raises(LoadError, match=why):
        load(folder)


@pytest.mark.parametrize("variant", ["bert", "bert-classes", "modernbert", "qwen3"])
def test_tensors_that_are_missing_or_too_many_are_named(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / "model", variant)
    state = load_file(folder / "model.safetensors")
    gone = next(name for name in state if name.endswith(("query.weight", "Wqkv.weight", "q_proj.weight")))
    with_more = dict(state) | {"extra.weight": torch.zeros(2)}
    del state[gone]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(LoadError, match=f"1 missing: {re.escape(gone)}$"):
        load(folder, task="classify" if "classes" in variant else "embed")
    save_file(with_more, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"1 unexpected: extra\.weight$"):
        load(folder, task="classify" if "classes" in variant else "embed")


def test_heads_that_vectors_do_not_need_may_be_there(tmp_path: Path) -> None:
    """A bare encoder's tensors, named as in the model with a head; and the other way round."""
    folder = write(tmp_path / "model", "bert")
    expected = vectors(load(folder), texts(9))
    state = load_file(folder / "model.safetensors")
    named = {f"bert.{name}": value for name, value in state.items()}
    save_file(named | {"cls.predictions.bias": torch.zeros(VOCAB)}, folder / "model.safetensors")
    for got, other in zip(vectors(load(folder), texts(9)), expected, strict=True):
        assert np.array_equal(got, other)


def test_a_norm_by_both_names_is_one_or_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "bert")
    expected = vectors(load(folder), texts(9))
    state = load_file(folder / "model.safetensors")
    old, new = "embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"
    unused = {
        f"cls.predictions.transform.{name}": torch.full((3,), value)
        for name, value in ((old[11:], 1.0), (new[11:], 2.0))
    }
    for also in ({old: state[new].clone()}, {old: state[new].double()}, unused):
        save_file(state | also, folder / "model.safetensors")
        for got, other in zip(vectors(load(folder), texts(9)), expected, strict=True):
            assert np.array_equal(got, other)
    save_file(state | {old: state[new] + 1}, folder / "model.safetensors")
    with pytest.raises(LoadError, match=f"`{old}` and `{new}` in .* with other numbers in each"):
        load(folder)


@pytest.mark.parametrize("variant", ["bert", "roberta", "bert-masked"])
def test_norms_may_be_called_as_the_first_checkpoints_of_bert_have_them(tmp_path: Path, variant: str) -> None:
    folder = write(tmp_path / "model", variant)
    expected = vectors(load(folder, task="embed"), texts(9))
    for old, new in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        state = load_file(folder / "model.safetensors")
        assert any(name.endswith(old) for name in state)
        save_file({name.replace(old, new): value for name, value in state.items()}, folder / "model.safetensors")
    for got, other in zip(vectors(load(folder, task="embed"), texts(9)), expected, strict=True):
        assert np.array_equal(got, other)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("bert", {}),
        ("bert-classes", {"dtype": "bfloat16"}),
        ("modernbert-classes", {"quantize": "int8"}),
        ("roberta", {"pooling": "cls"}),
        ("qwen3", {"task": "embed", "pooling": "last"}),
    ],
)
def test_a_model_that_was_kept_gives_the_same_bits(
    tmp_path: Path, folders: Path, variant: str, said: dict[str, str]
) -> None:
    fields: dict[str, object] = {
        "kv_bytes": 8 << 20, "block_size": 8, "threads": 1, "slots": 8, "token_budget": TOKENS, "device": "cpu", **said,
    }  # fmt: skip
    wish = Wish(folders / variant, **fields)  # type: ignore[arg-type]
    loaded = load(folders / variant, **fields)
    folder = KeptFolder.open(tmp_path / "kept", 1 << 30)
    assert folder is not None
    keep(folder, wish, key_of(wish), loaded)
    reading = read(folder, wish)
    kept = None
    while kept is None:
        try:
            next(reading)
        except StopIteration as end:
            kept = end.value
    assert isinstance(kept, Kept)
    assert kept.pooling == loaded.pooling
    assert (kept.budget.blocks, kept.budget.max_model_len) == (loaded.budget.blocks, loaded.budget.max_model_len)
    given = texts(10)
    for got, expected in zip(vectors(kept, given), vectors(loaded, given), strict=True):
        assert np.array_equal(got, expected)
    for other in ({"task": "generate"}, {"pooling": "mean"}):
        assert key_of(dataclasses.replace(wish, **other)) != key_of(wish)  # type: ignore[arg-type]


def test_a_layer_behind_the_pooling_counts_among_the_files(tmp_path: Path) -> None:
    folder = pooled_by(write(tmp_path / "model", "bert"), "mean_tokens", dense=[torch.nn.Linear(64, 8)])
    before = fingerprint(folder)
    change_json(folder / "1_Pooling" / "config.json", pooling_mode="cls")
    assert fingerprint(folder) != before


def test_a_text_that_must_be_in_one_step_is_no_longer_than_a_step(folders: Path) -> None:
    assert load(folders / "bert", token_budget=600, kv_bytes=0).budget.max_model_len == 512
    loaded = load(folders / "bert", token_budget=100, kv_bytes=0)
    assert loaded.budget.max_model_len == 100
    # Two steps of 100 tokens, and for each of 8 requests a block of 8 that is not full.
    assert loaded.budget.blocks == 2 * (13 + 8)
    assert load(folders / "qwen3", token_budget=48, task="embed").budget.max_model_len == 512
    assert load(folders / "qwen3", token_budget=48, task="embed", pooling="mean").budget.max_model_len == 48


def test_the_program_can_be_inspected(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folders / "modernbert-classes"), "--rows", "2", "--tokens", "9", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    for line in (
        "paged_attention 4 heads, both sides, window 9",
        "pool_rows 64 mean",
        "gelu_erf_mul 100",
        "linear 64 -> 2 + bias",
    ):
        assert line in said, said


def change_json(path: Path, **fields: object) -> None:
    value = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(value))
