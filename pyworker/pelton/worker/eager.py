"""Steps through Python: for cards, and for models that are no program."""

from __future__ import annotations

import threading
import time
import traceback

from pelton_kernels._native import HostMemory, MaskMemory, WorkerEnd

from pelton.frames import Counts, FrameViews
from pelton.host import HostBlocks
from pelton.loading.load import Loaded
from pelton.runner import Runner
from pelton.worker.steps import Failed, Published

# `WorkerEnd.wait` beats the heart in shorter slices; this only bounds how late a drain is noticed.
WAIT_S = 0.5
OK, FAILED = 0, 1


class EagerSteps:
    """See `Steps`."""

    def __init__(
        self,
        loaded: Loaded,
        slots: int,
        top_logprobs: int,
        host: HostMemory | None = None,
        masks: MaskMemory | None = None,
    ) -> None:
        host_blocks = None if host is None else HostBlocks(host, loaded.device)
        self._runner = Runner(loaded, slots, top_logprobs, host_blocks, masks)
        self._is_draining = threading.Event()
        self._has_failed = False
        self._step_began: float | None = None
        self.done = 0

    def running_step_micros(self) -> int:
        """How long the running step has run; 0 if none does."""
        began = self._step_began
        return 0 if began is None else max(1, int((time.monotonic() - began) * 1e6))

    def drain(self) -> None:
        """`serve` returns once the frames that were submitted are done."""
        self._is_draining.set()

    def close(self) -> None:
        """Lets go of the router's memory. No frame is run any more."""
        self._runner.close()

    def serve(self, end: WorkerEnd, published: Published | None, failed: Failed) -> None:
        """Returns when the router has gone, or all is drained."""
        views = FrameViews(end)
        while not end.detached:
            is_last = self._is_draining.is_set()
            frame = end.wait(0.0 if is_last else WAIT_S)
            if frame is None:
                if is_last:
                    return
                continue
            self._step_began = began = time.monotonic()
            status = self._compute(end, views, frame, failed)
            end.publish(frame, status, int((time.monotonic() - began) * 1e6))
            self.done += 1
            self._step_began = None
            if published is not None:
                published(frame)

    def _compute(self, end: WorkerEnd, views: FrameViews, frame: int, failed: Failed) -> int:
        if self._has_failed:
            return FAILED
        counts = Counts(*end.header(frame))
        try:
            self._runner.run(views.cut(frame, counts), counts.step)
        except BaseException:  # a panic in Rust is no `Exception`
            self._has_failed = True
            failed(counts.step, counts.epoch, traceback.format_exc())
            return FAILED
        return OK
