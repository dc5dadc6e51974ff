"""Trains the demo model from nothing: texts, tokenizer, weights, and the folder that the wheel ships.

    OMP_WAIT_POLICY=passive python bench/demo/train.py --out pyworker/pelton/demo

The same seed and steps give the same texts and the same schedule. A run that was stopped goes on from its last checkpoint. Threads that
wait should sleep (OMP_WAIT_POLICY): on a shared machine spinning ones cost more than the sums.
"""

import argparse
import itertools
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from attention import PLAIN
from batches import Batch, batches, copying
from export import export
from layout import lay_out
from model import CONFIG
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM
from vocabulary import train_tokenizer

TOKENS = 4096  # of a batch, padding included
PEAK = 3e-3
WARM_UP = 30  # steps
# In the last fifth of the steps the rate falls straight to nothing.
COOL_DOWN = 0.2
# The first steps teach nothing but to copy; then one batch in so many, so that it is not forgotten.
ONLY_COPYING = 80
COPYING_EVERY = 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write the model to")
    parser.add_argument(
        "--run", type=Path, default=Path("bench/models/demo"), help="where the run keeps tokenizer and checkpoint"
    )
    parser.add_argument("--steps", type=int, default=2350)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optimizer", choices=["muon", "adamw"], default="muon")
    parser.add_argument("--eager", action="store_true", help="without torch.compile, which needs a C++ compiler")
    return parser.parse_args()


def rate(step: int, steps: int) -> float:
    """Share of the peak rate: a short rise, a plateau, a straight fall at the end."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / (COOL_DOWN * steps))


def is_copying(step: int, steps: int) -> bool:
    """Whether a step's batch is random tokens said twice; not at the end, where the rate is low and the texts count."""
    return step < ONLY_COPYING or (step % COPYING_EVERY == 0 and step < (1 - COOL_DOWN) * steps)


class Optimizers:
    """Muon for the matrices between the layers, AdamW for embeddings and norms."""

    def __init__(self, model: Qwen3ForCausalLM, muon: bool) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        if muon:
            self.parts: list[torch.optim.Optimizer] = [
                torch.optim.Muon(matrices, lr=PEAK, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW(others, lr=PEAK, betas=(0.9, 0.97), weight_decay=0.0, fused=True),
            ]
        else:
            self.parts = [
                torch.optim.AdamW(
                    [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                    lr=PEAK,
                    betas=(0.9, 0.97),
                    fused=True,
                )
            ]

    def step(self, share: float) -> None:
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = PEAK * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, object]]:
        return [part.state_dict() for part in self.parts]

    def load(self, states: list[dict[str, object]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean loss over the tokens to be learned; only their logits are computed. bf16 products, float32 sums and weights."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[:, :-1]
        logits = F.linear(hidden[batch.learned], model.lm_head.weight)
    return F.cross_entropy(logits.float(), batch.ids[:, 1:][batch.learned])


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.run.mkdir(parents=True, exist_ok=True)
    tokenizer_file, checkpoint = options.run / "tokenizer.json", options.run / "checkpoint.pt"
    if not tokenizer_file.exists():
        print("training the tokenizer", flush=True)
        train_tokenizer(options.seed).save(str(tokenizer_file))
    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).train()
    model.set_attn_implementation(PLAIN)
    lay_out(model, tokenizer, options.seed)
    if not options.eager:
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=True)  # a quarter faster: norms and rope are fused
    optimizers = Optimizers(model, options.optimizer == "muon")
    done, tokens, seconds = 0, 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizers.load(saved["optimizers"])
        done, tokens, seconds = saved["done"], saved["tokens"], saved["seconds"]
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {options.steps} steps, {done} done", flush=True)

    started, average, saved_at = time.monotonic() - seconds, math.nan, time.monotonic()
    for step, batch in enumerate(itertools.islice(batches(tokenizer, options.seed, TOKENS), options.steps)):
        if step < done:
            continue
        copies = is_copying(step, options.steps)
        if copies:
            batch = copying(step, TOKENS)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(rate(step, options.steps))
        tokens += batch.ids.numel()
        value = loss.item()
        if not copies:
            average = value if math.isnan(average) else 0.97 * average + 0.03 * value
        elif step % 20 == 0:
            print(f"copying: loss {value:.3f}", flush=True)
        seconds = time.monotonic() - started
        if step % 20 == 19:
            left = (options.steps - step - 1) * seconds / (step + 1)
            print(
                f"step {step + 1}/{options.steps}  loss {average:.3f}  {tokens / 1e6:.1f} M tokens  "
                f"{tokens / seconds:.0f} tokens/s  {seconds / 60:.1f} min, {left / 60:.1f} min left",
                flush=True,
            )
        last = step == options.steps - 1
        if last or time.monotonic() - saved_at > 120:
            saved_at = time.monotonic()
            state = {
                "model": model.state_dict(),
                "optimizers": optimizers.state(),
                "done": step + 1,
                "tokens": tokens,
                "seconds": seconds,
            }
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    export(model.state_dict(), tokenizer_file, options.out)
    facts = {"steps": options.steps, "tokens": tokens, "minutes": round(seconds / 60, 1), "seed": options.seed}
    (options.run / "run.json").write_text(json.dumps(facts) + "\n")
    print(f"written to {options.out}: {facts}", flush=True)


if __name__ == "__main__":
    main()
