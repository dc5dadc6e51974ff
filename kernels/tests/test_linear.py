"""The linear layer on the CPU: right, and one arithmetic for one row or hundreds, on any number of threads."""

from __future__ import annotations

import many_rows
import pytest
import torch
from pelton_kernels import ops, reference
from pelton_kernels.testing import cancelled, error, forced, fresh, guards_untouched, isas, poisoned, ulp

SHAPES = [
    (1, 1, 1),
    (0, 5, 7),
    (1, 512, 1024),
    (5, 70, 33),
    (8, 1000, 129),
    (13, 64, 2500),
    (33, 70, 2100),
    (200, 130, 96),
]


@pytest.mark.parametrize(("tokens", "columns", "depth"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.usefixtures("isa")
def test_linear(tokens: int, columns: int, depth: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, weight = fresh(tokens, depth, dtype=dtype), fresh(columns, depth, dtype=dtype)
    bias = fresh(columns, dtype=dtype) if has_bias else None
    packed = ops.pack(weight)
    out, logits = poisoned(tokens, columns, dtype=dtype), poisoned(tokens, columns, dtype=torch.float32)
    ops.linear(out, x, packed, bias)
    ops.linear_f32(logits, x, packed, bias)
    exact = reference.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert torch.equal(out, logits.to(dtype))
    # torch sums blockwise, we in order: the error of `depth` additions in order grows with √depth, one rounding each.
    in_order = depth**0.5 * ulp(torch.float32) * cancelled(exact, bias)
    assert error(logits, exact) <= 2 * error(reference.linear_f32(x, weight, bias), exact) + in_order
    assert guards_untouched(out)
    assert guards_untouched(logits)
    for token in range(min(tokens, 9)):
        alone = poisoned(1, columns, dtype=torch.float32)
        ops.linear_f32(alone, x[token : token + 1], packed, bias)
        assert torch.equal(alone, logits[token : token + 1])
    for threads in (1, 3):
        ops.set_threads(threads)
        again = poisoned(tokens, columns, dtype=torch.float32)
        ops.linear_f32(again, x, ops.pack(weight), bias)
        assert torch.equal(again, logits)


@pytest.mark.usefixtures("isa")
def test_eight_thousand_rows_are_each_as_alone(dtype: torch.dtype) -> None:
    many_rows.check_eight_thousand(ops.pack(fresh(many_rows.COLUMNS, many_rows.DEPTH, dtype=dtype)), dtype)


def test_a_packed_weight_holds_nothing_of_the_tensor(dtype: torch.dtype) -> None:
    weight, x = fresh(40, 30, dtype=dtype), fresh(2, 30, dtype=dtype)
    packed = ops.pack(weight)
    before, after = poisoned(2, 40, dtype=dtype), poisoned(2, 40, dtype=dtype)
    ops.linear(before, x, packed)
    weight.zero_()
    ops.linear(after, x, packed)
    assert torch.equal(before, after)
    assert packed.nbytes >= weight.nbytes


def test_float32_classes_with_fma_agree_bit_for_bit() -> None:
    x, weight = fresh(7, 300, dtype=torch.float32), fresh(90, 300, dtype=torch.float32)
    results = []
    for name in ops.available_isas():
        if name != "portable":  # which rounds twice
            ops.force_isa(name)
            out = poisoned(7, 90, dtype=torch.float32)
            ops.linear(out, x, ops.pack(weight))
            results.append(out)
    ops.force_isa(None)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_weight_packed_for_another_class_is_refused() -> None:
    if ops.available_isas()[0] in ("portable", "avx2"):
        pytest.skip("this machine has classes of one width only")
    packed = ops.pack(fresh(16, 16, dtype=torch.float32))
    ops.force_isa("portable")
    try:
        with pytest.raises(ValueError, match="`weight` is packed for another instruction set"):
            ops.linear(poisoned(1, 16, dtype=torch.float32), fresh(1, 16, dtype=torch.float32), packed)
    finally:
        ops.force_isa(None)


def test_bfloat16_in_tiles_is_a_layout_of_its_own() -> None:
    if "amx" not in isas():
        pytest.skip("this processor has not all that AMX comes with")
    with forced("amx"):
        packed = ops.pack(fresh(16, 16, dtype=torch.bfloat16))
    with (
        forced("avx512bf16"),
        pytest.raises(
            ValueError, match="`weight` is packed for another instruction set; allowed: one packed for avx512bf16"
        ),
    ):
        ops.linear(poisoned(1, 16, dtype=torch.bfloat16), fresh(1, 16, dtype=torch.bfloat16), packed)
