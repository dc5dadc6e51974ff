"""Recordings and the programs made of them: what becomes a call, what a call-back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pelton_kernels import ops
from pelton_kernels._native import Program
from pelton_kernels.program import Counts, build
from pelton_kernels.recording import Call, CallBack, Recording, RecordingError, record, span
from torch import Tensor

WIDTH, VOCABULARY = 40, 11
TABLE = torch.zeros(VOCABULARY, WIDTH)
PLACES = torch.randn(12, WIDTH)
Body = Callable[[Tensor, Tensor], Tensor]


class Model:
    """Embedding, something, head. Without attention: those who need it test whole models."""

    def __init__(self, dtype: torch.dtype, body: Body) -> None:
        self.table = torch.randn(VOCABULARY, WIDTH).to(dtype)
        self.gain = torch.rand(WIDTH)
        self.head = ops.pack(torch.randn(VOCABULARY, WIDTH).to(dtype))
        self.body = body

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        ids, drawn_at = inputs["ids"], inputs["drawn_at"]
        x = self.table.new_empty(len(ids), WIDTH)
        ops.embed(x, self.table, ids)
        x = self.body(x, self.gain)
        picked = x.new_empty(len(drawn_at), WIDTH)
        ops.embed(picked, x, drawn_at)
        logits = torch.empty(len(drawn_at), VOCABULARY)
        ops.linear_f32(logits, picked, self.head)
        return logits


def inputs(tokens: int, draws: int) -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (tokens,), dtype=torch.int32)
    nothing = {name: torch.zeros(1, dtype=torch.int32) for name in ("block_table", "row_offsets", "row_starts")}
    places = {"positions": torch.arange(tokens, dtype=torch.int32), "kv_slots": torch.arange(tokens)}
    return {"ids": ids, "drawn_at": torch.arange(draws, dtype=torch.int32) * 2, **places, **nothing}


def recorded(model: Model, tokens: int, draws: int) -> Recording:
    given = inputs(tokens, draws)
    return record(lambda: model(given), given)


def program_of(model: Model, dtype: torch.dtype) -> Program:
    sizes = Counts(5, 2), Counts(8, 3)
    return build(dtype, (recorded(model, 5, 2), recorded(model, 8, 3)), sizes).program


def run(program: Program, given: dict[str, Tensor]) -> Tensor:
    out = torch.empty(len(given["drawn_at"]), VOCABULARY)
    program.run(**{name: span(tensor) for name, tensor in given.items()}, out=span(out))
    return out


def norm(x: Tensor, gain: Tensor) -> Tensor:
    out = torch.empty_like(x)
    ops.rms_norm(out, x, gain, 1e-6)
    return out


def halves(x: Tensor, gain: Tensor) -> Tensor:
    """A part that is cut out, and heads that are rows to a kernel, in place and apart."""
    first = x[:, : WIDTH // 2].contiguous()
    gated = first.new_empty(len(x), WIDTH // 4)
    ops.silu_mul(gated, first)
    heads = gated.view(-1, 5)
    ops.rms_norm(heads, heads, gain[:5], 1e-6)
    again = torch.empty_like(gated)
    ops.rms_norm(again.view(-1, 5), heads, gain[5:10], 1e-6)
    residual = torch.zeros_like(x)
    out = torch.empty_like(x)
    ops.add_rms_norm(out, residual, norm(x, gain), gain, 1e-6)
    return torch.cat([again, out[:, WIDTH // 4 :]], dim=1)


def layer_normed(x: Tensor, gain: Tensor) -> Tensor:
    """A parallel block without attention: two norms of one sum, activations, and norms by group."""
    residual = torch.zeros_like(x)
    first, second, grouped = (torch.empty_like(x) for _ in range(3))
    ops.add_layer_norm(first, residual, x, gain, None, 1e-5)
    ops.layer_norm(second, residual, gain, gain, 1e-5)
    for part, function in ((first, "gelu_erf"), (second, "gelu_tanh"), (first, "relu"), (second, "silu")):
        ops.activate(part, function)
    ops.add(first, second)
    ops.layer_norm(grouped, first, gain, None, 1e-5, WIDTH // 4)
    out = torch.empty_like(x)
    ops.add_layer_norm(out, residual, grouped, gain, gain, 1e-5)
    return out


BODIES: dict[str, Body] = {
    "norm": norm,
    "halves": halves,
    "layer norms": layer_normed,
    "torch": lambda x, gain: torch.sigmoid(x).mul_(gain),
    "in place": lambda x, gain: x.add_(gain).mul_(2),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_program_gives_the_bits_of_what_was_recorded_at_any_size(name: str, isa: str, dtype: torch.dtype) -> None:
    model = Model(dtype, BODIES[name])
    program = program_of(model, dtype)
    for tokens, draws in ((1, 1), (3, 2), (70, 30), (2, 0)):
        given = inputs(tokens, draws)
        assert torch.equal(run(program, given), model(given))


@pytest.mark.parametrize("scale", [1.0, 5.656854])
def test_rows_of_a_packed_table_are_recorded(scale: float, isa: str, dtype: torch.dtype) -> None:
    class Shared(Model):
        def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
            x = torch.empty(len(inputs["ids"]), WIDTH, dtype=dtype)
            ops.embed_packed(x, self.head, inputs["ids"], scale)
            logits = torch.empty(len(inputs["drawn_at"]), VOCABULARY)
            picked = x.new_empty(len(inputs["drawn_at"]), WIDTH)
            ops.embed(picked, norm(x, self.gain), inputs["drawn_at"])
            ops.linear_f32(logits, picked, self.head)
            return logits

    model = Shared(dtype, norm)
    program = program_of(model, dtype)
    for tokens, draws in ((1, 1), (70, 30)):
        given = inputs(tokens, draws)
        assert torch.equal(run(program, given), model(given))


def test_views_and_allocations_are_no_calls_and_cuts_are_kernels() -> None:
    calls = recorded(Model(torch.float32, halves), 4, 2).calls
    names = [call.name for call in calls if isinstance(call, Call)]
    norms = ["rms_norm", "rms_norm", "clear", "rms_norm", "add_rms_norm"]
    assert names == ["embed", "columns", "silu_mul", *norms, "pick", "linear"]
    others = [call.name for call in calls if isinstance(call, CallBack)]
    assert others == ["aten.cat.default"]


def by_position(model: Model, given: dict[str, Tensor]) -> Tensor:
    """Its logits, with a second table that positions look into."""

    def body(x: Tensor, _: Tensor) -> Tensor:
        placed = torch.empty_like(x)
        ops.embed(placed, PLACES, given["positions"])
        ops.add(x, placed)
        return x

    model.body = body
    return model(given)


def test_a_table_may_be_looked_into_by_position(isa: str) -> None:
    model = Model(torch.float32, norm)
    recordings = []
    for tokens, draws in ((5, 2), (8, 3)):
        given = inputs(tokens, draws)
        recordings.append(record(lambda given=given: by_position(model, given), given))  # type: ignore[misc]
    program = build(torch.float32, (recordings[0], recordings[1]), (Counts(5, 2), Counts(8, 3))).program
    assert program.call_backs == 0
    for tokens, draws in ((1, 1), (9, 2)):
        given = inputs(tokens, draws)
        given["positions"] = given["positions"].flip(0).contiguous()
        assert torch.equal(run(program, given), by_position(model, given))
    given["positions"] = given["positions"] + len(PLACES)
    with pytest.raises(ValueError, match="`ids` is 20 at index 0; allowed: 0 to 11"):
        run(program, given)


def again(x: Tensor, ids: Tensor) -> Tensor:
    out = torch.empty_like(x)
    ops.embed(out, TABLE, ids)
    return out


REFUSED: dict[str, Body] = {
    "looks at a value": lambda x, _: x if x.sum() > 0 else x * 2,
    "does different things": lambda x, gain: norm(x, gain) if len(x) > 6 else x,
    "is given something else": lambda x, gain: x * (len(x) / 3),
    "is a part of a larger tensor": lambda x, gain: norm(torch.cat([x, x])[: len(x)], gain),
    "is computed anew": lambda x, gain: norm(x, gain * 2),
    "something else than the step's `ids`": lambda x, gain: again(x, torch.zeros(len(x), dtype=torch.int32)),
    "memory that is not the step's own": lambda x, gain: x * gain.mul_(1.0),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_can_be_no_program_is_refused_by_reason(why: str) -> None:
    with pytest.raises(RecordingError, match=why):
        program_of(Model(torch.float32, REFUSED[why]), torch.float32)
