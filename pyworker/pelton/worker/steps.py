"""The thread that steps run on: it waits for frames, runs them and publishes their results, until the router has gone.

What runs a frame is one of two: the program of a recorded model, in Rust from doorbell to doorbell (`_native.Steps`), or
the model itself (`EagerSteps`). A step that fails is published as failed, with its reason in the log, and so are all after
it: what it left behind is of no known state, and the router replaces the worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pelton_kernels import _native
from pelton_kernels._native import HostMemory, MaskMemory, WorkerEnd

if TYPE_CHECKING:
    from pelton.loading.ready import Ready

log = logging.getLogger("pelton.worker")

Published = Callable[[int], object]
Failed = Callable[[int, int, str], object]


class Steps(Protocol):
    """Runs frames. One thread serves; the others may be called from any."""

    @property
    def done(self) -> int:
        """How many steps were published."""

    def running_step_micros(self) -> int:
        """How long the running step has run; 0 if none does."""

    def serve(self, end: WorkerEnd, published: Published | None, failed: Failed) -> None:
        """Returns when the router has gone, or all is drained. `failed`: step, epoch and why, for the first that fails."""

    def drain(self) -> None:
        """`serve` returns once the frames that were submitted are done."""

    def close(self) -> None:
        """Lets go of the router's memory. No frame is run any more."""


def steps_for(
    loaded: Ready, slots: int, top_logprobs: int, host: HostMemory | None = None, masks: MaskMemory | None = None
) -> Steps:
    """Fresh slots for a router; `host` is its memory of saved blocks, if it hands one over, and `masks` that of its masks:
    without it, rows that have one are not drawn."""
    if loaded.program is None:
        from pelton.loading.load import Loaded
        from pelton.worker.eager import EagerSteps

        assert isinstance(loaded, Loaded), "what was kept has a program"
        return EagerSteps(loaded, slots, top_logprobs, host, masks)
    assert loaded.arena is not None, "programs run on processors, whose memory it is"
    return _native.Steps(
        loaded.program,
        loaded.arena,
        host,
        masks,
        blocks=loaded.budget.blocks,
        slots=slots,
        kinds=len(loaded.shape.kinds),
        positions=loaded.budget.max_model_len,
        block_size=loaded.shape.block_size,
        vocabulary=loaded.vocab,
        top_logprobs=top_logprobs,
        pooled_width=0 if loaded.pooling is None else loaded.pooling.width,
        embed_scale=loaded.embed_scale,
    )


class StepLoop:
    """Runs the frames of one router, in their order."""

    def __init__(self, end: WorkerEnd, steps: Steps, published: Published | None, failed: Callable[[], None]) -> None:
        """`published` is called with each frame once its results are in place; inline, it carries them away.
        `failed` is called if the loop cannot go on: no frame will be answered any more."""
        self._end = end
        self._steps = steps
        self._published = published
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    @property
    def steps(self) -> int:
        """How many were published."""
        return self._steps.done

    def running_step_micros(self) -> int:
        """How long the running step has run; 0 if none does."""
        return self._steps.running_step_micros()

    def drain(self) -> None:
        """Returns once the frames that were submitted are done. No more are taken."""
        self._steps.drain()
        self._thread.join()

    def stop(self) -> None:
        """Returns once the running step is done and nothing touches the router's memory any more."""
        self._end.detach()
        self._thread.join()
        self._steps.close()

    def _run(self) -> None:
        try:
            self._steps.serve(self._end, self._published, _log_failure)
        except BaseException:
            # A panic in Rust, which is no `Exception`. A plan that fails its check, or a memory that takes no result. The router replaces the worker.
            log.exception("the step loop cannot go on")
            self._failed()
        finally:
            self._end.detach()


def _log_failure(step: int, epoch: int, why: str) -> None:
    log.error("step %d of epoch %d failed: %s", step, epoch, why)
