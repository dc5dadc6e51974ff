"""The Triton kernels against the reference: on a card if there is one, else through Triton's interpreter."""

from __future__ import annotations

import inspect
import math
import re
from itertools import accumulate

import pytest
import torch
from pelton_kernels import reference
from pelton_kernels.heads import HeadNorm
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

pytest.importorskip("triton", reason="Triton is not installed")
from pelton_kernels.triton import activation, attention, layer_norm, linear, linear_one_row, norm, overlap, rope  # noqa: E402

FORMATS = [torch.float32, torch.bfloat16]
GUARD = 2  # NaN rows before and after an output


def fresh(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An output full of NaN between guard rows, and the whole of which it is a part."""
    whole = torch.full((shape[0] + 2 * GUARD, *shape[1:]), math.nan, dtype=dtype, device=DEVICE)
    return whole[GUARD:-GUARD], whole


def check(
    out: Tensor, whole: Tensor, plain: Tensor, exact: Tensor, roundings: int = 1, terms: Tensor | None = None
) -> None:
    """No worse than twice the error of plain torch in the same format, and nothing written outside.

    `roundings`: how often a number is rounded on its way. Triton's interpreter cuts bfloat16 off instead, a whole step each time.
    `terms`: what is rounded there, where it is larger than the result.
    """
    largest = exact.abs().max() if terms is None else terms.abs().max()
    step = roundings * torch.finfo(out.dtype).eps * largest
    error = (out.double() - exact).abs().max()
    assert error <= 2 * (plain.double() - exact).abs().max() + step
    assert whole[:GUARD].isnan().all()
    assert whole[-GUARD:].isnan().all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 63), (17, 1000), (5, 4096)])
def test_rms_norm(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, gain = fresh(tokens, width, dtype=dtype), fresh(width, dtype=torch.float32)
    out, whole = poisoned(tokens, width, dtype=dtype)
    norm.rms_norm(out, x, gain, 1e-6)
    exact = reference.rms_norm(x.double(), gain.double(), 1e-6)
    check(out, whole, reference.rms_norm(x, gain, 1e-6), exact)
    alone, _ = poisoned(1, width, dtype=dtype)
    norm.rms_norm(alone, x[:1].clone(), gain, 1e-6)
    assert torch.equal(out[:1], alone)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 7), (4, 129), (2, 2048)])
def test_add_rms_norm(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, residual = fresh(tokens, width, dtype=dtype), fresh(tokens, width, dtype=dtype)
    gain = fresh(width, dtype=torch.float32)
    plain, total = reference.add_rms_norm(residual, x, gain, 1e-5)
    exact = reference.rms_norm(total.double(), gain.double(), 1e-5)
    out, whole = poisoned(tokens, width, dtype=dtype)
    norm.add_rms_norm(out, residual, x, gain, 1e-5)
    # The interpreter cuts both the sum and the result; on a card the sum is rounded as the reference's, and one step is allowed.
    check(out, whole, plain, exact, roundings=2 if DEVICE == "cpu" and dtype is torch.bfloat16 else 1)
    ulp = torch.finfo(dtype).eps if DEVICE == "cpu" and dtype is torch.bfloat16 else 0.0
    torch.testing.assert_close(residual, total, rtol=ulp, atol=0.0)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width", "group"), [(1, 2, 2), (3, 63, 63), (5, 4096, 4096), (4, 60, 20)])
def test_layer_norm(tokens: int, width: int, group: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, gain = fresh(tokens, width, dtype=dtype), fresh(width, dtype=torch.float32)
    bias = fresh(width, dtype=torch.float32) if has_bias else None
    out, whole = poisoned(tokens, width, dtype=dtype)
    layer_norm.layer_norm(out, x, gain, bias, 1e-5, group)
    wide = gain.double(), None if bias is None else bias.double()
    plain = reference.layer_norm(x, gain, bias, 1e-5, group)
    check(out, whole, plain, reference.layer_norm(x.double(), *wide, 1e-5, group))
    alone, _ = poisoned(1, width, dtype=dtype)
    layer_norm.layer_norm(alone, x[:1].clone(), gain, bias, 1e-5, group)
    assert torch.equal(out[:1], alone)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 7), (4, 129), (2, 2048)])
def test_add_layer_norm(tokens: int, width: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, residual = fresh(tokens, width, dtype=dtype), fresh(tokens, width, dtype=dtype)
    gain = fresh(width, dtype=torch.float32)
    bias = fresh(width, dtype=torch.float32) if has_bias else None
    plain, total = reference.add_layer_norm(residual, x, gain, bias, 1e-5)
    exact = reference.layer_norm(total.double(), gain.double(), None if bias is None else bias.double(), 1e-5)
    out, whole = poisoned(tokens, width, dtype=dtype)
    layer_norm.add_layer_norm(out, residual, x, gain, bias, 1e-5)
    # As for RMSNorm: the interpreter cuts both the sum and the result.
    is_cut = DEVICE == "cpu" and dtype is torch.bfloat16
    check(out, whole, plain, exact, roundings=2 if is_cut else 1)
    torch.testing.assert_close(residual, total, rtol=torch.finfo(dtype).eps if is_cut else 0.0, atol=0.0)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 77), (6, 1500)])
def test_activations(tokens: int, width: int, dtype: torch.dtype) -> None:
    for function in ("silu", "gelu_tanh", "gelu_erf", "relu", "tanh"):
        x = fresh(tokens, width, dtype=dtype)
        out, whole = poisoned(tokens, width, dtype=dtype)
        out.copy_(x)
        activation.activate(out, function)
        check(out, whole, reference.activate(x, function), reference.activate(x.double(), function), terms=x)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 77), (6, 1500)])
def test_gates(tokens: int, width: int, dtype: torch.dtype) -> None:
    gate_up = fresh(tokens, 2 * width, dtype=dtype)
    for op, oracle in (
        (activation.silu_mul, reference.silu_mul),
        (activation.gelu_mul, reference.gelu_mul),
        (activation.gelu_erf_mul, reference.gelu_erf_mul),
    ):
        out, whole = poisoned(tokens, width, dtype=dtype)
        op(out, gate_up)
        terms = gate_up[:, :width] * gate_up[:, width:]
        check(out, whole, oracle(gate_up), oracle(gate_up.double()), terms=terms)


@pytest.mark.parametrize("is_normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("is_interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotary", "block_size"), [(4, 2, 24, 24, 16), (8, 1, 64, 32, 32), (3, 3, 10, 6, 8)]
)
def test_rope_kv_write(
    heads: int, kv_heads: int, dim: int, rotary: int, block_size: int, dtype: torch.dtype,
    is_interleaved: bool, is_normed: bool,
) -> None:  # fmt: skip
    tokens, blocks = 13, 5
    q, k, v = fresh(tokens, heads + 2 * kv_heads, dim, dtype=dtype).split([heads, kv_heads, kv_heads], dim=1)
    norm = None
    if is_normed:
        norm = HeadNorm(fresh(dim, dtype=torch.float32), fresh(dim, dtype=torch.float32), 0.5)
    angles = torch.rand(90, rotary // 2, device=DEVICE) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], 1).contiguous()
    positions = torch.randint(90, (tokens,), dtype=torch.int32, device=DEVICE)
    slots = torch.randperm(blocks * block_size, device=DEVICE)[:tokens]
    caches = [torch.full((blocks, kv_heads, block_size, dim), math.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
    expected_caches = [cache.clone() for cache in caches]
    expected, _ = reference.rope_kv_write(q, k, v, cos_sin, positions, *expected_caches, slots, is_interleaved, norm)
    out, whole = poisoned(tokens, heads * dim, dtype=dtype)
    out = out.view(tokens, heads, dim)
    rope.rope_kv_write(out, q, k, v, cos_sin, positions, *caches, slots, is_interleaved, norm)
    # Normed, a number is rounded twice, and turning may take most of it away.
    rough = {"rtol": 2e-2 if dtype is torch.bfloat16 else 1e-4, "atol": 16 * torch.finfo(dtype).eps}
    near = rough if is_normed else {}
    torch.testing.assert_close(out, expected, **near)
    assert whole[:GUARD].isnan().all()
    assert whole[-GUARD:].isnan().all()
    for got, want in zip(caches, expected_caches, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, **near)


def test_keys_and_values_without_a_slot_are_written_nowhere() -> None:
    """Rows that only fill up a step's size have none."""
    q, k, v = (fresh(3, 2, 16, dtype=torch.float32) for _ in range(3))
    caches = [torch.full((2, 2, 8, 16), math.nan, device=DEVICE) for _ in range(2)]
    slots = torch.tensor([-1, 9, -1], device=DEVICE)
    positions = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    still = torch.tensor([[1.0] * 8 + [0.0] * 8], device=DEVICE)
    rope.rope_kv_write(torch.empty_like(q), q, k, v, still, positions, *caches, slots)
    for cache, written in zip(caches, (k, v), strict=True):
        assert torch.equal(cache[1, :, 1], written[1])
        assert cache.isfinite().sum() == 2 * 16


# Rows of (tokens before the row, tokens of the row): decoding, a whole prompt, a chunk in the middle, one token at the start.
MIXES = [[(0, 1)], [(70, 1), (3, 1), (0, 9)], [(16, 33), (0, 1), (127, 2), (31, 1)]]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size"), [(8, 2, 24, 16), (3, 3, 64, 32), (32, 1, 16, 8)])
def test_paged_attention(
    mix: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype
) -> None:
    out, whole, inputs = run_attention(mix, heads, kv_heads, dim, block_size, dtype)
    exact = reference.paged_attention(*(t.double() if t.is_floating_point() else t for t in inputs), dim**-0.5)
    plain = reference.paged_attention(*inputs, dim**-0.5)
    check(out, whole, plain, exact)


@pytest.mark.parametrize(("window", "soft_cap", "has_sinks"), [(1, None, False), (20, None, True), (70, 2.0, False)])
def test_windows_soft_caps_and_sinks(window: int, soft_cap: float | None, has_sinks: bool) -> None:
    sinks = torch.randn(4, device=DEVICE) if has_sinks else None
    out, whole, inputs = run_attention(MIXES[1], 4, 2, 24, 16, torch.float32, window, soft_cap, sinks)
    wide = (t.double() if t.is_floating_point() else t for t in inputs)
    exact = reference.paged_attention(*wide, 24**-0.5, window, soft_cap, sinks)
    check(out, whole, reference.paged_attention(*inputs, 24**-0.5, window, soft_cap, sinks), exact)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("window", [None, 1, 20, 90])
@pytest.mark.parametrize("rows", [[(0, 1), (0, 33), (0, 150), (0, 7)], [(0, 1)], [(0, 1), (0, 1), (0, 1)]])
def test_whole_rows_see_both_sides(rows: list[tuple[int, int]], window: int | None, dtype: torch.dtype) -> None:
    out, whole, inputs = run_attention(rows, 4, 2, 24, 16, dtype, window, is_whole=True)
    wide = (t.double() if t.is_floating_point() else t for t in inputs)
    exact = reference.paged_attention(*wide, 24**-0.5, window, is_whole=True)
    check(out, whole, reference.paged_attention(*inputs, 24**-0.5, window, is_whole=True), exact)


def run_attention(
    mix: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    is_whole: bool = False,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """One call over fresh inputs; KV beyond each row's end is NaN, and so are blocks that its window has passed."""
    starts = torch.tensor([start for start, _ in mix], dtype=torch.int32, device=DEVICE)
    counts = [count for _, count in mix]
    offsets = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device=DEVICE)
    width = max(-(-(start + count) // block_size) for start, count in mix) + 1
    table = torch.randperm(len(mix) * width, device=DEVICE).view(len(mix), width).int()
    caches = [
        torch.full((len(mix) * width, kv_heads, block_size, dim), math.nan, dtype=dtype, device=DEVICE) for _ in "kv"
    ]
    for row, (start, count) in enumerate(mix):
        passed = 0 if window is None else max(0, start + 1 - window) // block_size * block_size
        for position in range(passed, start + count):
            block = int(table[row, position // block_size])
            for cache in caches:
                cache[block, :, position % block_size] = fresh(kv_heads, dim, dtype=dtype)
    q = fresh(sum(counts), heads, dim, dtype=dtype)
    out, whole = poisoned(sum(counts), heads, dim, dtype=dtype)
    inputs = [q, *caches, table, offsets, starts]
    attention.paged_attention(out, *inputs, dim**-0.5, window, soft_cap, sinks, is_whole)
    return out, whole, inputs


@pytest.mark.parametrize("window", [None, 40])
def test_a_tokens_attention_is_the_same_in_every_chunk(window: int | None) -> None:
    """Pieces lie at absolute positions: a prompt in one row, and its last tokens as a row of their own, give the same bits."""
    out, _, (q, k_cache, v_cache, table, _, _) = run_attention([(0, 135)], 4, 1, 16, 16, torch.bfloat16, window)
    last = torch.full_like(out[:35], math.nan)
    offsets = torch.tensor([0, 35], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([100], dtype=torch.int32, device=DEVICE)
    attention.paged_attention(last, q[100:].contiguous(), k_cache, v_cache, table, offsets, starts, 16**-0.5, window)
    assert torch.equal(last, out[100:])


@pytest.mark.parametrize(("workers", "times"), [(1, 1), (2, 1), (3, 1), (5, 3), (16, 1), (50, 3)])
@pytest.mark.parametrize(
    ("dtype", "window", "soft_cap", "has_sinks"),
    [(torch.bfloat16, None, None, False), (torch.float32, 300, 5.0, True), (torch.float32, None, None, True)],
)
def test_rows_of_few_tokens_are_shared_among_any_number_of_workers(
    workers: int, times: int, dtype: torch.dtype, window: int | None, soft_cap: float | None, has_sinks: bool
) -> None:
    """Long rows beside short ones, rows without tokens, and some with too many, whose places are left as they are."""
    mix = times * [(900, 1), (3, 4), (128, 0), (127, 1), (0, 2), (20, 9), (0, 0)]
    heads, kv_heads, dim = 8, 2, 64
    assert attention.most_tokens(heads, kv_heads) == 4
    sinks = torch.randn(heads, device=DEVICE) if has_sinks else None
    _, _, inputs = run_attention(mix, heads, kv_heads, dim, 16, dtype, window, soft_cap, sinks)
    out, whole = poisoned(17 * times, heads, dim, dtype=dtype)
    attention.attend_few(out, *inputs, dim**-0.5, window, soft_cap, sinks, workers)
    is_few = torch.tensor([count <= 4 for _, count in mix for _ in range(count)], device=DEVICE)
    assert out[~is_few].isnan().all()
    wide = (t.double() if t.is_floating_point() else t for t in inputs)
    exact = reference.paged_attention(*wide, dim**-0.5, window, soft_cap, sinks)
    plain = reference.paged_attention(*inputs, dim**-0.5, window, soft_cap, sinks)
    check(out[is_few], whole, plain[is_few], exact[is_few])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (3, 70, 200), (16, 129, 777), (5, 64, 1024)])
def test_products_of_few_rows(rows: int, columns: int, depth: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = fresh(rows, depth, dtype=dtype), fresh(columns, depth, dtype=dtype)
    bias = fresh(columns, dtype=dtype) if has_bias else None
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for shape in (linear.shape_of(columns, depth), linear.Shape(16, 64, 3, 4, 3), linear.Shape(32, 128, 8, 4, 3)):
        for out_dtype in {dtype, torch.float32}:
            given = (x, weight) if bias is None else (x, weight, bias)
            plain = torch.nn.functional.linear(*(each.to(out_dtype) for each in given))
            for _ in range(2):  # the first call leaves the counters as the second one needs them
                out, whole = poisoned(rows, columns, dtype=out_dtype)
                linear.linear_few_rows(out, x, weight, bias, shape)
                # In float32 a long chain of sums is rounded at each of them.
                check(out, whole, plain, exact, roundings=8 if out_dtype is torch.float32 else 1)
        alone, _ = poisoned(1, columns, dtype=dtype)
        linear.linear_few_rows(alone, x[:1].clone(), weight, bias, shape)
        among, _ = poisoned(rows, columns, dtype=dtype)
        linear.linear_few_rows(among, x, weight, bias, shape)
        assert torch.equal(alone, among[:1])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (70, 200), (129, 777), (64, 1024), (31, 2048), (4097, 96)])
def test_products_of_one_row(columns: int, depth: int, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = fresh(1, depth, dtype=dtype), fresh(columns, depth, dtype=dtype)
    bias = fresh(columns, dtype=dtype) if has_bias else None
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    # An interpreted program for each of many columns takes minutes.
    narrow = [linear_one_row.Shape(1, 512, 2)] if columns < 1000 or DEVICE == "cuda" else []
    for shape in (None, linear_one_row.Shape(8, 64, 4), *narrow):
        for out_dtype in {dtype, torch.float32}:
            given = (x, weight) if bias is None else (x, weight, bias)
            plain = torch.nn.functional.linear(*(each.to(out_dtype) for each in given))
            out, whole = poisoned(1, columns, dtype=out_dtype)
            linear_one_row.linear_one_row(out, x, weight, bias, shape)
            check(out, whole, plain, exact, roundings=8 if out_dtype is torch.float32 else 1)


def test_every_kernel_that_overlaps_waits_before_it_looks_at_anything() -> None:
    """Else the one behind it could run ahead of the one before it; weights and the step's arrays alone are read before."""
    modules = [activation, layer_norm, linear, linear_one_row, norm, rope, attention.few, attention.tiles]
    sources = [
        inspect.getsource(kernel.fn)
        for module in modules
        for name, kernel in vars(module).items()
        if name != "begin_kernel" and hasattr(kernel, "fn") and "OVERLAPS: tl.constexpr" in inspect.getsource(kernel.fn)
    ]
    assert len(sources) == 12
    for source in sources:
        before, *behind = re.split(r"^    begin_kernel\(OVERLAPS\)", source, flags=re.MULTILINE)
        assert len(behind) == 1, source
        assert not re.search(r"^\s+return\b", before, re.MULTILINE)
        looks = re.findall(r"(?:tl.load|tl.store|tl.atomic_add)\((\w+)", before)
        of_weights = ["at", "at"] if "def _one_row" in source else []
        assert [look for look in looks if look not in {"positions", "cos_sin", "kv_slots", "row_offsets"}] == of_weights


@pytest.mark.skipif(DEVICE == "cpu", reason="compiles for a card")
def test_compiled_reads_stay_behind_the_wait() -> None:
    """The compiler must not move what a kernel before may still write to before its end."""
    x, weight, gain = (torch.randn(rows, 1024, device=DEVICE).bfloat16() for rows in (1, 4096, 1))
    compiled = [
        linear_one_row._one_row[(512,)](
            torch.empty(1, 4096, device=DEVICE).bfloat16(), x, weight, weight, 4096, 1024, COLUMNS=8, DEPTH=1024,
            EXACT=True, HAS_BIAS=False, num_warps=4, **overlap.overlapped(x.device),
        ),
        norm._add_rms_norm[(1,)](
            torch.empty_like(x), x.clone(), x, gain.float(), 1024, 1e-5, BLOCK=1024, num_warps=1,
            **overlap.overlapped(x.device),
        ),
    ]  # fmt: skip
    if torch.cuda.get_device_capability() >= overlap.HOPPER:
        for kernel, loads in zip(compiled, (8, 0), strict=True):
            before, waits, _ = kernel.asm["ptx"].partition("griddepcontrol.wait")
            assert waits
            assert before.count("ld.global") == loads
            assert "st.global" not in before
