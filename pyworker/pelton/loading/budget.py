"""Bytes before they are taken: what weights and steps need, and how many KV blocks fit beside them.

Pure arithmetic over the config and the wish. A refusal says which flag to change, and to what.
"""

from __future__ import annotations

from dataclasses import dataclass

from pelton.kv import KvShape
from pelton.loading.error import LoadError
from pelton.loading.wish import Wish
from pelton.models.config import DecoderConfig

MIB = 1 << 20
# More blocks than running requests can fill serve the prefix cache alone: at most as many again.
CACHE_SHARE = 2
BLOCKS_MAX = (1 << 31) - 1


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


def plan(
    wish: Wish, config: DecoderConfig, kv: KvShape, weights_bytes: int, held_bytes: int, limit_bytes: int
) -> Budget:
    """`held_bytes`: what the process or the card has taken already. `limit_bytes`: the most that it may take."""
    if wish.max_model_len > config.positions:
        raise LoadError(
            f"--max-model-len {wish.max_model_len} is more than the model's {config.positions}: "
            f"set --max-model-len to at most {config.positions}"
        )
    longest = wish.max_model_len or config.positions
    activation_bytes = _activations(wish, config, kv, longest)
    fixed = held_bytes + weights_bytes + activation_bytes
    left = limit_bytes - fixed
    one_request = _ceil(longest, kv.block_size) * kv.block_bytes
    least = one_request if wish.max_model_len else kv.block_bytes
    if left < least and (wish.kv_bytes == 0 or left < wish.kv_bytes):
        raise LoadError(
            f"weights ({_mib(weights_bytes)}), activations ({_mib(activation_bytes)}), the worker itself "
            f"({_mib(held_bytes)}) and the least KV ({_mib(least)}) do not fit into {_mib(limit_bytes)}: "
            f"set --memory-limit to at least {_mib(fixed + least)}, or lower --token-budget and --max-running"
            + (" or --max-model-len" if wish.max_model_len else "")
        )
    if wish.kv_bytes > left:
        raise LoadError(
            f"--kv-memory {_mib(wish.kv_bytes)} does not fit beside {_mib(fixed)} into {_mib(limit_bytes)}: "
            f"set --kv-memory to at most {left // MIB}MiB, or --memory-limit to at least {_mib(fixed + wish.kv_bytes)}"
        )
    room = wish.kv_bytes or min(left, CACHE_SHARE * wish.slots * one_request)
    blocks = min(room // kv.block_bytes, BLOCKS_MAX)
    if blocks == 0:
        raise LoadError(
            f"--kv-memory {_mib(wish.kv_bytes)} holds no block of {kv.block_size} tokens: "
            f"set --kv-memory to at least {_mib(least)}"
        )
    if wish.max_model_len > blocks * kv.block_size:
        raise LoadError(
            f"--max-model-len {wish.max_model_len} needs {_mib(one_request)} of KV and {_mib(room)} are there: "
            f"set --max-model-len to at most {blocks * kv.block_size}, or --kv-memory to at least {_mib(one_request)}"
        )
    return Budget(
        weights_bytes=weights_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=blocks * kv.block_bytes,
        kv_bytes_per_block=kv.block_bytes,
        blocks=blocks,
        block_size=kv.block_size,
        max_model_len=min(longest, blocks * kv.block_size),
        memory_limit_bytes=limit_bytes,
    )


def _activations(wish: Wish, config: DecoderConfig, kv: KvShape, longest: int) -> int:
    """An upper bound: everything that a layer makes, as if nothing were given back within it."""
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    per_token = 6 * config.width + 2 * heads + 2 * config.heads * config.head_dim + 3 * config.mlp_width
    step = wish.token_budget * (per_token * kv.dtype.itemsize + 16)  # ids, positions and KV slots
    tables = 2 * wish.slots * _ceil(longest, kv.block_size) * 4
    # Logits, their copy while they are sorted, and the counts that penalties need.
    drawing = wish.slots * config.vocab * (4 + 4 + 4)
    angles = longest * config.head_dim * 4
    return step + tables + drawing + angles


def _ceil(count: int, unit: int) -> int:
    return -(-count // unit)


def _mib(count: int) -> str:
    return f"{_ceil(count, MIB)}MiB"  # as the flags take it
