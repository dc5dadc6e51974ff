"""Sampling on the CPU against the reference that sorts: the same tokens, from the same noise."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from pelton_kernels import admit, ops, reference
from pelton_kernels.testing import guards_untouched, poisoned
from torch import Tensor


@dataclass
class Batch:
    """Rows of requests that ask for different things, in slots of any order."""

    logits: Tensor
    params: Tensor
    slots: Tensor
    positions: Tensor
    counts: Tensor | None
    bias_ids: Tensor
    bias_values: Tensor
    suppressed: Tensor
    masks: Tensor
    mask_of: Tensor
    top: int

    @classmethod
    def fresh(cls, rows: int, vocabulary: int, *, top: int = 5, biases: int = 4, suppressed: int = 3) -> Batch:
        slots = rows + 3
        params = torch.zeros(slots, admit.WORDS, dtype=torch.int32)
        values = params.view(torch.float32)
        params[:, admit.FLAGS] = torch.randint(0, 4, (slots,))
        values[:, admit.TEMPERATURE] = pick(slots, [0.0, 0.3, 1.0, 1.0, 2.5])
        params[:, admit.TOP_K] = pick(slots, [0, 0, 1, 5, 40, 10**6]).int()
        values[:, admit.TOP_P] = pick(slots, [1.0, 1.0, 0.95, 0.5, 0.01])
        values[:, admit.MIN_P] = pick(slots, [0.0, 0.0, 0.05, 0.5])
        values[:, admit.REPETITION] = pick(slots, [1.0, 1.2])
        values[:, admit.PRESENCE] = pick(slots, [0.0, 0.7])
        values[:, admit.FREQUENCY] = pick(slots, [0.0, -0.3, 0.4])
        params[:, admit.SEED_LO] = torch.randint(-(2**31), 2**31, (slots,))
        params[:, admit.SEED_HI] = torch.randint(-(2**31), 2**31, (slots,))
        params[:, admit.TOP_LOGPROBS] = torch.randint(0, top + 1, (slots,))
        params[:, admit.SUPPRESS_UNTIL] = 50
        params[:, admit.BIAS_COUNT] = torch.randint(0, biases + 1, (slots,))
        params[:, admit.SUPPRESS_COUNT] = torch.randint(0, suppressed + 1, (slots,))
        tells = torch.rand(slots) < 0.3
        params[:, admit.TOLD_COUNT] = torch.where(tells, params[:, admit.TOP_LOGPROBS], 0)
        counts = pick(slots * vocabulary, [0, 0, 0, 1, 3]).int().view(slots, vocabulary)
        return cls(
            logits=3 * torch.randn(rows, vocabulary),
            params=params,
            slots=torch.randperm(slots)[:rows].int(),
            positions=torch.randint(0, 100, (rows,), dtype=torch.int32),
            counts=counts | torch.where(torch.rand(slots, vocabulary) < 0.2, admit.IN_PROMPT, 0).int(),
            bias_ids=torch.randint(0, vocabulary, (slots, biases), dtype=torch.int32),
            bias_values=5 * torch.randn(slots, biases),
            suppressed=torch.randint(0, vocabulary, (slots, suppressed + top), dtype=torch.int32),
            masks=some_masks(vocabulary),
            mask_of=torch.randint(-2, 3, (rows,), dtype=torch.int32),
            top=top,
        )

    def rows(self, rows: slice) -> Batch:
        return Batch(
            self.logits[rows], self.params, self.slots[rows], self.positions[rows],
            self.counts, self.bias_ids, self.bias_values, self.suppressed, self.masks, self.mask_of[rows], self.top,
        )  # fmt: skip

    def sample(self) -> list[Tensor]:
        rows = len(self.slots)
        outs = [
            poisoned(rows, dtype=torch.int32),
            poisoned(rows, dtype=torch.int32),
            poisoned(rows, dtype=torch.float32),
            poisoned(rows, self.top, dtype=torch.int32),
            poisoned(rows, self.top, dtype=torch.float32),
        ]
        ops.sample(
            *outs, self.logits, self.params, self.slots, self.positions,
            self.counts, self.bias_ids, self.bias_values, self.suppressed, self.masks, self.mask_of,
        )  # fmt: skip
        assert all(guards_untouched(out) for out in outs)
        return outs

    def reference(self) -> reference.Sampled:
        return reference.sample(
            self.logits, self.params, self.slots, self.positions,
            self.counts, self.bias_ids, self.bias_values, self.suppressed, self.masks, self.mask_of, self.top,
        )  # fmt: skip


def some_masks(vocabulary: int) -> Tensor:
    """Three: of many tokens, of few, of one."""
    words = -(-vocabulary // 32)
    masks = torch.randint(-(2**31), 2**31, (3, words), dtype=torch.int64)
    masks[1] &= torch.randint(-(2**31), 2**31, (words,)) & torch.randint(-(2**31), 2**31, (words,))
    masks[2] = 0
    masks[:, 0] |= 1
    return masks.int()


def pick(count: int, choices: list[float]) -> Tensor:
    return torch.tensor(choices)[torch.randint(0, len(choices), (count,))]


def plain(rows: int, logits: Tensor, **words: float) -> Batch:
    """Rows that differ in their seed only, over the same logits."""
    params = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
    values = params.view(torch.float32)
    values[:, admit.TEMPERATURE] = words.get("temperature", 1.0)
    values[:, admit.TOP_P] = words.get("top_p", 1.0)
    values[:, admit.REPETITION] = 1.0
    params[:, admit.TOP_K] = int(words.get("top_k", 0))
    params[:, admit.SEED_LO] = torch.arange(rows)
    empty = torch.zeros(rows, 0)
    return Batch(
        logits=logits.expand(rows, -1).contiguous(),
        params=params,
        slots=torch.arange(rows, dtype=torch.int32),
        positions=torch.full((rows,), 7, dtype=torch.int32),
        counts=None,
        bias_ids=empty.int(),
        bias_values=empty,
        suppressed=empty.int(),
        masks=torch.zeros(0, -(-logits.shape[-1] // 32), dtype=torch.int32),
        mask_of=torch.full((rows,), -1, dtype=torch.int32),
        top=0,
    )


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (30, 7), (40, 1000), (24, 5003)])
@pytest.mark.usefixtures("isa")
def test_tokens_are_those_of_the_reference(rows: int, vocabulary: int) -> None:
    batch = Batch.fresh(rows, vocabulary)
    tokens, flags, chosen, top_ids, top_logprobs = batch.sample()
    expected = batch.reference()
    # The two logarithms differ in the last bits, so a token may differ where the best two are as close as that.
    best, drawn = (expected.noisy_scores.gather(1, ids[:, None].long()) for ids in (expected.tokens, tokens))
    assert ((tokens == expected.tokens) | (best - drawn < 1e-5)[:, 0]).all()
    same = tokens == expected.tokens
    assert torch.equal(flags, expected.flags)
    torch.testing.assert_close(chosen[same], expected.chosen[same], rtol=1e-5, atol=1e-5)
    assert torch.equal(top_ids, expected.top_ids)
    torch.testing.assert_close(top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("isa")
def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    """B:SA1: any mix of requests in a batch."""
    batch = Batch.fresh(20, 2000)
    outs = batch.sample()
    for row in range(20):
        alone = batch.rows(slice(row, row + 1)).sample()
        assert all(torch.equal(one, out[row : row + 1]) for one, out in zip(alone, outs, strict=True))
    for threads in (1, 3):
        ops.set_threads(threads)
        assert all(torch.equal(again, out) for again, out in zip(batch.sample(), outs, strict=True))


def test_lists_without_ids_are_no_lists() -> None:
    """B:SA5."""
    batch = Batch.fresh(6, 300, top=0, biases=0, suppressed=0)
    batch.counts = None
    batch.params[:, admit.FLAGS] = 0
    assert torch.equal(batch.sample()[0], batch.reference().tokens)


def test_what_is_suppressed_is_never_drawn_before_its_position() -> None:
    """B:SA4: the end token and stop tokens while fewer than `min_tokens` are written."""
    batch = plain(200, torch.tensor([0.0, 9.0, 0.0, 8.0]))
    batch.suppressed = torch.tensor([[1, 3]], dtype=torch.int32).repeat(200, 1)
    batch.params[:, admit.SUPPRESS_COUNT] = 2
    batch.params[:, admit.SUPPRESS_UNTIL] = 8  # positions are 7
    assert set(batch.sample()[0].tolist()) == {0, 2}
    batch.params[:, admit.SUPPRESS_UNTIL] = 7
    assert set(batch.sample()[0].tolist()) & {1, 3}


def test_a_mask_leaves_its_own_tokens_alone() -> None:
    batch = plain(200, torch.tensor([0.0, 9.0, 0.0, 8.0]))
    batch.masks, batch.mask_of = torch.tensor([[0b0101], [0b1000]], dtype=torch.int32), batch.slots % 2
    drawn = batch.sample()[0]
    assert set(drawn[::2].tolist()) == {0, 2}
    assert set(drawn[1::2].tolist()) == {3}
    batch.suppressed = torch.tensor([[0, 3]], dtype=torch.int32).repeat(200, 1)
    batch.params[:, admit.SUPPRESS_COUNT] = 2
    batch.params[:, admit.SUPPRESS_UNTIL] = 8  # positions are 7
    drawn = batch.sample()[0]
    assert set(drawn[::2].tolist()) == {2}
    assert set(drawn[1::2].tolist()) == {3}, "what may not be otherwise is not suppressed"
    assert torch.equal(drawn, batch.reference().tokens)


def test_logits_that_are_not_finite_are_flagged_in_their_row_only() -> None:
    batch = plain(4, torch.randn(50))
    expected = batch.sample()[0]
    batch.logits[1, 49], batch.logits[2, 0] = torch.nan, torch.inf
    tokens, flags, *_ = batch.sample()
    assert flags.tolist() == [0, admit.NOT_FINITE, admit.NOT_FINITE, 0]
    assert tokens[[0, 3]].tolist() == expected[[0, 3]].tolist()
    assert torch.equal(flags, batch.reference().flags)


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 30,000 seeds. 19 degrees of freedom: above 43.8 once in a thousand; the seeds are fixed, so always or never."""
    logits = torch.linspace(-2, 2, 20)
    rows = 30_000
    for words, kept in (({}, 20), ({"temperature": 0.6}, 20), ({"top_k": 7}, 7)):
        tokens = plain(rows, logits, **words).sample()[0]
        scores = logits.double() / words.get("temperature", 1.0)
        scores[: 20 - kept] = -torch.inf
        expected = scores.softmax(0) * rows
        counts = torch.bincount(tokens, minlength=20).double()
        assert counts[: 20 - kept].sum() == 0
        chi_square = ((counts - expected) ** 2 / expected)[20 - kept :].sum()
        assert chi_square < 43.8


