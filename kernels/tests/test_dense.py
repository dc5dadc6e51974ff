"""Ops on a token by itself, on the CPU: right, the same alone and in a batch, the same on any number of threads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pelton_kernels import ops, reference
from pelton_kernels.testing import error, fresh, guards_untouched, poisoned, ulp
from torch import Tensor

# Wide enough in the last case that threads share it.
SHAPES = [(0, 16), (1, 1), (3, 63), (17, 1000), (40, 4096)]
THREADS = [1, 2, 3]

pytestmark = pytest.mark.usefixtures("isa")


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_rms_norm(tokens: int, width: int, dtype: torch.dtype) -> None:
    x, gain = fresh(tokens, width, dtype=dtype), fresh(width, dtype=torch.float32)
    out = poisoned(tokens, width, dtype=dtype)
    ops.rms_norm(out, x, gain, 1e-6)
    exact = reference.rms_norm(x.double(), gain.double(), 1e-6)
    assert error(out, exact) <= 2 * error(reference.rms_norm(x, gain, 1e-6), exact) + ulp(dtype)
    assert guards_untouched(out)
    for token in range(min(tokens, 3)):
        alone = poisoned(1, width, dtype=dtype)
        ops.rms_norm(alone, x[token : token + 1], gain, 1e-6)
        assert torch.equal(alone, out[token : token + 1])
    for threads in THREADS:
        ops.set_threads(threads)
        again = x.clone()
        ops.rms_norm(again, again, gain, 1e-6)  # in place, too
        assert torch.equal(again, out)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_add_rms_norm(tokens: int, width: int, dtype: torch.dtype) -> None:
    start, x = (fresh(tokens, width, dtype=dtype) for _ in range(2))
    gain = fresh(width, dtype=torch.float32)
    residual, out = start.clone(), poisoned(tokens, width, dtype=dtype)
    ops.add_rms_norm(out, residual, x, gain, 1e-5)
    plain, plain_total = reference.add_rms_norm(start, x, gain, 1e-5)
    assert torch.equal(residual, plain_total)
    exact = reference.rms_norm(residual.double(), gain.double(), 1e-5)
    assert error(out, exact) <= 2 * error(plain, exact) + ulp(dtype)
    assert guards_untouched(out)
    for threads in THREADS:
        ops.set_threads(threads)
        again, total = poisoned(tokens, width, dtype=dtype), start.clone()
        ops.add_rms_norm(again, total, x, gain, 1e-5)
        assert torch.equal(again, out)
        assert torch.equal(total, residual)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("tokens", "width", "group"), [*((*shape, None) for shape in SHAPES), (7, 60, 20), (4, 408, 17)]
)
def test_layer_norm(tokens: int, width: int, group: int | None, has_bias: bool, dtype: torch.dtype) -> None:
    # A mean that is large beside the spread: squares about 0 would lose what is left after it is taken off.
    x, gain = fresh(tokens, width, dtype=dtype) + 30, fresh(width, dtype=torch.float32)
    bias = fresh(width, dtype=torch.float32) if has_bias else None
    out = poisoned(tokens, width, dtype=dtype)
    ops.layer_norm(out, x, gain, bias, 1e-5, group)
    exact = reference.layer_norm(x.double(), gain.double(), None if bias is None else bias.double(), 1e-5, group)
    # A sum of numbers about 30 is off by some 30 ulp of the spread, which is 1, whoever takes it.
    floor = 30 * 4 * ulp(torch.float32)
    assert error(out, exact) <= 2 * error(reference.layer_norm(x, gain, bias, 1e-5, group), exact) + ulp(dtype) + floor
    assert guards_untouched(out)
    for token in range(min(tokens, 3)):
        alone = poisoned(1, width, dtype=dtype)
        ops.layer_norm(alone, x[token : token + 1], gain, bias, 1e-5, group)
        assert torch.equal(alone, out[token : token + 1])
    for threads in THREADS:
        ops.set_threads(threads)
        again = poisoned(tokens, width, dtype=dtype)
        ops.layer_norm(again, x, gain, bias, 1e-5, group)
        assert torch.equal(again, out)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_add_layer_norm(tokens: int, width: int, has_bias: bool, dtype: torch.dtype) -> None:
    start, x = (fresh(tokens, width, dtype=dtype) for _ in range(2))
    gain = fresh(width, dtype=torch.float32)
    bias = fresh(width, dtype=torch.float32) if has_bias else None
    residual, out = start.clone(), poisoned(tokens, width, dtype=dtype)
    ops.add_layer_norm(out, residual, x, gain, bias, 1e-5)
    assert torch.equal(residual, reference.add_layer_norm(start, x, gain, bias, 1e-5)[1])
    apart = poisoned(tokens, width, dtype=dtype)
    ops.layer_norm(apart, residual, gain, bias, 1e-5)
    assert torch.equal(out, apart)  # which the test above holds against the truth
    assert guards_untouched(out)
    for threads in THREADS:
        ops.set_threads(threads)
        again, total = poisoned(tokens, width, dtype=dtype), start.clone()
        ops.add_layer_norm(again, total, x, gain, bias, 1e-5)
        assert torch.equal(again, out)
        assert torch.equal(total, residual)


def silu_power(gate: Tensor) -> Tensor:
    return gate


def gelu_power(gate: Tensor) -> Tensor:
    return 2 * math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)


def erf_power(x: Tensor) -> Tensor:
    return x * x / 2


GATES = [
    (ops.silu_mul, reference.silu_mul, silu_power),
    (ops.gelu_mul, reference.gelu_mul, gelu_power),
    (ops.gelu_erf_mul, reference.gelu_erf_mul, erf_power),
]


@pytest.mark.parametrize(("op", "oracle", "power"), GATES, ids=["silu", "gelu", "gelu_erf"])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_gates(op: Any, oracle: Any, power: Any, tokens: int, width: int, dtype: torch.dtype) -> None:
    """All are gate · f(power) · up. An error of the power counts power times in what e is raised to, and there are
    at most 8 roundings in each part; beside them the one of the result. What float32 cannot hold becomes 0."""
    gate_up = 6 * fresh(tokens, 2 * width, dtype=dtype)
    out = poisoned(tokens, width, dtype=dtype)
    op(out, gate_up)
    exact = oracle(gate_up.double())
    steps = 8 * (1 + power(gate_up.double()[:, :width]).abs())
    allowed = exact.abs() * (ulp(dtype) + steps * ulp(torch.float32) / 2) + 1e-36
    assert ((out.double() - exact).abs() <= allowed).all()
    assert guards_untouched(out)
    for token in range(min(tokens, 3)):
        alone = poisoned(1, width, dtype=dtype)
        op(alone, gate_up[token : token + 1])
        assert torch.equal(alone, out[token : token + 1])
    for threads in THREADS:
        ops.set_threads(threads)
        again = poisoned(tokens, width, dtype=dtype)
        op(again, gate_up)
        assert torch.equal(again, out)


POWERS: list[tuple[ops.Function, Any]] = [
    ("silu", silu_power),
    ("gelu_tanh", gelu_power),
    ("gelu_erf", erf_power),
    ("relu", torch.zeros_like),
    ("tanh", torch.zeros_like),
]


@pytest.mark.parametrize(("function", "power"), POWERS, ids=[name for name, _ in POWERS])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_activations_in_place(function: ops.Function, power: Any, tokens: int, width: int, dtype: torch.dtype) -> None:
    """As the gates: an error of the power counts power times in what e is raised to."""
    x = 4 * fresh(tokens, width, dtype=dtype)
    out = poisoned(tokens, width, dtype=dtype)
    out.copy_(x)
    ops.activate(out, function)
    exact = reference.activate(x.double(), function)
    steps = 8 * (1 + power(x.double()).abs())
    allowed = exact.abs() * (ulp(dtype) + steps * ulp(torch.float32) / 2) + 1e-36
    assert ((out.double() - exact).abs() <= allowed).all()
    assert guards_untouched(out)
    for token in range(min(tokens, 3)):
        alone = x[token : token + 1].clone()
        ops.activate(alone, function)
        assert torch.equal(alone, out[token : token + 1])
    for threads in THREADS:
        ops.set_threads(threads)
        again = x.clone()
        ops.activate(again, function)
        assert torch.equal(again, out)


@pytest.mark.parametrize("function", ops.FUNCTIONS)
def test_activations_keep_their_ends(function: ops.Function, dtype: torch.dtype) -> None:
    x = torch.tensor([[torch.inf, 1e4, 0.0, -1e4, torch.nan]], dtype=dtype)
    out = x.clone()
    ops.activate(out, function)
    ends = [1.0, 1.0, 0.0, -1.0] if function == "tanh" else [torch.inf, float(x[0, 1]), 0.0, 0.0]
    assert torch.equal(out[0, :4], torch.tensor(ends, dtype=dtype))
    assert out[0, 4].isnan()


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_sums_products_and_soft_caps_in_place(tokens: int, width: int, dtype: torch.dtype) -> None:
    start, x = (fresh(tokens, width, dtype=dtype) for _ in range(2))
    logits = 40 * fresh(tokens, width, dtype=torch.float32)
    capped = reference.soft_cap(logits.double(), 30.0)
    for threads in THREADS:
        ops.set_threads(threads)
        total, scaled, soft = (poisoned(tokens, width, dtype=kind) for kind in (dtype, dtype, torch.float32))
        for target, values in ((total, start), (scaled, start), (soft, logits)):
            target.copy_(values)
        ops.add(total, x)
        ops.scale(scaled, 0.22)
        ops.soft_cap(soft, 30.0)
        assert torch.equal(total, reference.add(start, x))
        assert torch.equal(scaled, reference.scale(start, 0.22))
        # A quotient, a tanh and a product are rounded; of one value the reference may be right by chance.
        assert error(soft, capped) <= 3 * ulp(torch.float32)
        assert all(guards_untouched(target) for target in (total, scaled, soft))


def test_silu_mul_keeps_its_ends(dtype: torch.dtype) -> None:
    gates = [torch.inf, -torch.inf, 1e4, -1e4, torch.nan]
    out = poisoned(1, 5, dtype=dtype)
    ops.silu_mul(out, torch.tensor([[*gates, 1, 1, 1, 1, 1]], dtype=dtype))
    # -inf · 0 is NaN by the formula itself, as in the reference.
    assert torch.equal(out.isnan(), torch.tensor([[False, True, False, False, True]]))
    assert out[0, 0] == torch.inf
    assert out[0, 3] == 0


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_embed(tokens: int, width: int, dtype: torch.dtype) -> None:
    table = fresh(99, width, dtype=dtype)
    ids = torch.randint(0, 99, (tokens,), dtype=torch.int32)
    for threads in THREADS:
        ops.set_threads(threads)
        out = poisoned(tokens, width, dtype=dtype)
        ops.embed(out, table, ids)
        assert torch.equal(out, reference.embed(table, ids))
        assert guards_untouched(out)


@pytest.mark.parametrize("scale", [1.0, 7.3])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_embed_packed(tokens: int, width: int, scale: float, isa: str, dtype: torch.dtype) -> None:
    table = fresh(99, width, dtype=dtype)
    table[3, width // 2] = 1e-30  # an exponent that the others do not have
    scaled = table if scale == 1.0 else table * torch.tensor(scale, dtype=dtype)
    packed = ops.pack(table)
    ids = torch.randint(0, 99, (tokens,), dtype=torch.int32)
    ids[:1] = 3
    for threads in THREADS:
        ops.set_threads(threads)
        out = poisoned(tokens, width, dtype=dtype)
        ops.embed_packed(out, packed, ids, scale)
        assert torch.equal(out, reference.embed(scaled, ids))
        assert guards_untouched(out)
