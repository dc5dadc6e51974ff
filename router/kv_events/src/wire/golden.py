"""Writes golden.txt: batches as msgspec encodes them, from structs declared as vLLM declares its events.

    python golden.py > golden.txt     # msgspec 0.22; what it prints is only ever compared with, never read by the server

Each line is: name, form, bytes in hex. tests.rs builds the batch of the same name.
"""

from typing import Any

import msgspec

BIG = 2**64 - 1


def structs(is_array: bool) -> tuple[type, type, type]:
    class Event(msgspec.Struct, array_like=is_array, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: str | None
        group_idx: int | None = None

    class AllBlocksCleared(Event):
        pass

    return BlockStored, BlockRemoved, AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


def batches(is_array: bool) -> dict[str, Batch]:
    stored, removed, cleared = structs(is_array)
    keys = [("adapter", ("image", 3), ("video", -70000), "salt"), None, (b"\x00\xff" * 16,)]
    return {
        "nothing": Batch(0.0, []),
        "cleared": Batch(1763744400.25, [cleared()], 0),
        "plain": Batch(1.5, [stored([7], None, [1, 2], 2, None, "GPU", None)]),
        "continued": Batch(1.5, [stored([BIG, 2**63], 300, [0, 127, 128, 65536], 2, None, "CPU", "adapter")], 3),
        "keys": Batch(2.0, [stored([1, 2, 3], None, [9, 9, 9], 1, None, "GPU", "adapter", keys)], 1),
        "removed": Batch(-1.0, [removed([255, 256, 65535, 2**32], "STORAGE"), removed([], "GPU")]),
        "long": Batch(
            3.0,
            [
                removed([1], "GPU"),
                stored(list(range(20)), 5, list(range(320)), 16, None, "GPU", "x" * 300),
                cleared(),
            ],
            2**32 - 1,
        ),
    }


def main() -> None:
    for form, is_array in (("map", False), ("array", True)):
        for name, batch in batches(is_array).items():
            print(name, form, msgspec.msgpack.encode(batch).hex())


if __name__ == "__main__":
    main()
