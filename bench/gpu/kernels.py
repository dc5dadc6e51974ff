"""Each Triton kernel's time against what the card could do: bytes over the same run's copy bandwidth, FLOPs over its matmul.

Prints shape, microseconds, GB/s or TFLOP/s, and the share of the limit. Of a prompt's attention also how many times as long PyTorch's takes
over keys that lie in one piece, by whichever of its ways is fastest; of sampling, a sort. All are measured in turn; medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from pelton_kernels import admit
from pelton_kernels.triton import activation, attention, layer_norm, norm, rope, sampling
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """One kernel at one shape: what it runs, and the bytes and FLOPs that it cannot do without."""

    name: str
    shape: str
    run: Callable[[], None]
    bytes: float
    flops: float = 0.0
    peers: tuple[Callable[[], None], ...] = ()
    """Others' ways to the same."""


@dataclass(frozen=True)
class Result:
    """One line of the report."""

    name: str
    shape: str
    micros: float
    gb_per_s: float
    tflop_per_s: float
    share: float
    over_peer: float | None
    """The fastest peer's time over ours."""


def micros(run: Callable[[], None], on_card: bool) -> float:
    """Median time of one call."""
    if on_card:
        from triton.testing import do_bench

        return float(do_bench(run, warmup=10, rep=50, return_mode="median")) * 1e3
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6


def dense(device: str, tokens: int, width: int, hidden: int) -> list[Case]:
    """Norms, an activation and the gate: pure streaming."""
    x, out, residual = (torch.randn(tokens, width, dtype=torch.bfloat16, device=device) for _ in range(3))
    gain = torch.randn(width, device=device)
    gate_up = torch.randn(tokens, 2 * hidden, dtype=torch.bfloat16, device=device)
    gated = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=device)
    bias, inner = torch.randn(width, device=device), torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device)
    shape = f"{tokens} x {width}"
    add_layer_norm = lambda: layer_norm.add_layer_norm(out, residual, x, gain, bias, 1e-5)  # noqa: E731
    return [
        Case("rms_norm", shape, lambda: norm.rms_norm(out, x, gain, 1e-6), 4.0 * tokens * width),
        Case("add_rms_norm", shape, lambda: norm.add_rms_norm(out, residual, x, gain, 1e-6), 8.0 * tokens * width),
        Case("add_layer_norm", shape, add_layer_norm, 8.0 * tokens * width),
        Case("gelu_erf", f"{tokens} x {hidden}", lambda: activation.activate(inner, "gelu_erf"), 4.0 * tokens * hidden),
        Case("silu_mul", f"{tokens} x {hidden}", lambda: activation.silu_mul(gated, gate_up), 6.0 * tokens * hidden),
    ]


