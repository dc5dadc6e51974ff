"""Drawing by Triton against the reference that sorts: on a card if there is one, else through Triton's interpreter."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from pelton_kernels import admit
from pelton_kernels.reference.sampling import gumbel as reference_gumbel
from test_sampling import Batch, plain
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GUARD = 1  # rows before and after an output

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402
from pelton_kernels.triton import sampling  # noqa: E402
from pelton_kernels.triton.sampling.philox import gumbel, noise_of  # noqa: E402


def draw(batch: Batch, chunk: int, listed: int = 64) -> list[Tensor]:
    """Tokens, flags, log-probabilities, likeliest ids and theirs; nothing is written outside of them."""
    rows = len(batch.slots)
    shapes = [(rows,), (rows,), (rows,), (rows, batch.top), (rows, batch.top)]
    fills = [-1, -1, torch.nan, -1, torch.nan]
    wholes = [
        torch.full((size + 2 * GUARD, *rest), fill, dtype=torch.float32 if fill != fill else torch.int32, device=DEVICE)
        for (size, *rest), fill in zip(shapes, fills, strict=True)
    ]
    inputs = [getattr(batch, field.name) for field in fields(batch)][:-1]
    sampling.sample(
        *(whole[GUARD:-GUARD] for whole in wholes),
        *(None if one is None else one.to(DEVICE) for one in inputs),
        chunk,
        listed,
    )
    for whole, fill in zip(wholes, fills, strict=True):
        guards = torch.stack([whole[0], whole[-1]])
        assert (guards.isnan() if fill != fill else guards == -1).all()
    return [whole[GUARD:-GUARD].cpu() for whole in wholes]


def check(batch: Batch, chunk: int, listed: int = 64) -> list[Tensor]:
    """All as in the reference.

    The two logarithms differ in the last bits, so a token may differ where the best two are as close as that. exp differs so too,
    and with it the weight at which top-p ends: by a ten-millionth, which decides about a token once in many million rows.
    """
    outs = tokens, flags, chosen, top_ids, top_logprobs = draw(batch, chunk, listed)
    expected = batch.reference()
    best, drawn = (expected.noisy_scores.gather(1, ids[:, None].long()) for ids in (expected.tokens, tokens))
    same = tokens == expected.tokens
    is_greedy = batch.params[batch.slots.long()].view(torch.float32)[:, admit.TEMPERATURE] <= 0
    assert (same | (~is_greedy & (best - drawn < 1e-5)[:, 0])).all()
    assert torch.equal(flags, expected.flags)
    torch.testing.assert_close(chosen[same], expected.chosen[same], rtol=1e-5, atol=1e-5)
    assert torch.equal(top_ids, expected.top_ids)
    torch.testing.assert_close(top_logprobs, expected.top_logprobs, rtol=1e-5, atol=1e-5)
    return list(outs)


@pytest.mark.parametrize(
    ("rows", "vocabulary", "chunk", "listed"),
    [(1, 1, 64, 64), (24, 7, 64, 64), (24, 63, 64, 16), (16, 1000, 256, 64), (8, 5003, 1024, 512), (4, 5000, 8192, 64)],
)
def test_tokens_are_those_of_the_reference(rows: int, vocabulary: int, chunk: int, listed: int) -> None:
    check(Batch.fresh(rows, vocabulary), chunk, listed)


RULES: list[dict[str, float]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.01},
    {"temperature": 1e30},
    {"temperature": 1e-30},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 50},
    {"top_k": 50, "temperature": 0.01},
    {"top_k": 999},
    {"top_k": 1000},
    {"top_k": -1},  # the word has no sign: more than any vocabulary
    {"top_p": 1e-6},
    {"top_p": 0.0},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 100.0},
    {"top_p": 0.999999},
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 400, "top_p": 0.3, "temperature": 5.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"min_p": 3.0},
    {"min_p": 0.1, "top_k": 100, "top_p": 0.8},
]


def ruled(logits: Tensor) -> Batch:
    """A row for each of `RULES`, over logits of its own."""
    batch = plain(len(RULES), logits[0])
    values = batch.params.view(torch.float32)
    for row, rules in enumerate(RULES):
        values[row, admit.TEMPERATURE] = rules.get("temperature", 1.0)
        batch.params[row, admit.TOP_K] = int(rules.get("top_k", 0))
        values[row, admit.TOP_P] = rules.get("top_p", 1.0)
        values[row, admit.MIN_P] = rules.get("min_p", 0.0)
    batch.params[:, admit.SEED_LO] = torch.randint(-(2**31), 2**31, (len(RULES),))
    batch.params[:, admit.SEED_HI] = torch.randint(-(2**31), 2**31, (len(RULES),))
    batch.logits = logits.expand(len(RULES), -1).contiguous()
    return batch


@pytest.mark.parametrize("step", [0.0, 0.5, 100.0], ids=["distinct", "ties", "all equal"])
def test_rules_side_by_side(step: float) -> None:
    """Of equals the lower ids are kept, and of what they share the line may run through the midst."""
    logits = 3 * torch.randn(len(RULES), 1000)
    batch = ruled(logits if step == 0.0 else (logits / step).round() * step)
    outs = check(batch, 256, 512)
    for row in range(0, len(RULES), 4):
        alone = draw(batch.rows(slice(row, row + 1)), 256, 128)
        assert all(torch.equal(one, out[row : row + 1]) for one, out in zip(alone, outs, strict=True))
    assert torch.equal(draw(batch, 1024, 1024)[0], outs[0]), "in chunks of any size"


def test_peaks_and_plains() -> None:
    """One token far above the others, far below, and with others that are not there at all."""
    logits = torch.randn(len(RULES), 300)
    logits[:, 299] = 40.0
    check(ruled(logits), 128)
    logits[:, 299] = -3e38
    check(ruled(logits), 128)
    batch = ruled(logits)
    batch.masks, batch.mask_of = torch.zeros(1, 10, dtype=torch.int32), torch.zeros(len(RULES), dtype=torch.int32)
    batch.masks[0, 3:5] = 0b1011
    assert set(check(batch, 128)[0].tolist()) <= {96, 97, 99, 128, 129, 131}


def test_what_a_request_changes() -> None:
    """Biases twice on one token; penalties; suppressed ones until a position; masks, also one that allows only suppressed ones."""
    rows, vocabulary = 12, 200
    batch = plain(rows, torch.randn(vocabulary))
    values = batch.params.view(torch.float32)
    values[::2, admit.TEMPERATURE] = 0.0
    batch.bias_ids = torch.tensor([[130, 5, 130, 77]], dtype=torch.int32).repeat(rows, 1)
    batch.bias_values = torch.tensor([[4.0, -1.0, 4.0, 500.0]]).repeat(rows, 1)
    batch.params[:, admit.BIAS_COUNT] = 3
    assert set(check(batch, 64)[0][::2].tolist()) == {130}
    batch.suppressed = torch.tensor([[130, 3, 130, 9]], dtype=torch.int32).repeat(rows, 1)
    batch.params[:, admit.SUPPRESS_COUNT] = 3
    batch.params[:6, admit.SUPPRESS_UNTIL] = 8  # positions are 7
    batch.params[6:, admit.SUPPRESS_UNTIL] = 7
    tokens = check(batch, 64)[0]
    assert not set(tokens[:6].tolist()) & {130, 3}
    assert set(tokens[6::2].tolist()) == {130}
    batch.masks = torch.zeros(2, 7, dtype=torch.int32)
    batch.masks[0, 4] = 1 << 2  # token 130
    batch.masks[1, 6] = 0b11 << 7  # token 199, and one beyond the vocabulary
    batch.masks[1, 0] = 1 << 3
    batch.mask_of = batch.slots % 3 - 1
    tokens = check(batch, 64)[0]
    assert tokens[[1, 4]].tolist() == [130, 130], "what may not be otherwise is not suppressed"
    assert tokens[[2, 5]].tolist() == [199, 199]
    batch.counts = torch.zeros(rows, vocabulary, dtype=torch.int32)
    batch.counts[:, ::3] = admit.IN_PROMPT | 2
    batch.counts[:, 1::5] = 1
    batch.params[::4, admit.FLAGS] = admit.PENALTIES
    values[:, admit.REPETITION], values[:, admit.FREQUENCY], values[:, admit.PRESENCE] = 1.3, 0.2, 0.4
    check(batch, 64)


def test_rows_that_are_not_finite_are_flagged_alone() -> None:
    batch = plain(9, torch.randn(150), top_k=20)
    batch.params.view(torch.float32)[::2, admit.TEMPERATURE] = 0.0
    batch.params[:, admit.FLAGS] = admit.LOGPROBS
    batch.params[:, admit.TOP_LOGPROBS] = batch.top = 2
    before = check(batch, 64)
    for row, (token, value) in enumerate([(0, torch.nan), (149, torch.inf), (64, -torch.inf), (3, torch.nan)], start=1):
        batch.logits[row, token] = value
    batch.logits[5] = torch.nan
    batch.masks, batch.mask_of[6] = torch.zeros(1, 5, dtype=torch.int32), 0  # allows none
    batch.bias_ids, batch.bias_values = torch.full((9, 1), 70, dtype=torch.int32), torch.full((9, 1), torch.nan)
    batch.params[7, admit.BIAS_COUNT] = 1
    outs = draw(batch, 64)
    assert outs[1].tolist() == [0] + [admit.NOT_FINITE] * 7 + [0]
    for out, earlier in zip(outs, before, strict=True):
        assert torch.equal(out[[0, 8]], earlier[[0, 8]])
        assert (out[1:8] == (admit.NOT_FINITE if out is outs[1] else 0)).all()


@pytest.mark.parametrize("vocabulary", [3, 500])
def test_log_probabilities(vocabulary: int) -> None:
    """The likeliest in order, of equals the lower id first; as many as there are; or ids that the row tells itself."""
    rows, top = 8, 7
    batch = plain(rows, torch.zeros(vocabulary))
    batch.logits = (2 * torch.randn(rows, vocabulary)).round()
    batch.top = top
    batch.params[:, admit.FLAGS] = admit.LOGPROBS
    batch.params[0, admit.FLAGS] = 0
    batch.params[:, admit.TOP_LOGPROBS] = torch.arange(rows)
    batch.suppressed = torch.randint(0, vocabulary, (rows, 16), dtype=torch.int32)
    batch.params[:, admit.SUPPRESS_COUNT] = torch.arange(rows)
    batch.params[::3, admit.TOLD_COUNT] = batch.params[::3, admit.TOP_LOGPROBS]
    check(batch, 64)


@triton.jit
def _noise(out, of_token, words, record, position, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, gumbel(tl.load(words + at).to(tl.uint32, bitcast=True)))
    tl.store(of_token + at, noise_of(record, position, at + 0))


@pytest.mark.parametrize("position", [0, 12345])
def test_noise_is_that_of_the_reference(position: int) -> None:
    """To a few units in the last place, at the ends of its range too."""
    ends = torch.tensor([0, 1, 2, 3, 2**31 - 2, 2**31 - 1, -1, -2, -64, -256, -257, -(2**31), -(2**31) + 1])
    words = torch.cat([ends, torch.randint(-(2**31), 2**31, (1024 - len(ends),))]).int()
    v = (((words.long() & 0xFFFF_FFFF) >> 1).float() + 0.5) * 2.0**-31
    exact = -torch.log(-torch.log1p(-v.clamp(max=1 - 2.0**-24).double()))
    record = torch.randint(-(2**31), 2**31, (1, admit.WORDS)).int()
    out, of_token = torch.empty(2, 1024, device=DEVICE)
    _noise[(1,)](out, of_token, words.to(DEVICE), record.to(DEVICE), position, BLOCK=1024)
    torch.testing.assert_close(out.cpu().double(), exact, rtol=3e-7, atol=3e-7)
    expected = reference_gumbel(record, torch.tensor([position], dtype=torch.int32), 1024)[0]
    torch.testing.assert_close(of_token.cpu(), expected, rtol=3e-7, atol=3e-7)
