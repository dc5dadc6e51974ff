"""Programs against the models that they were recorded from: the same bits, in any company, and no Python while they run."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pelton.inspect import Machine, decode_rows, report
from pelton.layers.norm import ResidualNorm
from pelton.loading.load import Loaded
from pelton.models.decoder import Decoder
from pelton.program import Rows, record_model, run_model, run_program
from pelton.step import Step
from pelton.worker.steps import StepLoop, steps_for
from pelton_kernels import ops
from pelton_kernels._native import WorkerEnd
from plans import CAPACITIES, Admit, Plan, Row, table
from random_checkpoints import VOCAB, write
from safetensors.torch import load_file, save_file
from tiny_router import Request, TinyRouter, eagerly, load_whole

# Between them they make every call that any variant makes.
PROGRAMS = ["llama", "llama-tied-biased", "qwen3-tied-yarn", "gemma2", "gemma3", "granite", "olmo2", "phi3"]
PROGRAMS += ["gpt2", "gpt2-scaled", "gpt_neox", "cohere-normed", "bloom"]
# And what KV is kept as: with codes a full attention, windows with soft caps, and the other norms and rotations.
KEPT_AS = [*((variant, "auto") for variant in PROGRAMS), ("llama", "int8"), ("gemma2", "int8"), ("gpt_neox", "int8")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    yield
    ops.set_threads(1)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


def any_rows(loaded: Loaded, source: random.Random) -> Rows:
    """Rows of any lengths, from position 0, in blocks anywhere; some of them draw."""
    size, kv = loaded.kv.shape.block_size, loaded.kv
    counts = [source.choice([1, 1, 2, 7, 40]) for _ in range(source.randint(1, 6))]
    starts = [0] * len(counts)
    width = max(-(-count // size) for count in counts)
    kinds = len(kv.shape.kinds)
    blocks = source.sample(range(kv.blocks), kinds * width * len(counts))
    tables = torch.tensor(blocks, dtype=torch.int32).view(kinds, len(counts), width)
    row = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    positions = torch.cat([torch.arange(count) for count in counts])
    ends = torch.tensor(counts).cumsum(0)
    step = Step(
        ids=torch.tensor([source.randrange(VOCAB) for _ in positions], dtype=torch.int32),
        positions=positions.int(),
        kv_slots=tables[:, row, positions // size].long() * size + positions % size,
        block_table=tables,
        row_offsets=torch.cat([torch.zeros(1), ends]).int(),
        row_starts=torch.tensor(starts, dtype=torch.int32),
        kv=kv,
    )
    drawn = [at for at in (ends - 1).tolist() if source.random() < 0.8]
    return Rows(step, torch.tensor(drawn, dtype=torch.int32))


def written(loaded: Loaded, rows: Rows) -> torch.Tensor:
    """The bytes of all keys and values that this step has written."""
    size, slots = loaded.kv.shape.block_size, rows.step.kv_slots.flatten()
    caches = [cache for pair in loaded.kv.layers for cache in pair]
    return torch.stack([cache[slots // size, :, slots % size] for cache in caches]).view(torch.uint8)


@pytest.mark.parametrize(("variant", "kv_dtype"), KEPT_AS)
@torch.inference_mode()
def test_a_program_gives_the_models_bits_for_any_rows_and_threads(
    tmp_path: Path, variant: str, kv_dtype: str, dtype: torch.dtype
) -> None:
    loaded = load_whole(write(tmp_path / variant, variant, dtype), kv_dtype=kv_dtype)
    assert loaded.program
    assert isinstance(loaded.model, Decoder)
    assert loaded.is_invariant
    source = random.Random(variant)
    for _ in range(12):
        rows = any_rows(loaded, source)
        ops.set_threads(source.randint(1, 3))
        got = run_program(loaded.program, rows, VOCAB)
        kv = written(loaded, rows)
        assert torch.equal(got, run_model(loaded.model, rows))
        assert torch.equal(kv, written(loaded, rows))


@pytest.mark.parametrize(("variant", "kv_dtype"), KEPT_AS)
def test_whole_requests_draw_the_same_with_and_without_python(
    tmp_path: Path, variant: str, kv_dtype: str, dtype: torch.dtype
) -> None:
    loaded = load_whole(write(tmp_path / variant, variant, dtype), kv_dtype=kv_dtype)
    source = random.Random(variant)

    def requests() -> list[Request]:
        rules: list[dict[str, Any]] = [
            {},
            {"temperature": 0.8, "seed": 3, "top_p": 0.9, "logprobs": 2},
            {"temperature": 1.2, "seed": 1 << 40, "top_k": 20, "min_p": 0.01, "logprobs": 0},
            {"repetition": 1.3, "presence": 0.4, "frequency": 0.2, "temperature": 0.5, "seed": 9},
            {"biases": {5: 3.0, 7: -4.0}, "suppressed": [1, 2], "suppress_until": 30, "logprobs": 3},
        ]
        prompts = random.Random(variant)
        return [
            Request(Admit(0, **rule), [prompts.randrange(VOCAB) for _ in range(prompts.randint(1, 90))], 20)
            for rule in rules
        ]

    expected = requests()
    TinyRouter(eagerly(loaded), seed=1).run(*expected)
    for chunk in (None, 3, 48):
        ops.set_threads(source.randint(1, 3))
        got = requests()
        TinyRouter(loaded, chunk, seed=2).run(*got)
        assert [request.output for request in got] == [request.output for request in expected]
        assert [[chosen for chosen, _ in request.logprobs] for request in got] == [
            [chosen for chosen, _ in request.logprobs] for request in expected
        ]


class Patched(torch.nn.Module):
    """A model with something after its embedding that no kernel does."""

    def __init__(self, inner: Any, patch: Any) -> None:
        super().__init__()
        self.config, self.head, self._inner, self._patch = inner.config, inner.head, inner, patch
        self.embed_width, self.embed_scale = 0, 1.0  # it takes none

    def forward(self, step: Step) -> torch.Tensor:
        x = self._patch(self._inner.embedding(step.ids), step)
        residual = torch.zeros_like(x)
        for block in self._inner.blocks:
            x, residual = block(x, residual, step)
        out: torch.Tensor = self._inner.norm(x, residual)[0]
        return out

    def logits(self, step: Step, drawn_at: torch.Tensor) -> torch.Tensor:
        decoder: Any = self  # with the rest of what one has
        return Decoder.logits(decoder, step, drawn_at)


def scaled_in_place(x: torch.Tensor, _: Step) -> torch.Tensor:
    x *= 1.5
    return x


CALL_BACKS = {
    "elementwise": lambda x, _: torch.tanh(x),
    "in place": scaled_in_place,
    "by position": lambda x, step: x + step.positions[:, None].to(x.dtype) * 0.01,
    "over halves, that are views": lambda x, _: torch.cat([x[:, 32:], -x[:, :32]], dim=1),
    "with sizes of its own": lambda x, _: x + torch.arange(x.shape[0], dtype=x.dtype)[:, None].expand(-1, 64) / 100,
    "several results": lambda x, _: x + torch.max(x, dim=1, keepdim=True).values,
    "a weight of its own": lambda x, _: x * torch.linspace(0.5, 2.0, 64, dtype=x.dtype),
}


@pytest.mark.parametrize("name", CALL_BACKS)
@torch.inference_mode()
def test_an_op_without_a_kernel_goes_back_to_torch_and_the_model_says_that_it_is_not_invariant(
    checkpoints: Path, name: str
) -> None:
    loaded = load_whole(checkpoints / "qwen3")
    model: Any = Patched(loaded.model, CALL_BACKS[name])
    built = record_model(model, loaded.kv, 512)
    assert built is not None
    program = built.program
    assert program.call_backs > 0
    assert not built.script.is_whole
    assert not dataclasses.replace(loaded, built=built).is_invariant
    source = random.Random(name)
    for _ in range(6):
        rows = any_rows(loaded, source)
        assert torch.equal(run_program(program, rows, VOCAB), run_model(model, rows))


class TorchNorm(torch.nn.Module):
    """A norm, and the addition before it, as torch has them."""

    def __init__(self, inner: ResidualNorm) -> None:
        super().__init__()
        self.gain, self.eps = inner.gain, inner.eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        added = x + residual
        return added * torch.rsqrt(added.pow(2).mean(dim=1, keepdim=True) + self.eps) * self.gain, added


class TorchLinear(torch.nn.Module):
    """Products as torch has them."""

    def __init__(self, *weights: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.cat(weights)
        self.heights = [weight.shape[0] for weight in weights]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class TorchMlp(torch.nn.Module):
    """Gates too."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.gate, self.up, self.down = TorchLinear(gate), TorchLinear(up), TorchLinear(down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return out


