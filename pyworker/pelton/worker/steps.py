"""The step loop: one thread that waits for frames, runs them and publishes their results.

A step that raises is published as failed, with its traceback in the log, and so are all after it: what it left behind
is of no known state, and the router replaces the worker. The loop itself ends when the router has gone, or on `drain`
once no frame is left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton_kernels._native import WorkerEnd

if TYPE_CHECKING:
    from pelton.runner import Runner

log = logging.getLogger("pelton.worker")

# `WorkerEnd.wait` beats the heart in shorter slices; this only bounds how late a drain is noticed.
WAIT_S = 0.5
OK, FAILED = 0, 1


class StepLoop:
    """Runs the frames of one router, in their order."""

    def __init__(
        self, end: WorkerEnd, runner: Runner, published: Callable[[int], None], failed: Callable[[], None]
    ) -> None:
        """`published` is called with each frame once its results are in place; inline, it carries them away.
        `failed` is called if the loop cannot go on: no frame will be answered any more."""
        from pelton.frames import Counts, FrameViews

        self._end = end
        self._runner = runner
        self._published = published
        self._failed = failed
        self._views = FrameViews(end)
        self._counts = Counts
        self._is_draining = threading.Event()
        self._has_failed = False
        self._step_began: float | None = None
        self.steps = 0
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def running_step_micros(self) -> int:
        """How long the running step has run; 0 if none does."""
        began = self._step_began
        return 0 if began is None else max(1, int((time.monotonic() - began) * 1e6))

    def drain(self) -> None:
        """Returns once the frames that were submitted are done. No more are taken."""
        self._is_draining.set()
        self._thread.join()

    def stop(self) -> None:
        """Returns once the running step is done and nothing touches the router's memory any more."""
        self._end.detach()
        self._thread.join()
        self._runner.close()

    def _run(self) -> None:
        try:
            while not self._end.detached:
                is_last = self._is_draining.is_set()
                frame = self._end.wait(0.0 if is_last else WAIT_S)
                if frame is not None:
                    self._step(frame)
                elif is_last:
                    break
        except Exception:
            # A plan that fails its check, or a memory that takes no result. The router replaces the worker.
            log.exception("the step loop cannot go on")
            self._failed()
        finally:
            self._end.detach()

    def _step(self, frame: int) -> None:
        self._step_began = began = time.monotonic()
        status = self._compute(frame)
        self._end.publish(frame, status, int((time.monotonic() - began) * 1e6))
        self.steps += 1
        self._step_began = None
        self._published(frame)

    def _compute(self, frame: int) -> int:
        if self._has_failed:
            return FAILED
        counts = self._counts(*self._end.header(frame))
        try:
            self._runner.run(self._views.cut(frame, counts))
        except Exception:
            log.exception("step %d of epoch %d failed", counts.step, counts.epoch)
            self._has_failed = True
            return FAILED
        return OK
