"""`pelton inspect program`: the calls that a step is made of, what each needs at the least, and what it took."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.server import PELTON

UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
BUFFERS = r"(?:-|b\d+@\d+(?: b\d+@\d+)*)"
CALL = re.compile(
    rf"\s*(\d+)  (\S.*?)\s+({BUFFERS} -> {BUFFERS})\s+([\d.]+) ([kMG]?)B\s+([\d.]+) ?([kMG]?)\s+([\d.]+)\s+([\d.]+)%\s+([\d.]+)\s+([\d.]+)"
)
STEP = re.compile(
    r"a step of (\d+) tokens and (\d+) draws: (\d+) us; limits: ([\d.]+) GB/s, (\d+) GFLOP/s, (\d+) GOP/s with codes"
)
# The model that is inspected where none is said.
DEMO = Path(__file__).parents[2] / "pyworker/pelton/demo"
CONFIG = json.loads((DEMO / "config.json").read_text())
LAYERS, WIDTH, MLP_WIDTH = (CONFIG[name] for name in ("num_hidden_layers", "hidden_size", "intermediate_size"))
HEADS, KV_HEADS, HEAD_DIM = (CONFIG[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))


@dataclass(frozen=True)
class Call:
    """A line of the table."""

    calls: int
    text: str
    nbytes: float
    flops: float
    us: float
    share: float
    bound_us: float
    of_it: float


def inspect(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PELTON, "inspect", "program", *arguments], capture_output=True, text=True, timeout=120)


def table(lines: list[str]) -> list[Call]:
    """Every line, each of which must have every column."""
    assert lines[4].split() == ["calls", "read", "->", "written", "bytes", "FLOP", "us", "share", "bound", "of", "it"]
    calls = []
    for line in lines[5:]:
        matched = CALL.fullmatch(line)
        assert matched, line
        count, text, _, nbytes, unit, flops, scale, us, percent, bound, of_it = matched.groups()
        sizes = float(nbytes) * UNITS[unit], float(flops) * UNITS[scale]
        calls.append(Call(int(count), text, *sizes, float(us), float(percent) / 100, float(bound), float(of_it)))
    return calls


def is_printed(said: float, exact: float) -> bool:
    """Whether a number that was rounded to a tenth, of its unit too, is this one."""
    unit = max((unit for unit in UNITS.values() if unit <= said), default=1.0)
    return abs(said - exact) <= 0.051 * unit


def test_each_call_has_its_sizes_and_cost_by_the_step_that_was_asked_for() -> None:
    rows, tokens, context = 3, 2, 100
    asked = ("--rows", str(rows), "--tokens", str(tokens), "--context", str(context))
    ran = inspect(*asked, "--dtype", "float32", "--all", "--threads", "1")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert re.fullmatch(r"qwen3, float32, cpu-\S+; call-backs: 0", lines[0])
    step = STEP.fullmatch(lines[2])
    assert step, lines[2]
    assert (int(step[1]), int(step[2])) == (rows * tokens, rows)
    whole_us, read, gemm = float(step[3]), float(step[4]), float(step[5])
    calls = table(lines)
    assert int(lines[1].split()[0]) == len(calls) == sum(call.calls for call in calls), "one line each"

    def take(text: str) -> Call:
        """The next of this name."""
        call = next(call for call in left if call.text == text)
        left.remove(call)
        return call

    def check_product(count: int, depth: int, columns: int) -> None:
        call = take(f"linear {depth} -> {columns}")
        assert is_printed(call.flops, 2 * count * depth * columns), call
        least, most = (4 * (count * depth + count * columns + depth * packed) for packed in (columns, columns + 63))
        assert is_printed(call.nbytes, min(max(call.nbytes, least), most)), "its last panel may be padded"

    left, heads = list(calls), HEADS * HEAD_DIM
    for layer in range(LAYERS):
        drawn = rows if layer == LAYERS - 1 else rows * tokens  # nobody reads the last layer's other tokens
        check_product(rows * tokens, WIDTH, heads + 2 * KV_HEADS * HEAD_DIM)
        seen = rows * sum(range(context + 1, context + tokens + 1))
        kept = rows * (context + tokens) * 2 * KV_HEADS * HEAD_DIM
        attention = take(f"paged_attention layer {layer}, {HEADS} heads")
        assert is_printed(attention.nbytes, 4 * (kept + 2 * rows * tokens * heads)), attention
        assert is_printed(attention.flops, 4 * HEAD_DIM * HEADS * seen), attention
        check_product(drawn, heads, WIDTH)
        check_product(drawn, WIDTH, 2 * MLP_WIDTH)
        check_product(drawn, MLP_WIDTH, WIDTH)
    check_product(rows, WIDTH, CONFIG["vocab_size"])
    assert not [call.text for call in left if call.flops], "nothing else is counted in operations"

    for call in calls:  # within what was rounded in print
        assert abs(call.share - call.us / whole_us) <= 0.0006 + (0.06 + 0.6 * call.us / whole_us) / whole_us, call
        least, most = (
            max(call.nbytes / (read + error / 10), call.flops / (gemm + error)) / 1e3 for error in (0.51, -0.51)
        )
        assert 0.97 * least - 0.06 <= call.bound_us <= 1.03 * most + 0.06, call
        if call.us >= 1:
            assert call.of_it == pytest.approx(call.bound_us / call.us, rel=0.1, abs=0.06), call
    assert all(call.us > 0 for call in calls if call.flops), "each was timed"


def test_flags_of_the_server_reach_the_model_and_calls_that_are_alike_are_one_line() -> None:
    flags = ("--quantize", "int8", "--quantize-skip", "none", "--kv-dtype", "int8")
    ran = inspect("--model", DEMO, *flags, "--threads", "2", "--context", "0")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert re.fullmatch(r"qwen3, bfloat16, cpu-\S+-kv-int8; call-backs: 0", lines[0]), lines[0]
    step = STEP.fullmatch(lines[2])
    assert step
    assert (step[1], step[2]) == ("1", "1"), "one token of one request, if nothing is said"
    calls = table(lines)
    assert sum(call.calls for call in calls) == int(lines[1].split()[0]) > len(calls)
    [attention] = [call for call in calls if call.text == f"paged_attention {HEADS} heads"]
    assert attention.calls == LAYERS
    assert is_printed(attention.flops, LAYERS * 4 * HEAD_DIM * HEADS), "each token sees itself alone"
    products = [call.text for call in calls if "linear" in call.text]
    assert products
    assert all("linear int8" in text for text in products), "the head, too"


def test_a_model_that_runs_through_transformers_has_no_program_and_the_reason_is_said(tmp_path: Path) -> None:
    model = shutil.copytree(DEMO, tmp_path / "model")
    (model / "config.json").write_text(json.dumps(CONFIG | {"hidden_act": "mish"}))  # which ours lack
    ran = inspect(model, "--threads", "1")
    assert ran.returncode == 1
    assert ran.stdout == "the model is run eagerly; the lines above say why\n"
    assert "not native: `hidden_act` in config.json is 'mish'" in ran.stderr
    assert "runs through transformers" in ran.stderr
    assert "its tokens may depend on what runs beside them" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "0"], "flag --rows: `rows` is 0; allowed: a whole number from 1 to 4096"),
        (["--tokens", "many"], "flag --tokens: `tokens` is many; allowed: a whole number from 1 to 65536"),
        (["--context", "-1"], "flag --context: `context` is -1; allowed: a whole number from 0 to 1048576"),
        (["--quantize", "int5"], "flag --quantize: `quantize` is int5; allowed: auto, int8"),
        (["--kv-dtype", "int9"], "flag --kv-dtype: `kv-dtype` is int9; allowed: auto, int8"),
        (["--contexd", "1"], "there is no flag `--contexd`; did you mean `--context`?"),
        (["--port", "1"], "`--port` has no meaning for `pelton inspect program`"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_bad_argument_is_refused_by_its_name(arguments: list[str], said: str) -> None:
    ran = inspect(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"pelton: {said}")


def test_a_text_longer_than_the_model_takes_is_refused() -> None:
    ran = inspect("--model", DEMO, "--threads", "1", "--context", "4090", "--tokens", "7")
    said = "`context` and `tokens` are 4090 and 7; allowed: 4096 together, the longest text of this model here"
    assert (ran.returncode, ran.stdout) == (1, f"pelton inspect: {said}\n")
