"""What an op refuses: a ValueError that names the argument, what it is, and what is allowed; and nothing is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pelton_kernels import ops
from pelton_kernels.ops import HeadNorm, Scheme
from torch import Tensor

F32 = torch.float32


def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def rope(**changed: Tensor | HeadNorm) -> None:
    tensors = {
        "out": torch.zeros(2, 4, 8), "q": torch.zeros(2, 4, 8), "k": torch.zeros(2, 2, 8), "v": torch.zeros(2, 2, 8),
        "cos_sin": torch.zeros(5, 8),
        "positions": ints(0, 4), "k_cache": torch.zeros(3, 2, 4, 8), "v_cache": torch.zeros(3, 2, 4, 8),
        "kv_slots": ints(0, 11, dtype=torch.int64),
    }  # fmt: skip
    ops.rope_kv_write(**(tensors | changed))


def attention(**changed: Tensor | float) -> None:
    tensors = {
        "out": torch.zeros(2, 4, 8), "q": torch.zeros(2, 4, 8), "k_cache": torch.zeros(3, 2, 4, 8),
        "v_cache": torch.zeros(3, 2, 4, 8), "block_table": ints(2, 1).view(1, 2), "row_offsets": ints(0, 2),
        "row_starts": ints(3),
    }  # fmt: skip
    ops.paged_attention(**(tensors | changed), scale=1.0)


def sampling(**changed: Tensor | None) -> None:
    tensors = {
        "out_tokens": ints(-1, -1), "out_flags": ints(-1, -1), "out_chosen": torch.zeros(2),
        "out_top_ids": torch.zeros(2, 1, dtype=torch.int32), "out_top_logprobs": torch.zeros(2, 1),
        "logits": torch.zeros(2, 9), "params": torch.zeros(3, 24, dtype=torch.int32), "slots": ints(2, 0),
        "positions": ints(1, 1), "counts": None, "bias_ids": torch.zeros(3, 0, dtype=torch.int32),
        "bias_values": torch.zeros(3, 0), "suppressed": torch.zeros(3, 0, dtype=torch.int32),
    }  # fmt: skip
    ops.sample(**(tensors | changed))


ends = ints(0, 2)  # one row
INT8 = Scheme(8, 0, "int8")


def codes(**changed: Tensor) -> None:
    tensors = {
        "codes": torch.zeros(3, 16, dtype=torch.uint8), "scales": torch.zeros(3, 2),
        "zeros": torch.zeros(3, 2, dtype=torch.uint8), "order": torch.arange(16).int(),
    }  # fmt: skip
    ops.pack_codes(**(tensors | changed), dtype=F32, scheme=Scheme(4, 8, "float"))


def params(word: int, value: int) -> Tensor:
    changed = torch.zeros(3, 24, dtype=torch.int32)
    changed[2, word] = value
    return changed


def codes_cache(width: int) -> Tensor:
    return torch.zeros(3, 2, 4, width, dtype=torch.int8)


x, y = torch.zeros(2, 6), torch.zeros(2, 6)

CASES: list[tuple[Callable[[], None], str]] = [
    (lambda: ops.embed(x, torch.zeros(5, 6), ints(0, 5)), "`ids` is 5 at index 1; allowed: 0 to 4"),
    (lambda: ops.embed(x, torch.zeros(5, 6), ints(-1, 0)), "`ids` is -1 at index 0"),
    (lambda: ops.embed(x, torch.zeros(5, 7), ints(0, 0)), r"`table` has the shape \(5, 7\); allowed: \(5, 6\)"),
    (lambda: ops.embed(x, torch.zeros(5, 6), ints(0, 0, dtype=torch.int64)), "`ids` is int64; allowed: int32"),
    (lambda: ops.embed_packed(x, ops.pack(x), ints(0, 2)), "`ids` is 2 at index 1; allowed: 0 to 1"),
    (lambda: ops.embed_packed(x, ops.pack(x), ints(-1, 0)), "`ids` is -1 at index 0"),
    (lambda: ops.embed_packed(x, ops.pack(x), ints(0)), "`ids` has the shape"),
    (lambda: ops.embed_packed(x, ops.pack(torch.zeros(2, 7)), ints(0, 0)), "`out` has the shape"),
    (lambda: ops.embed_packed(x.bfloat16(), ops.pack(x), ints(0, 0)), "`out` is bfloat16; allowed: float32"),
    (
        lambda: ops.embed_packed(x, ops.quantize(x, torch.float32, ops.Scheme(8, 0, "int8")), ints(0, 0)),
        "`table` is quantised; allowed: float32, bfloat16",
    ),
    (lambda: ops.rms_norm(x.half(), x, x[0], 1e-6), "`out` is float16; allowed: float32, bfloat16"),
    (lambda: ops.rms_norm(torch.zeros(2, 6), x, torch.zeros(5), 1e-6), "`gain` has the shape"),
    (lambda: ops.rms_norm(torch.zeros(2, 6), torch.zeros(6, 2).T, torch.zeros(6), 1e-6), "`x` has the strides"),
    (lambda: ops.rms_norm(torch.zeros(2, 6), x.bfloat16(), x[0], 1e-6), "`x` is bfloat16; allowed: float32"),
    (
        lambda: ops.rms_norm(torch.zeros(2, 6), x, torch.zeros(6).bfloat16(), 1e-6),
        "`gain` is bfloat16; allowed: float32",
    ),
    (lambda: ops.layer_norm(y, x, torch.zeros(5), None, 1e-6), "`gain` has the shape"),
    (
        lambda: ops.layer_norm(y, x, torch.zeros(6), torch.zeros(6).bfloat16(), 1e-6),
        "`bias` is bfloat16; allowed: float32",
    ),
    (lambda: ops.layer_norm(y, x, torch.zeros(6), None, 1e-6, 4), "`group` is 4; allowed: a divisor of the width 6"),
    (lambda: ops.layer_norm(x, x, torch.zeros(6), None, 1e-6), "`out` shares memory with `x`"),
    (lambda: ops.add_layer_norm(x, y, y, torch.zeros(6), None, 1e-6), "`residual` shares memory with `x`"),
    (lambda: ops.activate(x, "sine"), "`function` is sine; allowed: silu, gelu_tanh, gelu_erf, relu, tanh"),  # type: ignore[arg-type]
    (lambda: ops.activate(x.half(), "relu"), "`x` is float16; allowed: float32, bfloat16"),
    (lambda: ops.soft_cap(x.bfloat16(), 3.0), "`x` is bfloat16; allowed: float32"),
    (lambda: ops.pool_rows(y[:1], x, ends, ends[1:], "max"), "`pooling` is max; allowed: first, last, mean"),  # type: ignore[arg-type]
    (lambda: ops.pool_rows(x, x, ends, ends[1:], "mean"), r"`out` has the shape \(2, 6\); allowed: \(1, 6\)"),
    (lambda: ops.pool_rows(y[:1], x, ends, ends[1:], "mean"), "`at` is 2 at index 0; allowed: 0 to 1"),
    (lambda: ops.pool_rows(y[:1], x, ends - 1, ends[:1], "mean"), "`row_offsets` goes from -1 to 1"),
    (lambda: ops.pool_rows(x[:1], x, ends, ends[:1], "mean"), "`out` shares memory with `x`"),
    (lambda: ops.embed_segments(x, y[:1], ends, ends, 3), "`table` is of 1 rows; allowed: 1 and more, and 2"),
    (lambda: ops.embed_segments(x, y, ends, ends + 1, 3), "`row_offsets` goes from 1 to 3; allowed: 0 to"),
    (lambda: ops.embed_segments(x, x, ends, ends, None), "`out` shares memory with `table`"),
    (lambda: ops.soft_cap(x, 0.0), "`cap` is 0.0; allowed: a number above 0"),
    (lambda: ops.add(x, x), "`residual` shares memory with `x`"),
    (lambda: attention(window=0), "`window` is 0; allowed: 1 and more"),
    (lambda: attention(soft_cap=-1.0), "`soft_cap` is -1.0; allowed: a number above 0"),
    (lambda: attention(sinks=torch.zeros(3)), "`sinks` has the shape"),
    (lambda: attention(slopes=torch.zeros(3)), "`slopes` has the shape"),
    (lambda: attention(slopes=torch.zeros(4), is_whole=True), "`slopes` is given for whole rows"),
    (lambda: ops.add_rms_norm(x, x, torch.zeros(2, 6), torch.zeros(6), 1e-6), "`out` shares memory with `residual`"),
    (lambda: ops.silu_mul(x, torch.zeros(2, 6)), r"`gate_up` has the shape \(2, 6\); allowed: \(2, 12\)"),
    (lambda: ops.pack(torch.zeros(0, 4)), "`weight` is"),
    (lambda: ops.pack(x.int()), "`weight` is torch.int32; allowed: torch.float32, torch.bfloat16, torch.float16"),
    (lambda: ops.pack([x, torch.zeros(2, 5)]), r"`weight` has the shape \(2, 5\); allowed: \(2, 6\)"),
    (lambda: ops.quantize(x, F32, Scheme(4, 12, "int8")), "`group` is 12; allowed: multiples of 8 up to 2048"),
    (lambda: codes(scales=torch.zeros(3, 3)), r"`scales` has the shape \(3, 3\); allowed: \(3, 2\)"),
    (lambda: codes(zeros=torch.zeros(3, 2)), "`zeros` is float32; allowed: uint8"),
    (lambda: codes(order=torch.arange(1, 17).int()), "`order` is 16 at index 15; allowed: 0 to 15"),
    (lambda: ops.linear(x, x, ops.pack(torch.zeros(6, 6))), "`out` shares memory with `x`"),
    (lambda: ops.linear(x, x, ops.quantize(torch.zeros(6, 6), F32, INT8)), "`out` shares memory with `x`"),
    (lambda: ops.linear(x, torch.zeros(2, 5), ops.pack(torch.zeros(6, 4))), "`x` has the shape"),
    (lambda: ops.linear(x, x.bfloat16(), ops.pack(torch.zeros(6, 6))), "`x` is bfloat16; allowed: float32"),
    (lambda: rope(positions=ints(0, 5)), "`positions` is 5 at index 1; allowed: 0 to 4"),
    (lambda: rope(kv_slots=ints(12, 0, dtype=torch.int64)), "`kv_slots` is 12 at index 0; allowed: 0 to 11"),
    (lambda: rope(cos_sin=torch.zeros(5, 7)), "`cos_sin` is 7 wide; allowed: an even number up to 8"),
    (lambda: rope(v=torch.zeros(2, 1, 8)), "`v` has the shape"),
    (
        lambda: rope(k=torch.zeros(2, 8, 2).mT),
        r"`k` has the strides \(16, 1, 2\); allowed: heads whose columns lie together",
    ),
    (
        lambda: rope(norm=HeadNorm(torch.zeros(8), torch.zeros(7), 0.1)),
        r"`norm.k_gain` has the shape \(7,\); allowed: \(8,\)",
    ),
    (lambda: rope(k_cache=codes_cache(8)), r"`k_cache` has the shape \(3, 2, 4, 8\); allowed: \(3, 2, 4, 12\)"),
    (lambda: rope(k_cache=codes_cache(12)), r"`v_cache` is float32; allowed: int8"),
    (lambda: attention(v_cache=codes_cache(12)), r"`v_cache` is int8; allowed: float32"),
    (lambda: attention(k_cache=codes_cache(12)), r"`v_cache` is float32; allowed: int8"),
    (lambda: attention(block_table=ints(2, 3).view(1, 2)), "`block_table` is 3 at index 1; allowed: 0 to 2"),
    (lambda: attention(row_starts=ints(7)), "`row_starts` is 7 at index 0"),
    (lambda: attention(row_offsets=ints(0, 1)), "`row_offsets` goes from 0 to 1"),
    (lambda: attention(out=torch.zeros(2, 3, 8), q=torch.zeros(2, 3, 8)), "`out` is 3 heads; allowed: a multiple"),
    (lambda: sampling(slots=ints(0, 3)), "`slots` is 3 at index 1; allowed: 0 to 2"),
    (lambda: sampling(params=params(11, 2)), "`params` asks for 2 likeliest tokens in slot 2"),
    (lambda: sampling(params=params(15, 1)), "`bias_ids` holds 0 ids per slot"),
    (lambda: sampling(params=params(1, 1)), "`counts` is None"),
    (lambda: sampling(logits=torch.zeros(2, 9, dtype=torch.bfloat16)), "`logits` is bfloat16; allowed: float32"),
    (lambda: ops.set_threads(0), "`threads` is 0; allowed: 1 and more"),
    (lambda: ops.force_isa("sse9"), "`name` is sse9; allowed here: "),
    (lambda: ops.numerics_id("meta", F32), "`device` is meta; allowed: cpu, cuda"),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_it_is_refused(call: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_cases_differ_from_a_good_call_by_one_argument() -> None:
    rope()
    attention()
    sampling()
    codes()


def test_numerics_id_names_class_format_scheme_and_version() -> None:
    for isa in ops.available_isas():
        ops.force_isa(isa)
        assert ops.numerics_id("cpu", torch.bfloat16) == f"cpu-{isa}-bfloat16-4"
        assert ops.numerics_id(torch.device("cpu"), torch.float32) == f"cpu-{isa}-float32-4"
        assert ops.numerics_id("cpu", torch.float32, INT8) == f"cpu-{isa}-float32-int8-4"
        scheme = Scheme(4, 64, "float")
        version = 5 if isa == "amx" else 4  # products in tiles came later
        assert ops.numerics_id("cpu", torch.bfloat16, scheme) == f"cpu-{isa}-bfloat16-int4-g64-a16-{version}"
    ops.force_isa(None)
