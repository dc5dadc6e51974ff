# /// script
# requires-python = ">=3.11"
# dependencies = ["grpcio-tools==1.80.0"]
# ///
"""Generates `pelton.rpc` from the contracts: `uv run --script proto/generate.py`, after a change of `proto/pelton/v1`.

The result is checked in, so that neither a build nor an installation needs a protobuf compiler. Generated code refuses
libraries older than its generator, so the generator is the oldest that pyproject.toml allows, in an environment of its
own, and not the one that is locked.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PROTOS = HERE / "pelton" / "v1"
TARGET = HERE.parent / "pyworker" / "pelton" / "rpc"


def generate(folder: Path) -> dict[str, str]:
    """File name -> text of everything that is generated."""
    names = sorted(f"pelton/v1/{proto.name}" for proto in PROTOS.glob("*.proto"))
    code = protoc.main(
        ["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}", f"--grpc_python_out={folder}", *names]
    )
    if code != 0:
        sys.exit(code)
    # protoc derives Python's package from the folder of the .proto; ours is `pelton.rpc`.
    made = sorted((folder / "pelton" / "v1").iterdir())
    return {file.name: file.read_text().replace("from pelton.v1 import", "from pelton.rpc import") for file in made}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in generate(Path(folder)).items():
            (TARGET / name).write_text(text)
            print(TARGET / name)


if __name__ == "__main__":
    main()
