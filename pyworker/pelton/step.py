"""One forward pass, as a model sees it: which tokens, where their KV goes, what they look at. Always an argument."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pelton.kv import KvArena


@dataclass(frozen=True, slots=True)
class Embeds:
    """What stands in the place of some tokens' embeddings."""

    at: Tensor  # [embeds] int64: which tokens
    values: Tensor  # [embeds, width] float32


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens of all rows, one row after the other. Row r has the tokens `row_offsets[r]` to `row_offsets[r + 1]`."""

    ids: Tensor  # [tokens] int32
    positions: Tensor  # [tokens] int32: absolute
    kv_slots: Tensor  # [kinds, tokens] int64: block x block size + offset, where the token's KV is written
    block_table: Tensor  # [kinds, rows, blocks] int32: as many columns as the longest row needs
    row_offsets: Tensor  # [rows + 1] int32
    row_starts: Tensor  # [rows] int32: position of the row's first token
    kv: KvArena
    embeds: Embeds | None = None