def test_philox_gives_the_known_answers() -> None:
    """From Random123's kat_vectors."""
    for word, expected in (
        (0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (0xFFFF_FFFF, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ):
        one = torch.tensor(word)
        assert [int(value) for value in reference.philox4x32((one, one, one, one), (one, one))] == expected


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 1), (3, 63), (17, 1000), (5, 32_001)])
def test_scores_are_those_of_the_reference(rows: int, vocabulary: int) -> None:
    logits = (4 * torch.randn(rows, vocabulary)).round(decimals=1)  # some are equal
    given = torch.randint(0, vocabulary, (rows,), dtype=torch.int32)
    wanted = torch.randint(0, 6, (rows,), dtype=torch.int32)
    logits[rows // 2, 0] = torch.inf if rows > 1 else 0.0
    outs = [
        poisoned(rows, dtype=torch.int32), poisoned(rows, dtype=torch.int32), poisoned(rows, dtype=torch.float32),
        poisoned(rows, 5, dtype=torch.int32), poisoned(rows, 5, dtype=torch.float32),
    ]  # fmt: skip
    ops.score(*outs, logits, given, wanted)
    assert all(guards_untouched(out) for out in outs)
    exact = reference.score(logits, given, wanted, 5)
    for out, right in zip(outs, exact, strict=True):
        if out.dtype == torch.int32:
            assert torch.equal(out, right)
        else:
            torch.testing.assert_close(out, right, atol=2e-6, rtol=2e-6)