def caches(device: str, blocks: int, heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values in blocks of 16."""
    shape = (blocks, heads, 16, dim)
    return (
        torch.randn(shape, dtype=torch.bfloat16, device=device),
        torch.randn(shape, dtype=torch.bfloat16, device=device),
    )


def rotary(device: str, tokens: int) -> Case:
    """Rope and the write of keys and values, 32 query and 8 kv heads of 128."""
    heads, kv_heads, dim = 32, 8, 128
    q = torch.randn(tokens, heads, dim, dtype=torch.bfloat16, device=device)
    k, v = (torch.randn(tokens, kv_heads, dim, dtype=torch.bfloat16, device=device) for _ in range(2))
    k_cache, v_cache = caches(device, -(-tokens // 16), kv_heads, dim)
    table = torch.randn(4096, dim, device=device)
    positions = torch.arange(tokens, dtype=torch.int32, device=device) % 4096
    slots = torch.randperm(k_cache.shape[0] * 16, device=device)[:tokens]
    out = torch.empty_like(q)
    moved = 2.0 * tokens * dim * (2 * heads + 4 * kv_heads)
    run = lambda: rope.rope_kv_write(out, q, k, v, table, positions, k_cache, v_cache, slots)  # noqa: E731
    return Case("rope_kv_write", f"{tokens} x (32+8) x 128", run, moved)


def attended(device: str, name: str, contexts: list[int], counts: list[int]) -> Case:
    """Attention of rows with `counts` new tokens at the end of `contexts`; 32 query and 8 kv heads of 128."""
    heads, kv_heads, dim = 32, 8, 128
    per_row = [-(-context // 16) for context in contexts]
    k_cache, v_cache = caches(device, sum(per_row), kv_heads, dim)
    table = torch.zeros(len(contexts), max(per_row), dtype=torch.int32)
    ids = torch.randperm(sum(per_row)).int()
    first = 0
    for row, blocks in enumerate(per_row):
        table[row, :blocks] = ids[first : first + blocks]
        first += blocks
    offsets = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device)
    starts = torch.tensor([c - n for c, n in zip(contexts, counts, strict=True)], dtype=torch.int32, device=device)
    q = torch.randn(sum(counts), heads, dim, dtype=torch.bfloat16, device=device)
    out, table = torch.empty_like(q), table.to(device)
    run = lambda: attention.paged_attention(out, q, k_cache, v_cache, table, offsets, starts, dim**-0.5)  # noqa: E731
    pairs = sum(n * (c - n) + n * (n + 1) / 2 for c, n in zip(contexts, counts, strict=True))
    moved = 4.0 * kv_heads * dim * sum(contexts) + 4.0 * sum(counts) * heads * dim
    return Case(
        name, f"{len(contexts)} rows, {sum(contexts)} keys, {sum(counts)} tokens", run, moved, 4 * pairs * heads * dim
    )


def drawing(device: str, rows: int, vocabulary: int) -> Case:
    """Tokens by temperature, top-k 50 and top-p 0.9, beside a sort, as PyTorch's users write it. Logits as a model's: few far above the rest."""
    logits = 2 * torch.randn(rows, vocabulary, device=device)
    likely = torch.randint(vocabulary, (rows, min(40, vocabulary)), device=device)
    logits.scatter_add_(1, likely, 4 + 8 * torch.rand(likely.shape, device=device))
    rules = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
    floats = rules.view(torch.float32)
    floats[:, admit.TEMPERATURE], floats[:, admit.TOP_P], floats[:, admit.REPETITION] = 1.0, 0.9, 1.0
    rules[:, admit.TOP_K], rules[:, admit.SEED_LO] = 50, torch.arange(rows)

    def integers(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    outs = (
        integers(rows),
        integers(rows),
        torch.zeros(rows, device=device),
        integers(rows, 0),
        integers(rows, 0).float(),
    )
    slots, masks = torch.arange(rows, device=device).int(), (integers(0, -(-vocabulary // 32)), integers(rows) - 1)
    given = (
        rules.to(device),
        slots,
        integers(rows),
        None,
        integers(rows, 1),
        integers(rows, 1).float(),
        integers(rows, 1),
    )

    def sort() -> None:
        values, ids = logits.sort(dim=1, descending=True)
        values[:, 50:] = -torch.inf
        shares = values.softmax(dim=1)
        shares[shares.cumsum(dim=1) - shares >= 0.9] = 0
        ids.gather(1, shares.multinomial(1))

    run = lambda: sampling.sample(*outs, logits, *given, *masks)  # noqa: E731
    return Case("sampling, top-k and top-p", f"{rows} x {vocabulary}", run, 4.0 * rows * vocabulary, peers=(sort,))


def prompt(device: str, tokens: int) -> Case:
    """A whole prompt's attention, beside PyTorch's."""
    ours = attended(device, "attention prefill", [tokens], [tokens])
    heads, kv_heads, dim = 32, 8, 128
    q = torch.randn(1, heads, tokens, dim, dtype=torch.bfloat16, device=device)
    k, v = (torch.randn(1, kv_heads, tokens, dim, dtype=torch.bfloat16, device=device) for _ in range(2))

    def way(backend: SDPBackend) -> Callable[[], None]:
        def run() -> None:
            with sdpa_kernel(backend):
                scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return run

    ways = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION) if device == "cuda" else (SDPBackend.MATH,)
    return replace(ours, peers=tuple(way(backend) for backend in ways))


def cases(device: str, dry: bool) -> list[Case]:
    """What an 8B model's layers are made of; tiny when dry."""
    if dry:
        rows = attended(device, "attention decode", [20, 40], [1, 1])
        return [*dense(device, 3, 64, 96), rotary(device, 5), rows, prompt(device, 32), drawing(device, 2, 300)]
    return [
        *dense(device, 1, 4096, 14336),
        *dense(device, 8192, 4096, 14336),
        rotary(device, 256),
        rotary(device, 8192),
        attended(device, "attention decode", [1024], [1]),
        attended(device, "attention decode", [4096] * 64, [1] * 64),
        attended(device, "attention decode, skewed", [131072, *[4096] * 31], [1] * 32),
        attended(device, "attention prefill, 64 decoding", [2048, *[2048] * 64], [2048, *[1] * 64]),
        prompt(device, 8192),
        drawing(device, 1, 131_072),
        drawing(device, 128, 131_072),
    ]


def copy_and_matmul(device: str, dry: bool) -> tuple[Callable[[], None], float, Callable[[], None], float]:
    """The two probes: a copy and its bytes, a matmul and its FLOPs."""
    count, side = (1 << 12, 64) if dry else (1 << 30, 8192)
    source, target = (torch.zeros(count, dtype=torch.uint8, device=device) for _ in range(2))
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    c = torch.empty_like(a)

    def copy() -> None:
        target.copy_(source)

    def multiply() -> None:
        torch.mm(a, b, out=c)

    return copy, 2.0 * count, multiply, 2.0 * side**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = "cpu" if args.dry else "cuda"
    rounds = 1 if args.dry else ROUNDS
    copy, copied, multiply, multiplied = copy_and_matmul(device, args.dry)
    results = []
    for case in cases(device, args.dry):
        times, copies, products = [], [], []
        others: list[list[float]] = [[] for _ in case.peers]
        for _ in range(rounds):
            times.append(micros(case.run, not args.dry))
            for peer, seen in zip(case.peers, others, strict=True):
                seen.append(micros(peer, not args.dry))
            copies.append(copied / micros(copy, not args.dry))
            products.append(multiplied / micros(multiply, not args.dry))
        took = statistics.median(times)
        # The roofline: whichever of the two limits takes longer.
        bound = max(case.bytes / statistics.median(copies), case.flops / statistics.median(products))
        over = min(map(statistics.median, others)) / took if others else None
        result = Result(
            case.name, case.shape, took, case.bytes / took / 1e3, case.flops / took / 1e6, bound / took, over
        )
        results.append(result)
        print(
            f"{result.name:<26}{result.shape:<36}{result.micros:10.1f} us {result.gb_per_s:8.0f} GB/s "
            f"{result.tflop_per_s:7.1f} TFLOP/s {result.share:6.2f} of the limit"
            + (f", PyTorch takes {over:.2f} times as long" if over is not None else ""),
            flush=True,
        )
    if args.json:
        card = torch.cuda.get_device_name()
        args.json.write_text(json.dumps({"card": card, "results": [asdict(r) for r in results]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
