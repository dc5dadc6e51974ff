"""KV blocks in host memory: what was saved comes back bit for bit, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
import struct

import pytest
import torch
from pelton_kernels import _native, ops, reference
from torch import Tensor

HEADS, BLOCK_SIZE, DIM = 3, 8, 40
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no card"))]


def arena(layers: int, blocks: int, dtype: torch.dtype, device: str) -> list[tuple[Tensor, Tensor]]:
    size = (blocks, HEADS, BLOCK_SIZE, DIM)
    return [(torch.randn(size).to(device, dtype), torch.randn(size).to(device, dtype)) for _ in range(layers)]


def host_memory(blocks: int, layers: int, dtype: torch.dtype) -> Tensor:
    block_bytes = 2 * layers * HEADS * BLOCK_SIZE * DIM * dtype.itemsize
    return torch.randint(256, (blocks, block_bytes + 64), dtype=torch.uint8)  # with a gap behind each block


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [1, 5])
def test_saved_and_loaded_blocks_are_those_of_the_reference(layers: int, dtype: torch.dtype, device: str) -> None:
    caches, host = arena(layers, 9, dtype, device), host_memory(6, layers, dtype)
    plain_caches = [(keys.cpu().clone(), values.cpu().clone()) for keys, values in caches]
    plain_host = host.clone()
    for threads in (1, 3):
        ops.set_threads(threads)
        ops.save_blocks(host, caches, ints(7, 0, 3), ints(0, 5, 2))
        ops.load_blocks(caches, host, ints(2, 0), ints(8, 1))
        if device == "cuda":
            torch.cuda.synchronize()
        reference.save_blocks(plain_host, plain_caches, ints(7, 0, 3), ints(0, 5, 2))
        reference.load_blocks(plain_caches, plain_host, ints(2, 0), ints(8, 1))
        assert torch.equal(host, plain_host)
        for own, plain in zip(caches, plain_caches, strict=True):
            assert torch.equal(own[0].cpu(), plain[0])
            assert torch.equal(own[1].cpu(), plain[1])
    assert torch.equal(caches[0][0][8], caches[0][0][3])
    assert torch.equal(caches[-1][1][1], caches[-1][1][7])


def test_blocks_of_codes_move_with_their_scales() -> None:
    caches = [tuple(reference.codes_of(torch.randn(9, HEADS, BLOCK_SIZE, DIM)) for _ in range(2)) for _ in range(3)]
    before = [(keys.clone(), values.clone()) for keys, values in caches]
    host = torch.zeros(4, 2 * 3 * HEADS * BLOCK_SIZE * (DIM + 4), dtype=torch.uint8)
    ops.save_blocks(host, caches, ints(7, 0), ints(1, 3))
    ops.load_blocks(caches, host, ints(1, 3), ints(2, 5))
    for own, old in zip(caches, before, strict=True):
        for cache, was in zip(own, old, strict=True):
            assert torch.equal(cache[[2, 5]], was[[7, 0]])
            assert torch.equal(cache[[0, 1, 3, 4, 6, 7, 8]], was[[0, 1, 3, 4, 6, 7, 8]])


def test_what_does_not_fit_is_refused_by_name(dtype: torch.dtype) -> None:
    caches, host = arena(2, 4, dtype, "cpu"), host_memory(3, 2, dtype)
    before = host.clone()
    refused = [
        (lambda: ops.save_blocks(host, caches, ints(4), ints(0)), "`blocks` is 4 at index 0; allowed: 0 to 3"),
        (lambda: ops.save_blocks(host, caches, ints(0), ints(3)), "`host_blocks` is 3"),
        (lambda: ops.save_blocks(host, caches, ints(0, 1), ints(1, 1)), "`host_blocks` is 1 twice"),
        (lambda: ops.load_blocks(caches, host, ints(0, 1), ints(2, 2)), "`blocks` is 2 twice"),
        (lambda: ops.save_blocks(host, caches, ints(0, 1), ints(1)), r"`host_blocks` has the shape \(1,\)"),
        (lambda: ops.save_blocks(host[:, :-65], caches, ints(0), ints(1)), "`host` has the strides"),
        (lambda: ops.save_blocks(host[:, :64].contiguous(), caches, ints(0), ints(1)), "`host` is 64 bytes wide"),
        (lambda: ops.save_blocks(host, [], ints(0), ints(1)), "`caches` is empty"),
        (lambda: ops.save_blocks(host.float(), caches, ints(0), ints(1)), "`host` is float32; allowed: uint8"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    assert torch.equal(host, before)


def handed_over(blocks: int, block_bytes: int, size: int, seals: int) -> int:
    """A file as the router makes it, by the layout's document alone."""
    fd = os.memfd_create("host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, struct.pack("<4sIIIQ", b"PLTH", 1, blocks, 0, block_bytes))
    os.truncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def test_host_memory_is_a_buffer_of_its_blocks_that_two_mappings_share() -> None:
    fd = handed_over(3, 100, 4096 + 3 * 128, SEALS)
    one, other = _native.HostMemory.from_fd(fd), _native.HostMemory.from_fd(fd)
    os.close(fd)  # they have their own
    assert (one.blocks, one.block_bytes, one.stride, len(one)) == (3, 100, 128, 384)
    tensors = [torch.frombuffer(memory, dtype=torch.uint8).view(3, 128) for memory in (one, other)]
    del one, other  # the tensors keep the mappings
    tensors[0][2, 99] = 42
    assert tensors[1][2, 99].item() == 42


@pytest.mark.parametrize(
    ("blocks", "size", "seals", "message"),
    [
        (3, 4096 + 3 * 128 - 64, SEALS, "has 4416 bytes, and its layout needs 4480"),
        (3, 4096 + 3 * 128, 0, "not sealed"),
        (0, 4096, SEALS, "cannot be mapped"),
        (2**32 - 1, 4096, SEALS, "needs"),
    ],
)
def test_host_memory_that_is_not_what_it_claims_is_refused(blocks: int, size: int, seals: int, message: str) -> None:
    fd = handed_over(blocks, 100, size, seals)
    with pytest.raises(ValueError, match=message):
        _native.HostMemory.from_fd(fd)
    os.close(fd)
