"""Models that give vectors, behind the API: against what `transformers` makes of the same tiny encoders."""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from support.batches import client_of, done, lines_of, request, uploaded
from support.server import Server, serving
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(200)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CONTEXT = 128
TEXTS = ["w1 w2 w3", "w4", " ".join(WORDS[:60]), "w1 w2 w4 w7"]


def make_tokenizer(folder: Path) -> None:
    """Words, between [CLS] and [SEP]; pairs with a second [SEP]."""
    vocab = {word: number for number, word in enumerate([*SPECIALS, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)


def make_bert(folder: Path, classes: int) -> Any:
    """A random BERT, with a head for classes or without one."""
    torch.manual_seed(7)
    config = transformers.BertConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        vocab_size=len(SPECIALS) + len(WORDS),
        max_position_embeddings=CONTEXT,
        type_vocab_size=2,
        pad_token_id=0,
        initializer_range=0.2,
        num_labels=max(classes, 1),
    )
    kind = transformers.BertForSequenceClassification if classes else transformers.BertModel
    model = kind(config).eval()
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return model


class Reference:
    """What `transformers` makes of texts."""

    def __init__(self, folder: Path, classes: int = 0) -> None:
        self.folder = folder
        self.model = make_bert(folder, classes)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def mean(self, text: str) -> torch.Tensor:
        return self.model(**self.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    @torch.no_grad()
    def logits(self, *texts: str) -> torch.Tensor:
        return self.model(**self.tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)).logits[0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def embedder(bert: Reference) -> Iterator[Server]:
    with serving(bert.folder, "--pooling", "mean", "--dtype", "float32") as running:
        yield running


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("ranker"), classes=1)


@pytest.fixture(scope="module")
def ranking(ranker: Reference) -> Iterator[Server]:
    with serving(ranker.folder, "--dtype", "float32") as running:
        yield running


@pytest.fixture
def client(embedder: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none", max_retries=0)


def test_a_chat_is_refused_with_what_such_a_model_takes(embedder: Server) -> None:
    refused = embedder.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.endswith("send its text alone, as `prompt` to /tokenize"), message
    assert embedder.post("/tokenize", {"prompt": "hi"}).status_code == 200


def in_32_bits(numbers: Sequence[float]) -> list[float]:
    """JSON has the shortest words for them, which 64 bits read otherwise."""
    return [float(number) for number in torch.tensor(numbers, dtype=torch.float32).tolist()]


def cosine(one: Sequence[float], other: Sequence[float] | torch.Tensor) -> float:
    pair = torch.tensor(one, dtype=torch.float64), torch.as_tensor(other, dtype=torch.float64)
    return float(torch.nn.functional.cosine_similarity(*pair, dim=0))


def test_embeddings_are_those_of_transformers(client: openai.OpenAI, bert: Reference) -> None:
    answer = client.embeddings.create(model=bert.folder.name, input=TEXTS, encoding_format="float")
    assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    for text, item in zip(TEXTS, answer.data, strict=True):
        assert cosine(item.embedding, bert.mean(text)) > 0.9999
        assert abs(sum(number * number for number in item.embedding) - 1) < 1e-5
    tokens = sum(len(bert.tokenizer(text).input_ids) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_base64_holds_the_same_numbers_and_tokens_the_same_as_texts(client: openai.OpenAI, bert: Reference) -> None:
    model = bert.folder.name
    floats = client.embeddings.create(model=model, input=TEXTS[0], encoding_format="float").data[0].embedding
    # The client asks for base64 by itself where nothing is said, and unpacks it.
    packed = client.embeddings.create(model=model, input=TEXTS[0]).data[0].embedding
    assert packed == in_32_bits(floats)
    ids = bert.tokenizer(TEXTS[0]).input_ids
    for given in (ids, [ids]):
        item = client.embeddings.create(model=model, input=given, encoding_format="float").data[0]
        assert item.embedding == floats


def test_base64_is_little_endian(embedder: Server) -> None:
    said = embedder.post("/v1/embeddings", {"input": "w1", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    floats = embedder.post("/v1/embeddings", {"input": "w1"}).json()["data"][0]["embedding"]
    assert list(struct.unpack(f"<{len(floats)}f", base64.b64decode(said))) == in_32_bits(floats)


def test_dimensions_are_the_first_ones_and_have_length_1(client: openai.OpenAI, bert: Reference) -> None:
    whole, cut = (
        client.embeddings.create(model=bert.folder.name, input="w1 w2", **asked).data[0].embedding
        for asked in ({}, {"dimensions": 8})
    )
    assert len(cut) == 8
    assert cosine(cut, whole[:8]) > 0.999999
    assert abs(sum(number * number for number in cut) - 1) < 1e-5
    with pytest.raises(openai.BadRequestError, match="`dimensions` is 65; allowed: 1 to 64"):
        client.embeddings.create(model=bert.folder.name, input="w1", dimensions=65)


def test_a_vector_is_raw_if_nobody_wants_it_normalised(embedder: Server, bert: Reference) -> None:
    for path, field in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
        answer = embedder.post(path, {"input": "w1 w2 w3", "use_activation": False})
        got = torch.tensor(answer.json()["data"][0][field])
        torch.testing.assert_close(got, bert.mean("w1 w2 w3"), atol=1e-4, rtol=1e-4)


def test_what_is_too_long_is_named_or_cut(embedder: Server, bert: Reference) -> None:
    long = " ".join(WORDS)
    answer = embedder.post("/v1/embeddings", {"input": ["w1", long]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code_name"]) == (400, "input[1]", "context_length_exceeded")
    assert "has 202 tokens, and the model takes 128" in error["message"]
    answer = embedder.post("/v1/embeddings", {"input": "w1 " * 1_000_000})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code_name"]) == (400, "input", "context_length_exceeded")
    assert "has 3000000 bytes of text, more than 128 tokens" in error["message"], "it was not tokenised"
    answer = embedder.post("/v1/embeddings", {"input": "w1 " * 3_000_000, "truncate_prompt_tokens": 10})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert "at most 8388608 bytes of text at once" in answer.json()["error"]["message"], "all of it would be tokenised"
    for asked, words in ((-1, CONTEXT - 2), (10, 8)):
        answer = embedder.post("/v1/embeddings", {"input": long, "truncate_prompt_tokens": asked}).json()
        assert cosine(answer["data"][0]["embedding"], bert.mean(" ".join(WORDS[:words]))) > 0.9999
        assert answer["usage"]["prompt_tokens"] == words + 2


def test_wrong_requests_say_what_is_wrong(embedder: Server) -> None:
    for path, body, words in [
        ("/v1/embeddings", {}, "`input` is missing"),
        ("/v1/embeddings", {"input": []}, "`input` is an empty list"),
        ("/v1/embeddings", {"input": ["w"] * 2049}, "a list of 2049 items"),
        ("/v1/embeddings", {"input": [9999]}, "token id 9999"),
        ("/classify", {"input": "w1"}, "the model gives embeddings, and no classes"),
        ("/v1/completions", {"prompt": "w1"}, "the model gives embeddings, and no text"),
    ]:
        answer = embedder.post(path, body)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
    completion = embedder.post("/v1/completions", {"prompt": "w1"}).json()["error"]
    assert completion["code_name"] == "wrong_model_kind"


def test_a_model_that_writes_gives_no_vectors(server: Server) -> None:
    for path, body in [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/rerank", {"query": "a", "documents": ["b"]}),
    ]:
        answer = server.post(path, body)
        assert (answer.status_code, answer.json()["error"]["code_name"]) == (400, "wrong_model_kind")
        message = answer.json()["error"]["message"]
        assert "the model gives text, and no vectors" in message
        assert path in message, "by the name that it was asked by"


def test_embeddings_rank_by_their_cosine(embedder: Server, bert: Reference) -> None:
    documents = ["w9 w10", "w1 w2 w3 w4", "w150", "w1 w2 w3"]
    answer = embedder.post("/v1/rerank", {"query": "w1 w2 w3", "documents": documents, "top_n": 3}).json()
    expected = [cosine(bert.mean("w1 w2 w3").tolist(), bert.mean(text)) for text in documents]
    order = sorted(range(len(documents)), key=lambda index: -expected[index])[:3]
    assert [result["index"] for result in answer["results"]] == order
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=1e-4)
        assert result["document"] == {"text": documents[result["index"]]}


def test_a_cross_encoder_reads_pairs(ranking: Server, ranker: Reference) -> None:
    query, documents = "w1 w2 w3", ["w9 w10", "w1 w2 w3 w4", "w150", "w1 w2 w3"]
    expected = [float(torch.sigmoid(ranker.logits(query, text)[0])) for text in documents]
    answer = ranking.post("/score", {"text_1": query, "text_2": documents}).json()
    assert [item["score"] for item in answer["data"]] == pytest.approx(expected, abs=1e-4)
    raw = ranking.post("/score", {"text_1": query, "text_2": documents, "use_activation": False}).json()
    logits = [float(ranker.logits(query, text)[0]) for text in documents]
    assert [item["score"] for item in raw["data"]] == pytest.approx(logits, abs=1e-3)
    answer = ranking.post("/rerank", {"query": query, "documents": [{"text": text} for text in documents]}).json()
    order = sorted(range(len(documents)), key=lambda index: -expected[index])
    assert [result["index"] for result in answer["results"]] == order
    short = ranking.post("/rerank", {"query": query, "documents": [" ".join(WORDS)], "max_tokens_per_doc": 5}).json()
    cut = float(torch.sigmoid(ranker.logits(query, " ".join(WORDS[:5]))[0]))
    assert short["results"][0]["relevance_score"] == pytest.approx(cut, abs=1e-4)


def test_classes_have_probabilities_and_names(tmp_path: Path) -> None:
    reference = Reference(tmp_path, classes=3)
    with serving(tmp_path, "--dtype", "float32") as running:
        answer = running.post("/classify", {"input": TEXTS[:2]}).json()
        refused = running.post("/score", {"text_1": "w1", "text_2": "w2"}).json()["error"]["message"]
    for text, item in zip(TEXTS[:2], answer["data"], strict=True):
        expected = torch.softmax(reference.logits(text), 0)
        assert item["probs"] == pytest.approx(expected.tolist(), abs=1e-4)
        assert (item["label"], item["num_classes"]) == (f"LABEL_{int(expected.argmax())}", 3)
    assert "/score with a model of 3 classes is not for it" in refused


def test_a_worker_that_dies_is_not_noticed_by_500_texts(embedder: Server, bert: Reference) -> None:
    texts = [f"{WORDS[number % 200]} {WORDS[number * 7 % 200]} {number % 9 * 'w1 '}" for number in range(500)]
    batches = [texts[start : start + 50] for start in range(0, 500, 50)]
    worker = embedder.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    with ThreadPoolExecutor(len(batches)) as pool:
        asked = [pool.submit(embedder.post, "/v1/embeddings", {"input": batch}) for batch in batches]
        embedder.wait_until("a batch runs", lambda: embedder.metric("vllm:num_requests_running") > 0)
        os.kill(worker, signal.SIGKILL)
        answers = [answer.result() for answer in asked]
    for batch, answer in zip(batches, answers, strict=True):
        assert answer.status_code == 200, answer.text
        for text, item in zip(batch, answer.json()["data"], strict=True):
            assert cosine(item["embedding"], bert.mean(text)) > 0.9999
    assert embedder.metric("pelton_worker_restarts_total") == 1


def test_a_batch_gives_the_vectors_of_single_requests(
    client: openai.OpenAI, embedder: Server, ranking: Server, tmp_path: Path
) -> None:
    file = uploaded(client, tmp_path, [request(text, "/v1/embeddings", {"input": text}) for text in TEXTS])
    batch = client.batches.create(input_file_id=file, endpoint="/v1/embeddings", completion_window="24h")
    answers = lines_of(client, done(client, batch).output_file_id)
    for text in TEXTS:
        vector = answers[text]["response"]["body"]["data"][0]["embedding"]
        alone = client.embeddings.create(model=embedder.model_name, input=text, encoding_format="float")
        assert vector == alone.data[0].embedding

    scoring = client_of(ranking.url)
    for endpoint, body in [
        ("/v1/score", {"text_1": "w1", "text_2": ["w2", "w3"]}),
        ("/v2/rerank", {"query": "w1", "documents": ["w2", "w3 w4"]}),
    ]:
        file = uploaded(scoring, tmp_path, [request("one", endpoint, body)])
        created: Any = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
        answer = lines_of(scoring, done(scoring, scoring.batches.create(**created)).output_file_id)["one"]["response"]
        single = ranking.post(endpoint, body).json()
        for part in ("data", "results"):
            assert answer["body"].get(part) == single.get(part)


@pytest.mark.parametrize("said", [True, False])
def test_texts_of_a_last_token_embedder_end_as_its_tokenizer_config_says(tmp_path: Path, said: bool) -> None:
    """`add_eos_token`: e5-mistral and its like were trained on that token's vector, and their tokenizer.json does not add it."""
    make_tokenizer(tmp_path)
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    for texts in ("single", "pair"):
        pieces = file["post_processor"][texts]
        file["post_processor"][texts] = [piece for piece in pieces if "[SEP]" not in str(piece)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"add_eos_token": said, "eos_token": {"content": "[SEP]", "__type": "AddedToken"}})
    )
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, initializer_range=0.2,
        vocab_size=len(SPECIALS) + len(WORDS), max_position_embeddings=CONTEXT,
    )  # fmt: skip
    transformers.LlamaModel(config).save_pretrained(tmp_path)
    ids = [2, 5, 6, *([3] if said else [])]  # [CLS] w1 w2 and, if so, [SEP]
    with serving(tmp_path, "--dtype", "float32") as server:
        body = {"input": ["w1 w2", "w1 w2 w3"]}
        of_text = server.post("/v1/embeddings", body).json()
        of_ids = server.post("/v1/embeddings", {"input": [ids]}).json()
        assert of_text["data"][0]["embedding"] == of_ids["data"][0]["embedding"]
        assert server.post("/tokenize", {"prompt": "w1 w2"}).json()["tokens"] == ids
        cut = server.post("/v1/embeddings", body | {"input": "w1 w2 w3", "truncate_prompt_tokens": len(ids)}).json()
        assert cut["data"][0]["embedding"] == of_ids["data"][0]["embedding"]
