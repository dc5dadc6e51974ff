"""What a machine allows a model: tokens per second when nothing but arithmetic and memory takes time.

Requests of a cell begin and end together, wave after wave, so that their prompts are computed at once, and then each step draws a token for all.
What all prompts share is computed once, before the first wave, and read once a step for all. Of both
takes the longer what it needs: the products, by the rate of a large one (`gemm_gflops`, of bfloat16 or float32, whichever is faster; integers
of 8 bits go at `gain` times that), or the weights and the KV that are read (`read_gbs`). Norms, activations, softmax, sampling, text and HTTP take nothing. So this is
more than any server reaches that reads weights in these bits from memory; Pelton, where it keeps bfloat16 in 12 bits
(docs/decisions/short-weights.md), may pass it with few requests, and so may a model that stays in the caches.
"""

from __future__ import annotations

from dataclasses import dataclass

from models import SHAPES

BYTES = 2
# Bytes of a weight in a layer. Of 8 and 4 bits as Pelton has them: the head stays bfloat16, and groups of 64 have a scale.
WEIGHTS = {"bf16": 2.0, "8 bits": 1.0, "4 bits": 4.5 / 8}


@dataclass(frozen=True)
class Work:
    """Operations and bytes of a step."""

    flop: float
    read: float

    def seconds(self, read_gbs: float, gemm_gflops: float) -> float:
        return max(self.flop / (gemm_gflops * 1e9), self.read / (read_gbs * 1e9))


class Model:
    """One of `SHAPES`, as its sizes say."""

    def __init__(self, name: str, weights: str, gain: float) -> None:
        _, sizes = SHAPES[name]
        self.weight_bytes, self.gain = WEIGHTS[weights], 1.0 if weights == "bf16" else gain
        self.layers: int = sizes["num_hidden_layers"]
        heads, kv_heads, width = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"]
        hidden: int = sizes["hidden_size"]
        attention = hidden * width * 2 * (heads + kv_heads)
        self.body = self.layers * (attention + 3 * hidden * sizes["intermediate_size"])
        self.head = hidden * sizes["vocab_size"]
        # Of one token that looks at one.
        self.look_flop = 4 * self.layers * heads * width
        self.kv_bytes = 2 * self.layers * kv_heads * width * BYTES

    def step(self, rows: int, drawn: int, looks: int, kv: int) -> Work:
        """`rows` tokens are computed and `drawn` of them answered; `looks`: pairs of tokens; `kv`: tokens that are read of the cache."""
        flop = 2.0 * (rows * self.body / self.gain + drawn * self.head) + looks * self.look_flop
        return Work(flop, self.weight_bytes * self.body + BYTES * self.head + kv * self.kv_bytes)


def tokens_per_s(
    name: str,
    weights: str,
    sizes: tuple[int, int, int],
    concurrency: int,
    waves: float,
    read_gbs: float,
    gemm_gflops: float,
    gain: float,
) -> float:
    """`sizes`: tokens of a prompt that all share, of its own, and of the answer. `waves`: how often `concurrency` requests are answered."""
    shared, own, output = sizes
    model = Model(name, weights, gain)
    looks = sum(range(shared + 1, shared + own + 1))
    steps = [model.step(concurrency * own, concurrency, concurrency * looks, shared)]
    for behind in range(own + 1, own + output):
        context = shared + behind
        steps.append(model.step(concurrency, concurrency, concurrency * context, shared + concurrency * behind))
    once = model.step(shared, 0, sum(range(1, shared + 1)), 0).seconds(read_gbs, gemm_gflops) if shared else 0.0
    return waves * concurrency * output / (once + waves * sum(step.seconds(read_gbs, gemm_gflops) for step in steps))
