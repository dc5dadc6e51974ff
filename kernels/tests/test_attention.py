"""Rope, attention and block copies on the CPU: right, and the same in any chunks and batches, on any number of threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from pelton_kernels import ops, reference
from pelton_kernels.testing import error, fresh, guards_untouched, poisoned, ulp
from torch import Tensor

pytestmark = pytest.mark.usefixtures("isa")


def bound(plain_error: float, dtype: torch.dtype) -> float:
    """The greatest error, beside that of the plain reference: both are sums of hundreds of roundings in another order.

    In float32, where nothing but these counts, fresh inputs once met 2.1 times the plain error.
    """
    return (3 if dtype == torch.float32 else 2) * plain_error + ulp(dtype)


@dataclass
class Paged:
    """Rows of known tokens in a cache whose blocks are shuffled, and whose unwritten places are NaN."""

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    row_offsets: Tensor
    row_starts: Tensor
    sight: dict[str, Any] = field(default_factory=dict)  # window, soft_cap, sinks

    @classmethod
    def fresh(
        cls,
        rows: list[tuple[int, int]],
        heads: int,
        kv_heads: int,
        dim: int,
        block_size: int,
        dtype: torch.dtype,
        has_codes: bool = False,
    ) -> Paged:
        """rows: (tokens known before, tokens of this step). Codes of what was not written have the scale NaN."""
        counts = [count for _, count in rows]
        used = [-(-(start + count) // block_size) for start, count in rows]
        shuffled = (torch.randperm(sum(used)) + 1).int()  # block 0 belongs to nobody
        table = torch.full((len(rows), max(used) + 1), -1, dtype=torch.int32)  # -1: must never be looked at
        k_cache, v_cache = (torch.full((sum(used) + 1, kv_heads, block_size, dim), torch.nan) for _ in range(2))
        for row, ((start, count), blocks) in enumerate(zip(rows, shuffled.split(used), strict=True)):
            table[row, : len(blocks)] = blocks
            for position in range(start + count):
                for cache in (k_cache, v_cache):
                    cache[blocks[position // block_size], :, position % block_size] = torch.randn(kv_heads, dim)
        return cls(
            q=fresh(sum(counts), heads, dim, dtype=dtype),
            k_cache=reference.codes_of(k_cache.to(dtype)) if has_codes else k_cache.to(dtype),
            v_cache=reference.codes_of(v_cache.to(dtype)) if has_codes else v_cache.to(dtype),
            block_table=table,
            row_offsets=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32),
            row_starts=torch.tensor([start for start, _ in rows], dtype=torch.int32),
        )

    def attend(self) -> Tensor:
        out = poisoned(*self.q.shape, dtype=self.q.dtype)
        ops.paged_attention(
            out,
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_table,
            self.row_offsets,
            self.row_starts,
            0.2,
            **self.sight,
        )
        assert guards_untouched(out)
        return out

    def row(self, row: int, first: int, last: int) -> Paged:
        """Tokens first .. last of one row, as a batch of their own."""
        begin = int(self.row_offsets[row])
        return Paged(
            q=self.q[begin + first : begin + last],
            k_cache=self.k_cache,
            v_cache=self.v_cache,
            block_table=self.block_table[row : row + 1],
            row_offsets=torch.tensor([0, last - first], dtype=torch.int32),
            row_starts=self.row_starts[row : row + 1] + first,
            sight=self.sight,
        )

    def wide_caches(self) -> tuple[Tensor, Tensor]:
        """What they mean, in float64."""
        return tuple(reference.numbers_of(cache, torch.float64).double() for cache in (self.k_cache, self.v_cache))  # type: ignore[return-value]

    def forget(self, window: int) -> None:
        """Blocks behind what a row's first token sees are others' by now."""
        for table, start in zip(self.block_table, self.row_starts.tolist(), strict=True):
            table[: max(0, start + 1 - window) // self.k_cache.shape[2]] = -1


CASES = [
    ([(0, 1)], 1, 1, 1, 1),
    ([(0, 5), (3, 1), (9, 0), (0, 1)], 4, 2, 8, 3),
    ([(300, 1), (0, 40), (511, 2), (255, 3)], 6, 2, 20, 16),
    ([(600, 1), (1, 70)], 14, 2, 64, 32),
    ([(100, 30)], 4, 1, 128, 32),
    ([(600, 1), (290, 3)], 8, 4, 32, 32),  # vectors of a head's values: a pair
    ([(270, 1), (0, 9)], 4, 2, 104, 16),  # four, a pair, half of one
    ([(270, 1), (0, 9)], 2, 2, 112, 16),  # four, a pair, one
    ([(8191, 1), (8000, 5), (2, 3)], 4, 2, 16, 32),  # 32 pieces of keys
]


SLOPED = [CASES[1], CASES[2], CASES[3], CASES[5]]

# And window, soft cap, whether there are sinks.
SIGHTS = [
    *((case, None, None, False) for case in CASES),
    (CASES[1], 1, None, False),
    (CASES[2], 20, None, True),
    (CASES[3], 256, 2.0, False),
    (CASES[2], 300, None, False),
    (CASES[4], None, 1.0, True),
]


@pytest.mark.parametrize(("case", "window", "soft_cap", "has_sinks"), SIGHTS)
def test_paged_attention(
    case: tuple[list[tuple[int, int]], int, int, int, int],
    window: int | None,
    soft_cap: float | None,
    has_sinks: bool,
    dtype: torch.dtype,
    has_codes: bool,
) -> None:
    rows, heads, kv_heads, dim, block_size = case
    batch = Paged.fresh(rows, heads, kv_heads, dim, block_size, dtype, has_codes)
    batch.sight = {"window": window, "soft_cap": soft_cap, "sinks": torch.randn(heads) if has_sinks else None}
    if window is not None:
        batch.forget(window)
    out = batch.attend()
    tables = (batch.block_table, batch.row_offsets, batch.row_starts, 0.2)
    wide = (batch.q.double(), *batch.wide_caches())
    exact = reference.paged_attention(*wide, *tables, **batch.sight)
    plain = reference.paged_attention(batch.q, batch.k_cache, batch.v_cache, *tables, **batch.sight)
    assert error(out, exact) <= bound(error(plain, exact), dtype)
    for row, (_, count) in enumerate(rows):  # alone, and cut in two: the same bits
        begin = int(batch.row_offsets[row])
        for cut in {0, count // 2, count - 1, count} & set(range(count + 1)):
            parts = [batch.row(row, 0, cut).attend(), batch.row(row, cut, count).attend()]
            assert torch.equal(torch.cat(parts), out[begin : begin + count])
    for threads in (1, 3):
        ops.set_threads(threads)
        assert torch.equal(batch.attend(), out)


@pytest.mark.parametrize("case", SLOPED)
@pytest.mark.parametrize("sight", [{}, {"soft_cap": 2.0}, {"window": 20}], ids=str)
def test_slopes_let_scores_fall_with_distance(
    case: tuple[list[tuple[int, int]], int, int, int, int],
    sight: dict[str, Any],
    dtype: torch.dtype,
    has_codes: bool,
) -> None:
    rows, heads, kv_heads, dim, block_size = case
    batch = Paged.fresh(rows, heads, kv_heads, dim, block_size, dtype, has_codes)
    batch.sight = {**sight, "slopes": torch.rand(heads) * 0.3}
    if "window" in sight:
        batch.forget(sight["window"])
    out = batch.attend()
    tables = (batch.block_table, batch.row_offsets, batch.row_starts, 0.2)
    exact = reference.paged_attention(batch.q.double(), *batch.wide_caches(), *tables, **batch.sight)
    plain = reference.paged_attention(batch.q, batch.k_cache, batch.v_cache, *tables, **batch.sight)
    assert error(out, exact) <= bound(error(plain, exact), dtype)
    for row, (_, count) in enumerate(rows):
        begin = int(batch.row_offsets[row])
        for cut in {0, count // 2, count - 1} & set(range(count + 1)):
            parts = [batch.row(row, 0, cut).attend(), batch.row(row, cut, count).attend()]
            assert torch.equal(torch.cat(parts), out[begin : begin + count])
    for threads in (1, 3):
        ops.set_threads(threads)
        assert torch.equal(batch.attend(), out)


def test_slopes_are_those_of_attention_by_the_book() -> None:
    batch = Paged.fresh([(0, 30)], 2, 2, 8, 4, torch.float32)
    batch.sight = {"slopes": torch.tensor([0.5, 0.1])}
    far = torch.arange(30)
    k, v = (
        cache[batch.block_table[0, :8].long()].transpose(0, 1).flatten(1, 2)[:, :30]
        for cache in (batch.k_cache, batch.v_cache)
    )
    bias = batch.sight["slopes"][:, None, None] * (far[None, :] - far[:, None])
    bias = bias.masked_fill(far[None, :] > far[:, None], -torch.inf)
    q = batch.q.transpose(0, 1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, scale=0.2).transpose(0, 1)
    torch.testing.assert_close(batch.attend(), expected)


# Of each row the one that it begins like, how many tokens of that it keeps, what it knows behind them, and its tokens of this step.
ALIKE = {
    "one": [(0, 0, 300, 1)],
    "two, of whole pieces": [(0, 0, 540, 1), (0, 512, 1, 1)],
    "three, nothing": [(0, 0, 40, 1), (0, 0, 300, 1), (0, 0, 7, 2)],
    "17, part of a piece": [(0, 0, 330, 1), *((0, 320, row, 1 + row % 3) for row in range(1, 17))],
    "32 in four groups": [(row // 8 * 8, 288 if row % 8 else 0, 300 if row % 8 == 0 else row, 1) for row in range(32)],
    "a tree": [(0, 0, 700, 1), (0, 640, 9, 1), (1, 640, 200, 4), (0, 256, 300, 1), (3, 544, 5, 2), (2, 832, 3, 1)],
    "and a prompt": [(0, 0, 600, 1), (0, 512, 0, 90), (0, 512, 3, 1), (0, 512, 40, 5)],
}


@pytest.mark.parametrize("sight", [{}, {"window": 100}, {"soft_cap": 2.0, "sinks": True}, {"slopes": True}], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 32), (8, 1, 64), (4, 2, 20)])
@pytest.mark.parametrize("rows", ALIKE.values(), ids=ALIKE)
def test_rows_that_share_blocks_are_as_alone(
    rows: list[tuple[int, int, int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    sight: dict[str, Any],
    dtype: torch.dtype,
    has_codes: bool,
) -> None:
    known = [(kept + own, count) for _, kept, own, count in rows]
    batch = Paged.fresh(known, heads, kv_heads, dim, 32, dtype, has_codes)
    batch.sight = sight | {name: torch.randn(heads) for name in ("sinks", "slopes") if name in sight}
    for row, (like, kept, _, _) in enumerate(rows):
        batch.block_table[row, : kept // 32] = batch.block_table[like, : kept // 32]
    if "window" in sight:
        batch.forget(sight["window"])
    for threads in (1, 2, 3):
        ops.set_threads(threads)
        out = batch.attend()
        for row, (_, _, _, count) in enumerate(rows):
            begin = int(batch.row_offsets[row])
            assert torch.equal(batch.row(row, 0, count).attend(), out[begin : begin + count])


def test_the_same_blocks_elsewhere_are_not_the_same_keys(dtype: torch.dtype) -> None:
    batch = Paged.fresh([(330, 1), (330, 1), (330, 1)], 2, 1, 32, 32, dtype)
    batch.block_table[1, 1:11] = batch.block_table[0, :10]
    batch.block_table[2, :10] = batch.block_table[0, :10].flip(0)
    out = batch.attend()
    for row in range(3):
        assert torch.equal(batch.row(row, 0, 1).attend(), out[row : row + 1])


# Rows, heads, heads of keys, their width, tokens of a block; and the window.
WHOLE = [
    ([1], 1, 1, 1, 1, None),
    ([5, 1, 9], 4, 2, 8, 3, None),
    ([300, 1, 40, 2], 6, 2, 20, 16, 1),
    ([600, 70], 12, 12, 32, 32, 65),
    ([257, 30], 4, 1, 128, 32, 300),
]


@pytest.mark.parametrize(("counts", "heads", "kv_heads", "dim", "block_size", "window"), WHOLE)
def test_whole_rows_see_both_sides(
    counts: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    has_codes: bool,
) -> None:
    batch = Paged.fresh([(0, count) for count in counts], heads, kv_heads, dim, block_size, dtype, has_codes)
    batch.sight = {"window": window, "is_whole": True}
    out = batch.attend()
    tables = (batch.block_table, batch.row_offsets, batch.row_starts, 0.2)
    wide = (batch.q.double(), *batch.wide_caches())
    exact = reference.paged_attention(*wide, *tables, **batch.sight)
    plain = reference.paged_attention(batch.q, batch.k_cache, batch.v_cache, *tables, **batch.sight)
    assert error(out, exact) <= bound(error(plain, exact), dtype)
    for row, count in enumerate(counts):  # alone: the same bits
        begin = int(batch.row_offsets[row])
        assert torch.equal(batch.row(row, 0, count).attend(), out[begin : begin + count])
    for threads in (1, 3):
        ops.set_threads(threads)
        assert torch.equal(batch.attend(), out)


def test_the_reference_of_whole_rows_is_attention_by_the_book() -> None:
    """Else the tests of kernels would compare one mistake with another."""
    batch = Paged.fresh([(0, 30)], 2, 2, 8, 4, torch.float32)
    far = torch.arange(30)
    for window in (None, 5):
        out = reference.paged_attention(
            batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.row_offsets, batch.row_starts, 0.2,
            window, is_whole=True,
        )  # fmt: skip
        k, v = (
            cache[batch.block_table[0, :8].long()].transpose(0, 1).flatten(1, 2)[:, :30]
            for cache in (batch.k_cache, batch.v_cache)
        )
        mask = torch.ones(30, 30, dtype=torch.bool)
        if window is not None:
            mask = (far[:, None] - far[None, :]).abs() < window
        q = batch.q.transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.2).transpose(0, 1)
        torch.testing.assert_close(out, expected)


def test_a_value_that_is_not_finite_stays_in_its_future(dtype: torch.dtype, has_codes: bool) -> None:
    """A token never sees those after it, even those that share its chunk and its block."""
    batch = Paged.fresh([(0, 20)], 4, 2, 16, 8, dtype, has_codes)
    out = batch.attend()
    last = batch.block_table[0, 19 // 8].long()
    for cache, value in ((batch.k_cache, torch.nan), (batch.v_cache, torch.inf)):
        head = torch.full((16,), value)
        cache[last, :, 19 % 8] = reference.codes_of(head) if has_codes else head.to(dtype)
    spoiled = batch.attend()
    assert torch.equal(spoiled[:19], out[:19])
    assert not spoiled[19].isfinite().any()


SIZES = pytest.mark.parametrize(("tokens", "heads", "kv_heads", "dim", "rotated"), [
    (1, 1, 1, 2, 2), (0, 2, 1, 8, 8), (5, 4, 2, 20, 12), (60, 9, 3, 64, 64), (33, 16, 8, 128, 128),
])  # fmt: skip


def heads_of_one(tokens: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values as parts of a token's row."""
    return fresh(tokens, heads + 2 * kv_heads, dim, dtype=dtype).split([heads, kv_heads, kv_heads], dim=1)