def as_torch_has_it(model: Decoder, folder: Path) -> None:
    """All of a model but the embedding, the head and what knows where KV lies, in ops that have no kernels."""
    weights = load_file(folder / "model.safetensors")
    model.norm = TorchNorm(model.norm)  # type: ignore[arg-type]
    blocks: Any = model.blocks
    for layer, block in enumerate(blocks):

        def own(name: str, layer: int = layer) -> torch.Tensor:
            return weights[f"model.layers.{layer}.{name}.weight"]

        block.attention_norm, block.mlp_norm = TorchNorm(block.attention_norm), TorchNorm(block.mlp_norm)
        block.attention.qkv = TorchLinear(*(own(f"self_attn.{kind}_proj") for kind in "qkv"))
        block.attention.out = TorchLinear(own("self_attn.o_proj"))
        block.mlp = TorchMlp(*(own(f"mlp.{kind}_proj") for kind in ("gate", "up", "down")))


def test_a_model_made_of_call_backs_draws_the_eager_models_tokens_and_those_of_the_kernels(
    checkpoints: Path,
) -> None:
    loaded, remade = (load_whole(checkpoints / "llama") for _ in range(2))
    assert isinstance(remade.model, Decoder)
    as_torch_has_it(remade.model, checkpoints / "llama")
    with torch.inference_mode():
        built = record_model(remade.model, remade.kv, 512)
        assert built is not None
        remade = dataclasses.replace(remade, built=built)
        assert built.program.call_backs > 10 * len(remade.kv.layers)
        assert not remade.is_invariant
        listed = list(report(remade, decode_rows(remade, 2, 1, 5), Machine(1e10, 1e11, 1e11), is_folded=False))
        assert listed[0].endswith(f"call-backs: {built.program.call_backs}")
        assert len([line for line in listed if "rsqrt" in line]) == 2 * len(remade.kv.layers) + 1, "each by its name"
    prompts = [[1], [2, 3, 4], list(range(60))]

    def drawn(loaded: Loaded) -> list[list[int]]:
        return TinyRouter(loaded, seed=4).run(*(Request(Admit(0), prompt, 12) for prompt in prompts))

    assert drawn(remade) == drawn(eagerly(remade)) == drawn(loaded)


