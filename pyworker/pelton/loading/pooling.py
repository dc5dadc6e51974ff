"""What a model gives that gives vectors: a plain copy of the contract's `Pooling`. Without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pooling:
    """See proto/pelton/v1/worker.proto. The worker's vectors are raw; who serves them normalises and activates."""

    width: int
    kind: str  # "embedding" or "classes"
    normalize: bool
    is_bidirectional: bool  # all tokens of a request must be in one row
    labels: tuple[str, ...] = ()
    activation: str = "none"  # or "softmax", "sigmoid"