def head_norm(dim: int) -> ops.HeadNorm:
    return ops.HeadNorm(fresh(dim, dtype=torch.float32), fresh(dim, dtype=torch.float32), 0.5)


@pytest.mark.parametrize("is_normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("is_interleaved", [False, True], ids=["halves", "neighbours"])
@SIZES
def test_rope_kv_write(
    tokens: int, heads: int, kv_heads: int, dim: int, rotated: int, is_interleaved: bool, is_normed: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    q, k, v = heads_of_one(tokens, heads, kv_heads, dim, dtype)
    norm = head_norm(dim) if is_normed else None
    angles = 100 * torch.rand(90, rotated // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randint(0, 90, (tokens,), dtype=torch.int32)
    caches = [poisoned(9, kv_heads, 8, dim, dtype=dtype) for _ in range(2)]
    kv_slots = torch.randperm(72)[:tokens]
    exact_q, exact_k = reference.rope_kv_write(
        q.double(), k.double(), v.double(), cos_sin, positions, *(cache.double() for cache in caches), kv_slots,
        is_interleaved, norm,
    )  # fmt: skip
    plain = [cache.clone() for cache in caches]
    plain_q, plain_k = reference.rope_kv_write(q, k, v, cos_sin, positions, *plain, kv_slots, is_interleaved, norm)
    for threads in (1, 2, 3):
        ops.set_threads(threads)
        own = [poisoned(9, kv_heads, 8, dim, dtype=dtype) for _ in range(2)]
        out = poisoned(tokens, heads, dim, dtype=dtype)
        ops.rope_kv_write(out, q, k, v, cos_sin, positions, *own, kv_slots, is_interleaved, norm)
        own_k = own[0][kv_slots // 8, :, kv_slots % 8]
        assert error(out, exact_q) <= 2 * error(plain_q, exact_q) + ulp(dtype)
        assert error(own_k, exact_k) <= 2 * error(plain_k, exact_k) + ulp(dtype)
        assert torch.equal(own[1][kv_slots // 8, :, kv_slots % 8], v)
        assert all(guards_untouched(tensor) for tensor in (out, *own))
        assert int(own[0].isnan().sum()) == (72 - tokens) * kv_heads * dim  # nothing else was written


@pytest.mark.parametrize("is_interleaved", [False, True], ids=["halves", "neighbours"])
def test_heads_are_normed_and_turned_in_one_as_by_themselves(is_interleaved: bool, dtype: torch.dtype) -> None:
    """Bit for bit, and wherever they lie: as parts of a row, as every third of its heads, or alone."""
    tokens, heads, dim, rotated = 12, 4, 80, 40
    rows = fresh(tokens, heads, 3, dim, dtype=dtype)
    norm = head_norm(dim)
    cos_sin, positions = fresh(50, rotated, dtype=torch.float32), torch.randint(0, 50, (tokens,), dtype=torch.int32)
    slots = torch.randperm(24)[:tokens]

    def run(q: Tensor, k: Tensor, v: Tensor, norm: ops.HeadNorm | None) -> list[Tensor]:
        out, *caches = torch.zeros(tokens, heads, dim, dtype=dtype), *torch.zeros(2, 3, heads, 8, dim, dtype=dtype)
        ops.rope_kv_write(out, q, k, v, cos_sin, positions, *caches, slots, is_interleaved, norm)
        return [out, *caches]

    q, k, v = (part.contiguous() for part in rows.unbind(2))
    normed = [torch.empty_like(q), torch.empty_like(k)]
    for own, part, gain in zip(normed, (q, k), (norm.q_gain, norm.k_gain), strict=True):
        ops.rms_norm(own.view(-1, dim), part.view(-1, dim), gain, norm.eps)
    expected = run(*normed, v, None)
    for parts in (rows.unbind(2), (q, k, v), torch.cat([q, k, v], dim=1).chunk(3, dim=1)):
        for own, want in zip(run(*parts, norm), expected, strict=True):
            assert torch.equal(own, want)


@SIZES
def test_rope_kv_write_of_codes(
    tokens: int, heads: int, kv_heads: int, dim: int, rotated: int, dtype: torch.dtype
) -> None:
    """Bit for bit the reference's codes of the keys and values that plain caches get: every operation is rounded alike in all classes."""
    q, k, v = heads_of_one(tokens, heads, kv_heads, dim, dtype)
    if tokens > 2:
        v[0], v[1, 0, 0], v[2, 0, -1] = 0.0, torch.inf, torch.nan
    angles = 100 * torch.rand(90, rotated // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randint(0, 90, (tokens,), dtype=torch.int32)
    kv_slots = torch.randperm(72)[:tokens]
    plain = [torch.zeros(9, kv_heads, 8, dim, dtype=dtype) for _ in range(2)]
    ops.rope_kv_write(torch.empty_like(q).contiguous(), q, k, v, cos_sin, positions, *plain, kv_slots)
    for threads in (1, 2, 3):
        ops.set_threads(threads)
        out = torch.empty(tokens, heads, dim, dtype=dtype)
        caches = [poisoned(9, kv_heads, 8, dim + 4, dtype=torch.int8) for _ in range(2)]
        ops.rope_kv_write(out, q, k, v, cos_sin, positions, *caches, kv_slots)
        assert all(guards_untouched(cache) for cache in caches)
        for cache, written in zip(caches, plain, strict=True):
            expected = torch.full_like(cache, -1)
            for slot in kv_slots.tolist():
                expected[slot // 8, :, slot % 8] = reference.codes_of(written[slot // 8, :, slot % 8])
            assert torch.equal(cache[..., :dim], expected[..., :dim]), "and nothing else was written"
            numbers, wanted = (reference.numbers_of(codes, torch.float32) for codes in (cache, expected))
            assert torch.equal(numbers.nan_to_num(-1.5), wanted.nan_to_num(-1.5))


def test_codes_are_as_close_as_8_bits_can_be(dtype: torch.dtype) -> None:
    """Half a step of the scale, and the rounding of the division: the reference by which kernels are judged."""
    x = fresh(200, 3, 40, dtype=dtype)
    step = x.double().abs().amax(dim=-1, keepdim=True) / 127
    difference = (reference.numbers_of(reference.codes_of(x), torch.float64) - x.double()).abs()
    assert bool((difference <= 0.5001 * step).all())


def test_copy_blocks_walks_in_order(dtype: torch.dtype, has_codes: bool) -> None:
    k_cache, v_cache = (fresh(6, 3, 8, 40, dtype=dtype) for _ in range(2))
    if has_codes:
        k_cache, v_cache = reference.codes_of(k_cache), reference.codes_of(v_cache)
    # A chain (1 -> 2 -> 3), a block onto itself, none of its tokens, all of them.
    lists = [torch.tensor(values, dtype=torch.int32) for values in ([1, 2, 4, 0, 5], [2, 3, 4, 1, 0], [5, 4, 3, 0, 8])]
    expected = [k_cache.clone(), v_cache.clone()]
    reference.copy_blocks(*expected, *lists)
    for threads in (1, 3):
        ops.set_threads(threads)
        own = [k_cache.clone(), v_cache.clone()]
        ops.copy_blocks(*own, *lists)
        assert torch.equal(own[0], expected[0])
        assert torch.equal(own[1], expected[1])
