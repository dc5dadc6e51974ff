"""Folders of sentence-transformers: how long their texts are, and what is asked of their tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pelton.kept.entry import Kept, keep, read
from pelton.kept.folder import KeptFolder
from pelton.kept.key import key_of
from pelton.loading.error import LoadError
from pelton.loading.wish import Wish
from test_kept import ended
from test_vectors import TOKENS, change_json, load, texts, vectors
from vector_checkpoints import pooled_by, write


def test_texts_are_as_long_as_sentence_transformers_takes_them_unless_a_flag_says_more(tmp_path: Path) -> None:
    folder = pooled_by(write(tmp_path / "model", "bert"), "mean_tokens")
    text = texts(11, [140])[0]
    whole = vectors(load(folder), [text])[0]
    for name in ("sentence_xlnet_config.json", "sentence_bert_config.json"):  # the later one comes first
        (folder / name).write_text(json.dumps({"max_seq_length": 100 + len(name), "do_lower_case": False}))
        assert load(folder).budget.max_model_len == 100 + len(name)
    kept = KeptFolder(tmp_path, 1 << 30)
    wish = Wish(folder, token_budget=TOKENS, kv_bytes=16 << 20)
    keep(kept, wish, key_of(wish), load(folder))
    found = ended(read(kept, wish))
    assert isinstance(found, Kept)
    assert found.budget.max_model_len == 125
    longer = load(folder, max_model_len=140)
    assert longer.budget.max_model_len == 140
    assert np.array_equal(vectors(longer, [text])[0], whole)
    assert load(folder, max_model_len=90).budget.max_model_len == 90
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    assert load(folder).budget.max_model_len == TOKENS
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 2048}')
    assert load(folder).budget.max_model_len == TOKENS
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": "all"}')
    with pytest.raises(LoadError, match=r"`max_seq_length` in sentence_bert_config.json is 'all'; supported: a whole"):
        load(folder)


def test_texts_that_have_to_be_lowered_first_are_refused_unless_the_tokenizer_does_it(tmp_path: Path) -> None:
    folder = pooled_by(write(tmp_path / "model", "bert"), "mean_tokens")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512, "do_lower_case": true}')
    with pytest.raises(LoadError, match=r"`do_lower_case` in sentence_bert_config.json is true; supported: false"):
        load(folder)
    for normalizer in (
        {"type": "BertNormalizer", "lowercase": True},
        {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]},
    ):
        change_json(folder / "tokenizer.json", normalizer=normalizer)
        assert load(folder).pooling is not None
    change_json(folder / "tokenizer.json", normalizer={"type": "BertNormalizer", "lowercase": False})
    with pytest.raises(LoadError, match="do_lower_case"):
        load(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a word\n")
    assert load(folder).pooling is not None
    change_json(folder / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(LoadError, match="do_lower_case"):
        load(folder)


def test_windows_that_no_text_passes_are_none(tmp_path: Path) -> None:
    folder = pooled_by(write(tmp_path / "model", "gemma3-bare"), "lasttoken")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 19}')
    loaded, told = load(folder), load(folder, max_model_len=19)
    assert loaded.shape.kinds == told.shape.kinds != load(folder, max_model_len=20).shape.kinds
    assert loaded.numerics_id == told.numerics_id


def test_a_reranker_that_scores_by_what_it_would_draw_draws(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "qwen3")
    module = "sentence_transformers.cross_encoder.modules"
    kinds = [("", "Transformer"), ("1_LogitScore", "logit_score.LogitScore")]
    (folder / "modules.json").write_text(
        json.dumps([{"path": path, "type": f"{module}.{kind}"} for path, kind in kinds])
    )
    assert load(folder).pooling is None
    assert load(folder, task="generate").pooling is None
    with pytest.raises(LoadError, match=r"`modules.json` is Transformer, LogitScore; supported: Transformer, Pooling"):
        load(folder, task="embed")


def test_a_prompt_that_is_not_put_before_texts_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = pooled_by(write(tmp_path / "model", "bert"), "cls_token")
    said = {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": None}
    for name, is_told in ((None, False), ("document", True)):
        caplog.clear()
        (folder / "config_sentence_transformers.json").write_text(json.dumps({**said, "default_prompt_name": name}))
        load(folder)
        assert ("begin them with 'passage: '" in caplog.text) is is_told
