"""Bytes before they are taken: what weights and steps need, and how many KV blocks fit beside them.

Pure arithmetic over the config and the wish. A refusal says which flag to change, and to what.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Protocol

from pelton.kv_shape import KvShape
from pelton.loading.error import ContextError, LoadError
from pelton.loading.pooling import Pooling
from pelton.loading.wish import Wish

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
MIB = UNITS["MiB"]
# More blocks than running requests can fill serve the prefix cache alone: at most as many again.
CACHE_SHARE = 2
# Without a wish, no more than the largest of these: what a cache that is never full would take in the end is left to the machine.
USUAL_TOKENS = 512  # of each request that may run
WHOLE_REQUESTS = 4  # of the longest context
PLENTY_TOKENS = 1 << 18
BLOCKS_MAX = (1 << 31) - 1
RECORDED_ROWS = 256  # of a step on a card; larger ones are launched call by call
# Left beside a context that memory bounds: what another start of the same server may take more than this one.
CONTEXT_SPARE = 32 * MIB
CONTEXT_MAX = 1 << 20  # a context that was not asked for: what the router has room for in a frame


class Sizes(Protocol):
    """What of a model's config decides how much its steps take."""

    @property
    def positions(self) -> int:
        """The longest context."""

    @property
    def vocab(self) -> int:
        """Tokens that there are."""

    @property
    def width(self) -> int:
        """Of what flows between layers."""

    @property
    def heads(self) -> int:
        """Of queries."""

    @property
    def kv_heads(self) -> int:
        """Of keys and values."""

    @property
    def head_dim(self) -> int:
        """Of each head."""

    @property
    def mlp_width(self) -> int:
        """Within an MLP."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What loading will take. `memory_limit_bytes` bounds the worker as a whole, its own code included."""

    weights_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_bytes_per_block: int
    blocks: int
    block_size: int
    max_model_len: int
    memory_limit_bytes: int
    blocks_per_request: int  # of the longest context