def test_whole_requests_of_a_model_with_call_backs_are_those_of_the_eager_model(checkpoints: Path) -> None:
    loaded = load_whole(checkpoints / "llama")
    model: Any = Patched(loaded.model, CALL_BACKS["elementwise"])
    patched = dataclasses.replace(loaded, model=model, built=record_model(model, loaded.kv, 512))
    prompts = [[1], [2, 3, 4], list(range(60))]

    def drawn(loaded: Loaded) -> list[list[int]]:
        return TinyRouter(loaded, seed=4).run(*(Request(Admit(0), prompt, 12) for prompt in prompts))

    assert drawn(patched) == drawn(eagerly(patched)) != drawn(loaded)


def doubled_if_even(x: torch.Tensor, _: Step) -> torch.Tensor:
    return torch.tanh(x) if x.shape[0] % 2 else x


REFUSED = {
    "for different numbers of tokens": doubled_if_even,
    "looks at a value": lambda x, _: x * float(x.abs().max()),
    "a size is": lambda x, _: x + torch.cat([x, x[: x.shape[0] // 2]]).amax(),
    "is a part of a larger tensor": lambda x, _: torch.cat([x, x])[: x.shape[0]],
    "looks at the step's `row_starts`": lambda x, step: x + step.row_starts.sum().to(x.dtype),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_is_no_program_is_run_eagerly_and_the_log_says_why(
    checkpoints: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_whole(checkpoints / "llama")
    model: Any = Patched(loaded.model, REFUSED[why])
    with caplog.at_level("WARNING", "pelton.worker"):
        built = record_model(model, loaded.kv, 512)
    assert built is None
    assert "run eagerly" in caplog.text
    assert why in caplog.text
    eager = dataclasses.replace(loaded, model=model, built=None)
    assert not eager.is_invariant
    assert TinyRouter(eager).run(Request(Admit(0), [5, 6], 3))[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_numbers_are_not_finite_is_a_program_all_the_same_and_the_log_says_so(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "model", "llama")
    assert load_whole(folder).program is not None
    assert "not finite" not in caplog.text
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert load_whole(folder).program is not None
    assert "a trial gave numbers that are not finite" in caplog.text
    assert "Please report" not in caplog.text


def test_places_are_shared_by_buffers_that_are_never_alive_together(checkpoints: Path) -> None:
    program = load_whole(checkpoints / "llama").program
    assert program
    used = [place for _, _, place in program.buffers if place is not None]
    assert len(set(used)) < len(used) / 4
    one = program.arena_bytes(1, 1)
    assert 30 * one < program.arena_bytes(40, 40) <= 40 * one


class Events:
    """Counts what Python does on the thread of steps."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: Any) -> None:
        if threading.current_thread().name == "steps":
            self.count += 1


@pytest.mark.parametrize("is_eager", [False, True], ids=["program", "eager"])
def test_a_thousand_decode_steps_run_no_python_on_their_thread(checkpoints: Path, is_eager: bool) -> None:
    loaded = load_whole(checkpoints / "qwen3", kv_bytes=32 << 20)
    loaded = eagerly(loaded) if is_eager else loaded
    end = WorkerEnd.inline(CAPACITIES, 1)
    events = Events()
    threading.setprofile(events)
    try:
        steps = steps_for(loaded, CAPACITIES["slots"], CAPACITIES["top_logprobs"])
        loop = StepLoop(end, steps, None, lambda: None)
    finally:
        threading.setprofile(None)

    def run(plan: Plan) -> None:
        end.accept_plan(plan.to_bytes())
        while steps.done < plan.step:
            os.sched_yield()

    requests = range(4)  # penalties and log-probabilities among them
    rules = [Admit(slot, 8, temperature=slot * 0.5, seed=slot, presence=slot * 0.1, logprobs=slot) for slot in requests]
    for rule in rules:
        rule.history = list(range(8))
    blocks = [append for slot in requests for append in table(slot, range(40 * slot, 40 * slot + 40))]
    prompts = [Row(slot, 0, 8, list(range(8)), True) for slot in requests]
    run(Plan(1, admits=rules, appends=blocks, rows=prompts, has_top=True))
    before = events.count
    assert before > 0, "the thread has begun in Python"
    count = 50 if is_eager else 1000
    for step in range(2, 2 + count):
        known = 8 + (step - 2) % 300  # round and round, so that blocks suffice
        run(Plan(step, rows=[Row(slot, known, 1, [], True) for slot in requests], has_top=True))
    during = events.count - before
    assert during > 50 * count if is_eager else during == 0
    loop.drain()
    assert loop.steps == 1 + count
