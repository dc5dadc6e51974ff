"""The worker's side of `bench/wire`: the real end of the frame, with its arrays seen without a copy, and no model."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from pelton_kernels._native import WorkerEnd

end = WorkerEnd.from_fds(int(sys.argv[1]), int(sys.argv[2]))
words = np.frombuffer(end.buffer(), dtype=np.int32)


def region(frame: int, name: str) -> npt.NDArray[Any]:
    """A region of one frame as a matrix of records."""
    offset, width, capacity = end.layout[name]
    first = (end.preamble_bytes + frame * end.frame_stride + offset) // 4
    return words[first : first + width * capacity].reshape(capacity, width)


rows = [region(frame, "rows") for frame in range(end.frames)]
sampled = [region(frame, "sampled").reshape(-1) for frame in range(end.frames)]

while True:
    frame = end.wait(1.0)
    if frame is None:
        if end.detached:
            break
        continue
    count = end.header(frame)[9]
    step = rows[frame][:count]
    np.add(step[:, 0], step[:, 1], out=sampled[frame][:count])
    end.publish(frame, 0, 0)