def plan(
    wish: Wish,
    sizes: Sizes,
    kv: KvShape,
    weights_bytes: int,
    held_bytes: int,
    limit_bytes: int,
    pooling: Pooling | None = None,
    is_card: bool = False,
) -> Budget:
    """`held_bytes`: what the process or the card has taken already. `limit_bytes`: the most that it may take. `pooling`: of a
    model that gives vectors."""
    if wish.max_model_len > sizes.positions:
        raise LoadError(
            f"--max-model-len {wish.max_model_len} is more than the model's {sizes.positions}: "
            f"set --max-model-len to at most {sizes.positions}"
        )
    is_whole = pooling is not None and pooling.is_bidirectional
    if is_whole and wish.max_model_len > wish.token_budget:
        raise LoadError(
            f"--max-model-len {wish.max_model_len}: a text of this model is in one step, and steps hold {wish.token_budget} tokens: "
            f"set --token-budget to at least {wish.max_model_len}, or --max-model-len to at most {wish.token_budget}"
        )
    longest = wish.max_model_len or _context(
        wish, sizes, kv, limit_bytes - held_bytes - weights_bytes, pooling, is_card
    )
    activation_bytes = _activations(wish, sizes, kv, longest, pooling, is_card)
    fixed = held_bytes + weights_bytes + activation_bytes
    left = limit_bytes - fixed
    one_request = kv.blocks_for(longest) * kv.block_bytes
    least = one_request if wish.max_model_len else kv.blocks_for(1) * kv.block_bytes
    if left < least and (wish.kv_bytes == 0 or left < wish.kv_bytes):
        raise LoadError(
            f"weights ({_about(weights_bytes)}), activations ({_about(activation_bytes)}), the worker itself "
            f"({_about(held_bytes)}) and the least KV ({_about(least)}) do not fit into {_about(limit_bytes)}: "
            f"set --memory-limit to at least {_mib(fixed + least)}, or lower --token-budget and --max-running"
            + (" or --max-model-len" if wish.max_model_len else "")
        )
    if wish.kv_bytes > left:
        raise LoadError(
            f"--kv-memory {_size(wish.kv_bytes)} does not fit beside {_about(fixed)} into {_about(limit_bytes)}: "
            f"set --kv-memory to at most {left // MIB}MiB, or --memory-limit to at least {_mib(fixed + wish.kv_bytes)}"
        )
    room = wish.kv_bytes or min(left, _enough(wish, kv, longest, pooling))
    blocks = min(room // kv.block_bytes, BLOCKS_MAX)
    if blocks < kv.blocks_for(1):
        raise LoadError(
            f"--kv-memory {_size(wish.kv_bytes)} holds no block of {kv.block_size} tokens: "
            f"set --kv-memory to at least {_size(least)}"
        )
    most = _tokens_in(blocks, kv, longest)
    if wish.max_model_len > most:
        raise LoadError(
            f"--max-model-len {wish.max_model_len} needs {_size(one_request)} of KV and {_about(room)} are there: "
            f"set --max-model-len to at most {most}, or --kv-memory to at least {_size(one_request)}"
        )
    return Budget(
        weights_bytes=weights_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=blocks * kv.block_bytes,
        kv_bytes_per_block=kv.block_bytes,
        blocks=blocks,
        block_size=kv.block_size,
        max_model_len=most,
        memory_limit_bytes=limit_bytes,
        blocks_per_request=kv.blocks_for(most),
    )


def _enough(wish: Wish, kv: KvShape, longest: int, pooling: Pooling | None) -> int:
    """Bytes beyond which more KV is of little use."""
    if pooling is not None and pooling.is_bidirectional:
        # Nobody looks at it after its step: two steps in flight, each with a block that is not full for each request.
        blocks = _ceil(wish.token_budget, kv.block_size) + wish.slots
        return 2 * blocks * len(kv.kinds) * kv.block_bytes
    plenty = max(CACHE_SHARE * wish.slots * USUAL_TOKENS, CACHE_SHARE * WHOLE_REQUESTS * longest, PLENTY_TOKENS)
    most = CACHE_SHARE * wish.slots * _ceil(longest, kv.block_size)
    return min(most, _ceil(plenty, kv.block_size)) * len(kv.kinds) * kv.block_bytes


def _context(wish: Wish, sizes: Sizes, kv: KvShape, room: int, pooling: Pooling | None, is_card: bool) -> int:
    """Where none was asked for: that which this server has, or the longest that will fit in each of its workers' lives."""
    # What is free on a machine of its own changes by more than what a process takes.
    other_starts = CONTEXT_SPARE if wish.memory_limit_bytes else max(CONTEXT_SPARE, room // 16)
    spare = 0 if wish.first_context else max(0, min(other_starts, room // 8))
    longest = _longest(wish, sizes, kv, room - spare, pooling, is_card)
    if longest < wish.first_context:
        raise ContextError(
            f"the context of {wish.first_context} tokens, with which this server began, fits no more: there is room for {longest}; "
            f"set --max-model-len to at most {longest}, or --memory-limit to more"
        )
    return wish.first_context or longest


def _longest(wish: Wish, sizes: Sizes, kv: KvShape, room: int, pooling: Pooling | None, is_card: bool) -> int:
    """The longest context, at most the model's (and, of a text that must be in one step, what a step holds), of which one request fits into `room` beside its steps; one block at least."""

    is_whole = pooling is not None and pooling.is_bidirectional
    positions = min(sizes.positions, wish.token_budget) if is_whole else sizes.positions

    def fits(places: int) -> bool:
        longest = min(places * kv.block_size, positions)
        of_kv = kv.blocks_for(longest) * kv.block_bytes
        within = wish.kv_bytes == 0 or of_kv <= wish.kv_bytes
        return within and _activations(wish, sizes, kv, longest, pooling, is_card) + max(of_kv, wish.kv_bytes) <= room

    # What a context takes grows with it, so the first one that does not fit can be searched by halving.
    most = _ceil(min(positions, CONTEXT_MAX), kv.block_size)
    places = bisect.bisect_left(range(1, most + 1), True, key=lambda count: not fits(count))
    return min(max(1, places) * kv.block_size, positions)


def _tokens_in(blocks: int, kv: KvShape, longest: int) -> int:
    """The longest request that so many blocks hold, at most `longest`."""
    if kv.blocks_for(longest) <= blocks:
        return longest
    places = range(1, _ceil(longest, kv.block_size))
    fitting = bisect.bisect_right(places, blocks, key=lambda count: kv.blocks_for(count * kv.block_size))
    return fitting * kv.block_size


def _activations(wish: Wish, sizes: Sizes, kv: KvShape, longest: int, pooling: Pooling | None, is_card: bool) -> int:
    """An upper bound: everything that a layer makes, as if nothing were given back within it."""
    heads = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    per_token = 6 * sizes.width + 2 * heads + 2 * sizes.heads * sizes.head_dim + 3 * sizes.mlp_width
    step = wish.token_budget * (per_token * kv.element_bytes + 16)  # ids, positions and KV slots
    tables = 2 * len(kv.kinds) * wish.slots * _ceil(longest, kv.block_size) * 4
    # Logits, the same as a request changes them, and the counts that penalties need; on cards lists of keys, too.
    drawing = wish.slots * (sizes.vocab if pooling is None else pooling.width) * (4 + 4 + 4 + (8 if is_card else 0))
    if is_card:  # steps that are recorded keep memory of their own
        step += RECORDED_ROWS * per_token * kv.element_bytes
    scoring = (
        wish.scores * sizes.vocab * (4 + 4) if pooling is None else 0
    )  # logits, and as the model's last layer makes them
    angles = longest * sizes.head_dim * 4
    return step + tables + drawing + scoring + angles


def _ceil(count: int, unit: int) -> int:
    return -(-count // unit)


def _mib(count: int) -> str:
    """What to set a limit to: whole MiB, rounded up so that it suffices."""
    return f"{_ceil(count, MIB)}MiB"  # as the flags take it


def _size(count: int) -> str:
    """Exactly so many bytes, as the flags take them: in MiB or KiB where these are whole."""
    unit = next((unit for unit in ("MiB", "KiB") if count and count % UNITS[unit] == 0), "")
    return f"{count // UNITS[unit]}{unit}" if unit else str(count)


def _about(count: int) -> str:
    """For a reader: in MiB to a tenth, or exactly where a tenth would hide it."""
    return f"{count / MIB:.1f}MiB" if count >= MIB and count % MIB else _size(count)
