"""The worker's end of frame memory, as Python sees it. Plans are made here word by word, by the layout's documents
alone, so that records and checksum have a second implementation to agree with."""

import fcntl
import gc
import os
import struct
import threading

import pytest
import torch
from pelton_kernels import _native

CAPACITIES = {
    "frames": 4,
    "slots": 8,
    "tokens": 64,
    "appends": 16,
    "copies": 4,
    "biases": 8,
    "suppressed": 8,
    "history": 32,
    "top_logprobs": 3,
    "saves": 8,
    "loads": 8,
    "pooled_width": 4,
    "scores": 6,
    "embeds": 7,
    "embed_width": 3,
}
EPOCH = 5
MASK = (1 << 64) - 1


def checksum(*regions: list[int]) -> int:
    def pair(state: int, low: int, high: int) -> int:
        state = ((state ^ (low | high << 32)) * 0x9E37_79B9_7F4A_7C15) & MASK
        return (state << 29 | state >> 35) & MASK

    state = 0x5065_6C74_6F6E_0001
    for words in regions:
        in_lanes = len(words) // 8 * 8
        if in_lanes:
            lanes = [state, 1, 2, 3]
            for at in range(0, in_lanes, 2):
                lanes[at // 2 % 4] = pair(lanes[at // 2 % 4], words[at], words[at + 1])
            state = lanes[0]
            for lane in lanes[1:]:
                state = pair(state, lane & 0xFFFF_FFFF, lane >> 32)
        rest = words[in_lanes:] + [0] * (len(words) % 2)
        for low, high in zip(rest[::2], rest[1::2], strict=True):
            state = pair(state, low, high)
    mixed = ((state ^ (state >> 32)) * 0x9E37_79B9_7F4A_7C15) & MASK
    return mixed ^ (mixed >> 29)


def plan(step: int, rows: list[tuple[int, int, list[int]]]) -> bytes:
    """A plan of rows (slot, start, tokens) that all sample."""
    words: list[int] = []
    tokens: list[int] = []
    for slot, start, known in rows:
        words += [slot, start, len(known), len(known), len(tokens), 1, len(tokens), 0, 0, 0, 0]
        tokens += known
    header = [step, 0, EPOCH, 0, 0, 0, 0, 0, 0, 0, len(rows), len(tokens), 0, 0, 0, 0, 0, len(rows), 0]
    signed = checksum(header, words, tokens)
    header[12:14] = [signed & 0xFFFF_FFFF, signed >> 32]
    return struct.pack(f"<{19 + len(words) + len(tokens)}I", *header, *words, *tokens)


@pytest.fixture
def end() -> _native.WorkerEnd:
    return _native.WorkerEnd.inline(CAPACITIES, EPOCH)


def region(end: _native.WorkerEnd, frame: int, name: str, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    offset, words, capacity = end.layout[name]
    start = (end.preamble_bytes + frame * end.frame_stride + offset) // 4
    return torch.frombuffer(end.buffer(), dtype=dtype)[start : start + words * capacity].view(capacity, words)


def test_a_plan_is_seen_as_tensors_and_its_results_go_out_as_they_were_written(end):
    assert end.accept_plan(plan(1, [(3, 10, [7, 8, 9]), (1, 0, [4])])) == 0
    assert end.wait(0.0) == 0
    assert end.header(0) == (1, EPOCH, 0, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 2, 0)
    assert region(end, 0, "rows")[:2, :6].tolist() == [[3, 10, 3, 3, 0, 1], [1, 0, 1, 1, 3, 1]]
    assert region(end, 0, "tokens").flatten()[:4].tolist() == [7, 8, 9, 4]

    region(end, 0, "sampled").flatten()[:2] = torch.tensor([100, 200])
    region(end, 0, "flags").flatten()[:2] = torch.tensor([0, 1])
    region(end, 0, "chosen_logprob", torch.float32).flatten()[:2] = torch.tensor([-0.5, -1.0])
    end.publish(0, 0, 1234)

    header = struct.unpack("<16I", end.result_bytes(0)[:64])
    arrays = list(struct.unpack("<6I", end.result_bytes(0)[64:]))
    assert header[:6] == (1, 0, EPOCH, 2, 0, 1234)
    assert arrays[:4] == [100, 200, 0, 1]
    assert struct.unpack("<2f", end.result_bytes(0)[80:]) == (-0.5, -1.0)
    assert header[6] | header[7] << 32 == checksum([*header[:6], 0, 0, *header[8:]], arrays)


def test_vectors_of_rows_that_pool_go_out_behind_the_other_results(end):
    pools = 4
    words = [2, 0, 3, 3, 0, pools, 0, 0, 0, 0, 0]
    header = [1, 0, EPOCH, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 1, 0]
    signed = checksum(header, words, [7, 8, 9])
    header[12:14] = [signed & 0xFFFF_FFFF, signed >> 32]
    end.accept_plan(struct.pack(f"<{19 + 11 + 3}I", *header, *words, 7, 8, 9))
    assert end.wait(0.0) == 0
    region(end, 0, "pooled", torch.float32)[0] = torch.tensor([0.5, -1.0, 2.0, 4.0])
    end.publish(0, 0, 1)
    assert struct.unpack("<16I", end.result_bytes(0)[:64])[10] == 1
    assert struct.unpack("<4f", end.result_bytes(0)[76:]) == (0.5, -1.0, 2.0, 4.0)


def test_tensors_see_writes_without_a_copy_and_keep_the_mapping_alive():
    end = _native.WorkerEnd.inline(CAPACITIES, EPOCH)
    one, other = region(end, 2, "sampled"), region(end, 2, "sampled")
    del end
    gc.collect()
    one[5] = 42
    assert other[5].item() == 42


def test_the_buffer_covers_the_preamble_and_all_frames(end):
    view = memoryview(end.buffer())
    assert not view.readonly
    assert len(view) == len(end.buffer()) == end.preamble_bytes + end.frames * end.frame_stride
    assert bytes(view[:4]) == b"PLTN"


def test_waiting_lets_other_threads_run_and_hears_of_a_plan_and_of_the_end(end):
    def ended_by(event) -> list[int | None]:
        heard: list[int | None] = []
        waiter = threading.Thread(target=lambda: heard.append(end.wait(60.0)))
        waiter.start()
        event()
        waiter.join()
        return heard

    # With the GIL held, the plan could not come before the minute is over, and the wait would end in None.
    assert ended_by(lambda: end.accept_plan(plan(1, [(0, 0, [1])]))) == [0]
    assert not end.detached
    assert ended_by(end.detach) == [None]
    assert end.detached


def test_plans_come_in_order_and_each_frame_is_published_in_its_turn(end):
    for step in range(1, 5):
        end.accept_plan(plan(step, [(0, step, [step])]))
    with pytest.raises(RuntimeError, match="4 frames are in flight"):
        end.accept_plan(plan(5, [(0, 5, [5])]))
    assert [end.wait(0.0) for _ in range(5)] == [0, 1, 2, 3, None]
    with pytest.raises(RuntimeError, match="frame 1 is not the one whose result is due"):
        end.publish(1, 0, 0)
    for frame in range(4):
        end.publish(frame, 0, 0)
    with pytest.raises(RuntimeError, match="frame 0 is not"):
        end.header(0)


def test_a_damaged_plan_is_refused(end):
    damaged = bytearray(plan(1, [(0, 0, [1, 2, 3])]))
    damaged[-4] ^= 1
    end.accept_plan(bytes(damaged))
    with pytest.raises(RuntimeError, match="checksum of the plan part is wrong"):
        end.wait(0.0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((8, 0, [1]), r"rows\[0\].slot is 8; allowed: 0 to 7"),
        ((0, 0, [99]), r"tokens\[0\].token is 99"),
        ((0, 50, [1]), "start is 50"),
    ],
)
def test_ids_outside_of_the_model_are_refused(end, row, message):
    end.set_bounds(kinds=1, blocks=4, host_blocks=0, block_size=16, vocab=99, positions=50)
    end.accept_plan(plan(1, [row]))
    with pytest.raises(RuntimeError, match=message):
        end.wait(0.0)


def test_descriptors_that_are_no_frame_memory_are_refused():
    with pytest.raises(ValueError, match="no file descriptor"):
        _native.WorkerEnd.from_fds(-1, -1)
    memory, bell = os.memfd_create("open"), os.memfd_create("open")
    os.truncate(memory, 1 << 20)
    with pytest.raises(ValueError, match="sealed"):
        _native.WorkerEnd.from_fds(memory, bell)
    os.close(memory)
    os.close(bell)
    with pytest.raises(ValueError, match="descriptor"):
        _native.WorkerEnd.from_fds(memory, bell)


def test_capacities_are_named_and_bounded():
    with pytest.raises(KeyError, match="history"):
        _native.WorkerEnd.inline({k: v for k, v in CAPACITIES.items() if k != "history"}, EPOCH)
    with pytest.raises(ValueError, match="16 keys"):
        _native.WorkerEnd.inline({**CAPACITIES, "width": 1}, EPOCH)
    with pytest.raises(ValueError, match="`slots` is 0"):
        _native.WorkerEnd.inline({**CAPACITIES, "slots": 0}, EPOCH)


def test_a_shared_memory_takes_no_inline_bytes():
    # What a router makes: sealed files with a preamble, here copied from an inline end.
    inline = _native.WorkerEnd.inline(CAPACITIES, EPOCH)
    files = []
    for content in (bytes(memoryview(inline.buffer())), bytes(4096)):
        fd = os.memfd_create("sealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, content)
        fcntl_add_seals(fd)
        files.append(fd)
    end = _native.WorkerEnd.from_fds(*files)
    for fd in files:
        os.close(fd)  # it has its own
    assert (end.epoch, end.layout_checksum, end.layout) == (EPOCH, inline.layout_checksum, inline.layout)
    with pytest.raises(RuntimeError, match="shared, not inline"):
        end.accept_plan(plan(1, [(0, 0, [1])]))


def fcntl_add_seals(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
