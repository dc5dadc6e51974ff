"""What to load, and within which bounds: a plain copy of the contract's `LoadRequest`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pelton.rpc.worker_pb2 import LoadRequest


@dataclass(frozen=True, slots=True)
class Wish:
    """0 and "auto" mean: choose. See proto/pelton/v1/worker.proto."""

    folder: Path
    dtype: str = "auto"
    kv_dtype: str = "auto"  # or "int8"
    max_model_len: int = 0
    first_context: int = 0  # of this server, where it has one already
    kv_bytes: int = 0
    memory_limit_bytes: int = 0
    block_size: int = 0
    threads: int = 0
    slots: int = 256
    token_budget: int = 2048
    scores: int = 0
    device: str = "auto"
    quantize: str = "auto"
    kept_folder: Path | None = None  # of loaded models, for the next start
    kept_bytes: int = 0  # the most that all of them may take there
    quantize_skip: str = (
        "head"  # layers that stay as they are, by their paths in the model (`models.family.NAMES`), with wildcards
    )
    model_backend: str = "auto"
    trust_remote_code: bool = False  # Python code of the folder
    task: str = "auto"  # or "generate", "embed", "classify"
    pooling: str = ""  # "mean", "cls" or "last"; empty: as the checkpoint says

    @classmethod
    def of_request(cls, request: LoadRequest) -> Self:
        """As a router says it."""
        fields = {field.name: getattr(request, field.name) for field in request.DESCRIPTOR.fields}
        kept = fields.pop("kept_folder")
        return cls(folder=Path(fields.pop("model_path")), kept_folder=Path(kept) if kept else None, **fields)
