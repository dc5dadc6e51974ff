"""On the card: sampling by Triton beside the reference that sorts. Microseconds (median), also from a CUDA graph; tokens compared.

PYTHONPATH=pyworker:kernels python3 bench/gpu/sampling.py        on a machine with a card; 15 s on an H200
"""

from __future__ import annotations

import time

import torch
import triton.testing
from pelton_kernels import admit, reference
from pelton_kernels.triton import sampling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(rows, vocabulary) for vocabulary in (151_936, 131_072) for rows in (1, 32, 128)]
RULES = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top-k 50, top-p 0.9": {"temperature": 1.0, "top_k": 50, "top_p": 0.9},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "temp 1, 5 logprobs": {"temperature": 1.0, "logprobs": 5},
    "top-p 0.9, T 4 (flat)": {"temperature": 4.0, "top_p": 0.9},
}


def inputs(rows: int, vocabulary: int, rules: dict[str, float]) -> list[torch.Tensor | None]:
    """Logits as of a language model: a few dozen tokens far above a broad rest."""
    logits = 2 * torch.randn(rows, vocabulary, device=DEVICE)
    likely = torch.randint(0, vocabulary, (rows, 40), device=DEVICE)
    logits.scatter_add_(1, likely, 4 + 8 * torch.rand(rows, 40, device=DEVICE))
    params = torch.zeros(rows, admit.WORDS, dtype=torch.int32)
    values = params.view(torch.float32)
    values[:, admit.TEMPERATURE] = rules["temperature"]
    values[:, admit.TOP_P] = rules.get("top_p", 1.0)
    values[:, admit.REPETITION] = 1.0
    params[:, admit.TOP_K] = int(rules.get("top_k", 0))
    params[:, admit.SEED_LO] = torch.arange(rows) * 77 + 5
    if "logprobs" in rules:
        params[:, admit.FLAGS], params[:, admit.TOP_LOGPROBS] = admit.LOGPROBS, int(rules["logprobs"])

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    return [
        logits, params.to(DEVICE), torch.arange(rows, dtype=torch.int32, device=DEVICE), zeros(rows) + 100, None,
        zeros(rows, 1), zeros(rows, 1, dtype=torch.float32), zeros(rows, 1), zeros(0, -(-vocabulary // 32)), zeros(rows) - 1,
    ]  # fmt: skip


def main() -> None:
    torch.manual_seed(1)
    began = time.monotonic()
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "no card")
    print(
        f"{'':24}{'rows':>5}{'vocab':>8}{'new µs':>10}{'graph µs':>10}{'old µs':>10}{'old/new':>9}  tokens apart, by at most"
    )
    for rows, vocabulary in SHAPES:
        for name, rules in list(RULES.items())[: 6 if vocabulary == 151_936 else 3]:
            given = inputs(rows, vocabulary, rules)
            ids = torch.zeros(2, rows, dtype=torch.int32, device=DEVICE)
            top_ids = torch.zeros(rows, 5, dtype=torch.int32, device=DEVICE)
            outs = [ids[0], ids[1], torch.zeros(rows, device=DEVICE), top_ids, top_ids.float()]

            def new(outs=outs, given=given) -> None:
                sampling.sample(*outs, *given)

            def old(given=given) -> reference.Sampled:
                return reference.sample(*given, 5)

            new()
            expected = old()
            drawn = outs[0].long()
            gap = expected.noisy_scores.gather(1, expected.tokens[:, None].long()) - expected.noisy_scores.gather(
                1, drawn[:, None]
            )
            apart = f"{int((drawn != expected.tokens).sum())}, {float(gap.max()):.1e}"
            apart += "" if torch.equal(outs[3], expected.top_ids) else "  LIKELIEST IDS DIFFER"
            apart += "" if float((outs[4] - expected.top_logprobs).abs().max()) < 1e-5 else "  LOGPROBS DIFFER"
            del expected, gap
            if DEVICE == "cpu":
                print(f"{name:24}{rows:5}{vocabulary:8}  {apart}")
                continue
            ours = 1000 * triton.testing.do_bench(new, warmup=5, rep=30, return_mode="median")
            graph = 1000 * triton.testing.do_bench_cudagraph(new, rep=20, return_mode="median")
            theirs = 1000 * triton.testing.do_bench(old, warmup=5, rep=30, return_mode="median")
            line = f"{name:24}{rows:5}{vocabulary:8}{ours:10.1f}{graph:10.1f}{theirs:10.1f}{theirs / ours:9.1f}"
            print(f"{line}  {apart}", flush=True)
    print(f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
