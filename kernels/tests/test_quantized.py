"""Quantised linear layers on the CPU: rounded as the reference says, right, and one arithmetic for one row or hundreds."""

from __future__ import annotations

import many_rows
import pytest
import torch
from pelton_kernels import ops, reference
from pelton_kernels.ops import Scheme
from pelton_kernels.testing import cancelled, error, fresh, guards_untouched, poisoned, ulp
from torch import Tensor

SHAPES = [(1, 1, 1), (0, 5, 7), (1, 512, 1024), (5, 70, 33), (13, 64, 2500), (200, 130, 96)]
SCHEMES = [
    Scheme(8, 0, "int8"),
    Scheme(8, 0, "float"),
    Scheme(8, 128, "float"),
    Scheme(4, 32, "int8"),
    Scheme(4, 64, "int8"),
    Scheme(4, 128, "float"),
    Scheme(4, 0, "float"),
]


@pytest.fixture(params=SCHEMES, ids=str)
def scheme(request: pytest.FixtureRequest) -> Scheme:
    chosen: Scheme = request.param
    return chosen


def check(
    x: Tensor, packed: ops.PackedWeight, parts: tuple[Tensor, Tensor, Tensor], scheme: Scheme, bias: Tensor | None
) -> None:
    """`parts`: codes, scales, zeros."""
    tokens, columns, dtype = x.shape[0], parts[0].shape[0], x.dtype
    rounds = scheme.activations == "int8"
    out, wide = poisoned(tokens, columns, dtype=dtype), poisoned(tokens, columns, dtype=torch.float32)
    ops.linear(out, x, packed, bias)
    ops.linear_f32(wide, x, packed, bias)
    if scheme.group and not rounds and dtype is torch.bfloat16 and "-amx-" in ops.numerics_id("cpu", dtype):
        weights = rounded_weights(*parts, scheme.group)
        exact, plain = (
            torch.nn.functional.linear(x.to(wider), weights.to(wider), None if bias is None else bias.to(wider))
            for wider in (torch.float64, torch.float32)
        )
    else:
        exact, plain = (
            reference.linear_codes_f32(
                x.to(wider), *parts, scheme.group, rounds, None if bias is None else bias.to(wider)
            )
            for wider in (torch.float64, torch.float32)
        )
    assert torch.equal(out, wide.to(dtype))
    # As in test_linear; codes are unsigned, so that sums are up to three times as large on their way (129 / 42, their root
    # mean squares with and without the 128).
    in_order = 3 * x.shape[1] ** 0.5 * ulp(torch.float32) * cancelled(exact, bias)
    assert error(wide, exact) <= 2 * error(plain, exact) + in_order
    assert guards_untouched(out)
    assert guards_untouched(wide)
    for token in range(min(tokens, 9)):
        alone = poisoned(1, columns, dtype=torch.float32)
        ops.linear_f32(alone, x[token : token + 1], packed, bias)
        assert torch.equal(alone, wide[token : token + 1])


def rounded_weights(codes: Tensor, scales: Tensor, zeros: Tensor, group: int) -> Tensor:
    """What tiles multiply where each group has its scale."""
    depth = codes.shape[1]
    of_each = [each.float().repeat_interleave(group, dim=1)[:, :depth] for each in (scales, zeros)]
    return ((codes.float() - of_each[1]) * of_each[0]).bfloat16()


@pytest.mark.parametrize(("tokens", "columns", "depth"), SHAPES)
@pytest.mark.usefixtures("isa")
def test_floats_are_rounded_and_multiplied(
    tokens: int, columns: int, depth: int, scheme: Scheme, dtype: torch.dtype
) -> None:
    x, weight, bias = fresh(tokens, depth, dtype=dtype), fresh(columns, depth, dtype=dtype), fresh(columns, dtype=dtype)
    codes, scales = reference.rounded(weight, scheme.bits, scheme.group)
    zeros = torch.full(scales.shape, scheme.zero, dtype=torch.uint8)
    check(x, ops.quantize(weight, dtype, scheme), (codes, scales, zeros), scheme, bias)
    results = []
    for threads in (1, 3):
        ops.set_threads(threads)
        for packed in (ops.quantize(weight, dtype, scheme), ops.pack_codes(codes, scales, zeros, None, dtype, scheme)):
            out = poisoned(tokens, columns, dtype=torch.float32)
            ops.linear_f32(out, x, packed)
            results.append(out)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


@pytest.mark.usefixtures("isa")
def test_eight_thousand_rows_are_each_as_alone(scheme: Scheme, dtype: torch.dtype) -> None:
    weight = fresh(many_rows.COLUMNS, many_rows.DEPTH, dtype=dtype)
    many_rows.check_eight_thousand(ops.quantize(weight, dtype, scheme), dtype)


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.usefixtures("isa")
def test_codes_with_zero_points_in_any_order_are_multiplied(
    is_ordered: bool, scheme: Scheme, dtype: torch.dtype
) -> None:
    columns, depth = 70, 300
    groups = -(-depth // (scheme.group or depth))
    codes = torch.randint(1 << scheme.bits, (columns, depth), dtype=torch.uint8)
    zeros = torch.randint(1 << scheme.bits, (columns, groups), dtype=torch.uint8)
    scales = torch.rand(columns, groups)
    order = torch.randperm(depth).int() if is_ordered else None
    packed = ops.pack_codes(codes, scales, zeros, order, dtype, scheme)
    x = fresh(9, depth, dtype=dtype)
    seen = codes
    if order is not None:  # the same product, with the activations moved instead
        out, expected = poisoned(9, columns, dtype=torch.float32), poisoned(9, columns, dtype=torch.float32)
        ops.linear_f32(out, x, packed)
        ops.linear_f32(expected, x[:, order].contiguous(), ops.pack_codes(codes, scales, zeros, None, dtype, scheme))
        assert torch.equal(out, expected)
    else:
        check(x, packed, (seen, scales, zeros), scheme, None)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_in_any_format_are_packed_as_one_matrix_of_the_format_that_is_computed_in(
    stored: torch.dtype, dtype: torch.dtype
) -> None:
    parts = [fresh(rows, 90, dtype=stored) for rows in (70, 3, 64)]
    whole = torch.cat(parts)
    x = fresh(4, 90, dtype=dtype)
    for got, expected in (
        (ops.pack(parts, dtype), ops.pack(whole.to(dtype))),
        (ops.quantize(parts, dtype, SCHEMES[4]), ops.quantize(whole.float(), dtype, SCHEMES[4])),
    ):
        outs = [poisoned(4, 137, dtype=dtype) for _ in range(2)]
        ops.linear(outs[0], x, got)
        ops.linear(outs[1], x, expected)
        assert torch.equal(*outs)


def test_quantised_weights_take_a_half_and_a_quarter_of_the_memory() -> None:
    weight = fresh(1024, 1024, dtype=torch.bfloat16)
    sizes = [
        ops.quantize(weight, torch.bfloat16, scheme).nbytes for scheme in (Scheme(8, 0, "int8"), Scheme(4, 64, "int8"))
    ]
    assert sizes == [1024 * 1024 + 4 * 1024, 1024 * 1024 // 2 + 4 * 16 * 1024]
