"""What a GPU has to show: every Triton kernel is right, a model is served end to end, kernels near the card's limits.

    make gpu-check            on a machine with a card: PyTorch 2.11+, Triton, grpcio; no network, no build
    make gpu-check DRY=1      here: the same steps on the processor, kernels through Triton's interpreter, tiny sizes

On the card nothing is built: the extension modules are abi3, so `pyworker/pelton/_pelton.abi3.so` and
`kernels/pelton_kernels/_native.abi3.so` from a build on any Linux machine of the same architecture serve.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ["kernels/tests/test_triton.py", "kernels/tests/test_triton_sampling.py", "pyworker/tests/test_replay.py"]
PATHS = [str(ROOT / "pyworker"), str(ROOT / "kernels")]


def environment(dry: bool) -> dict[str, str]:
    """This process's environment, with the packages found in the tree."""
    added = {"PYTHONPATH": os.pathsep.join(PATHS), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if dry:
        added |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    return {**os.environ, **added}


def run(title: str, command: list[str], dry: bool) -> None:
    """One step in a process of its own; its output is shown."""
    print(f"==> {title}", flush=True)
    subprocess.run(command, cwd=ROOT, env=environment(dry), check=True)


def machine() -> dict[str, Any]:
    """What this runs on."""
    import torch
    import triton

    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": str(date.today()),
        "card": card,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the processor, to prove that all of it would run")
    parser.add_argument(
        "--json", type=Path, help="where results go (default: bench/results/gpu-DATE.json; dry: nowhere)"
    )
    parser.add_argument(
        "--without-kernels", action="store_true", help="leaves out the tests of kernels, if they have run"
    )
    args = parser.parse_args()
    for module in ("pyworker/pelton/_pelton.abi3.so", "kernels/pelton_kernels/_native.abi3.so"):
        if not (ROOT / module).exists():
            sys.exit(f"{module} is missing: run `make build` on a machine with Rust and bring the file along")
    about = machine()
    print(json.dumps(about))
    if about["card"] == "none" and not args.dry:
        sys.exit("no card that PyTorch can use; `make gpu-check DRY=1` proves that the suite would run")
    if not args.without_kernels:
        tests = [sys.executable, "-m", "pytest", "-q", *TESTS]
        if not args.dry and find_spec("xdist"):  # most of the time Triton compiles, on one core each
            tests += ["-n", str(min(os.cpu_count() or 1, 8))]
        run("kernels against the reference", tests, args.dry)
    run("a served model", [sys.executable, "bench/gpu/serve.py", *(["--dry"] if args.dry else [])], args.dry)
    out = args.json or ROOT / "bench" / "results" / f"gpu-{about['date']}.json"
    kernels = [sys.executable, "bench/gpu/kernels.py", *(["--dry"] if args.dry else ["--json", str(out)])]
    run("kernels against the card's limits", kernels, args.dry)
    steps = [sys.executable, "bench/gpu/step.py", *(["--dry"] if args.dry else ["--json", str(out)])]
    run("steps of whole models against the card's limits", steps, args.dry)
    print("==> all of it ran" if args.dry else f"==> all passed; results in {out}")


if __name__ == "__main__":
    main()
