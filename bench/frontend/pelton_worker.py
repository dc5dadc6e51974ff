"""Pelton's worker with steps that compute nothing: all else (handshake, loading, memory, frames, bells) is the real one.

    FRONTEND_BENCH_FOLDER=... python bench/frontend/pelton_worker.py --listen unix:///path/to/worker.sock

The folder has the tokens that steps draw, and the board (`made_up.py`).
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
from made_up import Engine
from pelton.frames import ROW_COUNT, ROW_FLAGS, ROW_SAMPLES, ROW_START, Counts, FrameViews
from pelton.worker import __main__ as worker
from pelton.worker import session
from pelton_kernels._native import WorkerEnd

WAIT_S = 0.5


class MadeUpSteps:
    """See `pelton.worker.steps.Steps`."""

    def __init__(self, *_model: Any) -> None:
        self._engine = Engine()
        self._tokens = np.array(self._engine.tokens, dtype=np.int32)
        self._is_draining = threading.Event()
        self.done = 0

    def running_step_micros(self) -> int:
        return 0

    def drain(self) -> None:
        self._is_draining.set()

    def close(self) -> None:
        pass

    def serve(self, end: WorkerEnd, published: Any, failed: Any) -> None:
        del published, failed  # frames are shared memory, and nothing can fail
        views = FrameViews(end)
        while not end.detached:
            is_last = self._is_draining.is_set()
            frame = end.wait(0.0 if is_last else WAIT_S)
            if frame is None:
                if is_last:
                    return
                continue
            counts = Counts(*end.header(frame))
            if counts.admits:
                self._engine.board.note_arrival()
            began = time.monotonic_ns()
            step = views.cut(frame, counts)
            assert counts.draws == counts.rows, "no drafts, no scores"
            place = step.rows[:, ROW_START] + step.rows[:, ROW_COUNT]
            drawn = self._tokens[place % len(self._tokens)]
            step.results.sampled[:] = drawn * (step.rows[:, ROW_FLAGS] & ROW_SAMPLES)
            step.results.flags[:] = 0
            step.results.chosen_logprob[:] = 0
            self._engine.wait()
            end.publish(frame, 0, (time.monotonic_ns() - began) // 1000)
            self.done += 1


if __name__ == "__main__":
    session.steps_for = MadeUpSteps  # type: ignore[assignment, attr-defined]
    os._exit(worker.main())
