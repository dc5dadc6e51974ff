"""Models that give vectors, against `transformers`: close to its own, and bit for bit the same in any company."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pelton.kept.entry import Kept
from pelton.loading.load import Loaded
from plans import Plan, Row, table
from random_checkpoints import VOCAB
from tiny_router import OneByOne, eagerly, load_whole
from vector_checkpoints import SEPARATOR, VARIANTS, classes, hidden, write

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
