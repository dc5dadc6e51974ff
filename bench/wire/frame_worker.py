"""The worker's side of `bench/wire`: the real end of the frame, with its arrays as tensors, and no model."""

import sys

import torch
from pelton_kernels._native import WorkerEnd

torch.set_num_threads(1)
end = WorkerEnd.from_fds(int(sys.argv[1]), int(sys.argv[2]))
words = torch.frombuffer(end.buffer(), dtype=torch.int32)


def region(frame: int, name: str) -> torch.Tensor:
    """A region of one frame as a matrix of records."""
    offset, width, capacity = end.layout[name]
    first = (end.preamble_bytes + frame * end.frame_stride + offset) // 4
    return words[first : first + width * capacity].view(capacity, width)


rows = [region(frame, "rows") for frame in range(end.frames)]
sampled = [region(frame, "sampled").view(-1) for frame in range(end.frames)]

while True:
    frame = end.wait(1.0)
    if frame is None:
        if end.detached:
            break
        continue
    count = end.header(frame)[9]
    step = rows[frame][:count]
    torch.add(step[:, 0], step[:, 1], out=sampled[frame][:count])
    end.publish(frame, 0, 0)
