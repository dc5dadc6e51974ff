"""Rotary positions: what each kind of scaling makes of the frequencies, and the table of angles.

The kinds are those of transformers. Angles depend on the position alone: "dynamic" and "longrope" change them with the length of the
request, and cached KV would differ from fresh KV. Here the server's context decides, once, so a context within the first
training's length has its exact angles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Rope:
    """Frequencies in numbers. Only what `kind` names counts."""

    kind: str
    theta: float
    factor: float = 1.0
    original_positions: int = 0  # llama3, yarn, longrope, dynamic: what the model was first trained for
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    own_factor: float = 1.0  # of it, `attn_factor`
    truncate: bool = True
    divisors: tuple[float, ...] = ()  # longrope: of each pair of columns, for contexts up to `original_positions`
    long_divisors: tuple[float, ...] = ()  # and beyond
    reach: int = 0  # of longrope and dynamic: the server's context, where it is longer than `original_positions`
    share: float = 1.0  # of a head's columns are turned; the others pass
    is_interleaved: bool = False  # neighbouring columns are turned against each other, not a half's against the other's

    def within(self, positions: int) -> Rope:
        """As it is in a context of so many positions."""
        if self.kind not in SETTLED or positions <= self.original_positions:
            return self
        return replace(self, divisors=self.long_divisors, reach=positions)

    @property
    def numerics(self) -> str:
        """What its angles depend on beside the checkpoint; "": nothing."""
        if self.own_factor != 1.0:
            return f"own{self.own_factor!r}"  # which builds before passed over
        if not self.reach:
            return ""
        return f"dynamic{self.reach}" if self.kind == "dynamic" else "long"


SETTLED = {"longrope", "dynamic"}  # by the server's context


NONE = Rope(
    "none", 1.0
)  # for layers that know no positions: one pair of columns is turned by nothing, which keeps all bits


class Rotary(nn.Module):
    """Cosines, then sines, of each position's angles: `cos_sin` is [positions, columns that are turned] float32."""

    cos_sin: Tensor

    def __init__(self, rope: Rope, head_dim: int, positions: int) -> None:
        super().__init__()
        turned = int(head_dim * rope.share)
        self.rope = rope.within(positions)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies(self.rope, turned)
        scale = rope.attention_factor
        self.is_interleaved = rope.is_interleaved
        self.register_buffer("cos_sin", torch.cat([angles.cos() * scale, angles.sin() * scale], dim=1))


def angles_follow_context(model: nn.Module) -> bool:
    """Whether some of its angles would be others in another context."""
    return any(isinstance(layer, Rotary) and layer.rope.reach > 0 for layer in model.modules())


def frequencies(rope: Rope, dim: int) -> Tensor:
    """Angle per position of each pair of columns: [dim / 2] float32."""
    return torch.zeros(1) if rope == NONE else KINDS[rope.kind](rope, _plain(rope, dim))


def _plain(rope: Rope, dim: int) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return 1.0 / rope.theta**exponents


def _default(rope: Rope, plain: Tensor) -> Tensor:
    return plain


def _linear(rope: Rope, plain: Tensor) -> Tensor:
    return plain / rope.factor


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched, short ones kept, those between blended. (Llama 3.1)"""
    wavelength = 2 * math.pi / plain
    turns = rope.original_positions / wavelength  # over the first training's length
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * plain / rope.factor + blend * plain
    kept = torch.where(wavelength < rope.original_positions / rope.high_freq_factor, plain, blended)
    return torch.where(wavelength > rope.original_positions / rope.low_freq_factor, plain / rope.factor, kept)


def _yarn(rope: Rope, plain: Tensor) -> Tensor:
    """As llama3, with a ramp over the columns instead of the wavelengths. (arXiv:2309.00071)"""
    pairs = plain.shape[0]

    def column(turns: float) -> float:
        """Where a wave makes so many turns over the first training's length."""
        return pairs * math.log(rope.original_positions / (turns * 2 * math.pi)) / math.log(rope.theta)

    low, high = column(rope.beta_fast), column(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    stretched = ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _longrope(rope: Rope, plain: Tensor) -> Tensor:
    """Each wave stretched by a number of its own, found by search. (arXiv:2402.13753)"""
    return plain / torch.tensor(rope.divisors)


def _dynamic(rope: Rope, plain: Tensor) -> Tensor:
    """The longest wave is stretched by about as much as the context is, the shortest is kept: another base. ("NTK-aware")"""
    dim = 2 * plain.shape[0]
    longer = rope.factor * max(rope.reach, rope.original_positions) / rope.original_positions - (rope.factor - 1)
    return _plain(replace(rope, theta=rope.theta * longer ** (dim / (dim - 2))), dim)


KINDS: dict[str, Callable[[Rope, Tensor], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "dynamic": _dynamic,
}
