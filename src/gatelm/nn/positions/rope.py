"""Rotary position embedding (arXiv 2104.09864)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from gatelm.config import Config, ConfigError
from gatelm.nn.positions.scaling import RopeScaling, plain_frequencies
from gatelm.nn.shapes import Float, Int, Tensor


class RopeConfig(Config):
    """Rotary positions; the first `partial_factor` of each head's channels turn."""

    base: float = Field(default=10_000.0, gt=1)
    partial_factor: float = Field(default=1.0, gt=0, le=1)
    pairs: Literal["halves", "neighbours"] = "halves"
    """Which channels form a pair: i and i + rotary_dim/2, or 2i and 2i + 1."""
    scaling: RopeScaling | None = None
    """How texts longer than those of training are read; None: frequencies are
    base^(-2i/rotary_dim)."""

    @property
    def length_dependent(self) -> bool:
        """Whether angles depend on the length of the text so far, those of cached keys too."""
        return self.scaling is not None and self.scaling.length_dependent

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def rotary_dim(self, head_dim: int) -> int:
        """Return the number of channels that turn, which is even (`check` refuses others)."""
        return int(head_dim * self.partial_factor)

    def check(self, head_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, when the channels that turn do not form pairs."""
        rotary_dim = head_dim * self.partial_factor
        if rotary_dim != int(rotary_dim) or int(rotary_dim) % 2 or rotary_dim < 2:
            raise ConfigError(
                f"{where}.rope: {rotary_dim:g} of {head_dim} channels cannot turn in pairs; choose "
                "head_dim and rope.partial_factor for an even number"
            )
        if self.scaling is not None:
            self.scaling.check(int(rotary_dim), f"{where}.rope.scaling")


def rotary_angles(
    cfg: RopeConfig, head_dim: int, positions: Int[Tensor, "*B T"]
) -> Float[Tensor, "*B T R"]:
    """Compute angles position * frequency, one per pair, always in float32."""
    return positions[..., None].to(torch.float32) * rotary_frequencies(cfg, head_dim, positions)


def rotary_frequencies(
    cfg: RopeConfig, head_dim: int, positions: Int[Tensor, "*B T"]
) -> Float[Tensor, "*B T R"] | Float[Tensor, " R"]:
    """Compute radians per token, one per pair; by token if they depend on the text's length."""
    rotary_dim = cfg.rotary_dim(head_dim)
    if cfg.scaling is None:
        return plain_frequencies(cfg.base, rotary_dim, positions.device)
    lengths = lengths_so_far(positions) if cfg.scaling.length_dependent else positions
    return cfg.scaling.frequencies(cfg.base, rotary_dim, lengths)


def rotation(
    cfg: RopeConfig, head_dim: int, positions: Int[Tensor, "*B T"]
) -> tuple[Float[Tensor, "*B T R"], Float[Tensor, "*B T R"]]:
    """Compute cos and sin of the angles, times the scaling's amplitude, in float32."""
    angles = rotary_angles(cfg, head_dim, positions)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if cfg.amplitude == 1.0 else (cos * cfg.amplitude, sin * cfg.amplitude)


def lengths_so_far(positions: Int[Tensor, "*B T"]) -> Int[Tensor, "*B T"]:
    """Return the length so far of each token's text: its last position here, plus one.

    A text ends where the next position is not one more.
    """
    num = positions.shape[-1]
    ends = torch.ones_like(positions, dtype=torch.bool)
    ends[..., :-1] = positions[..., 1:] != positions[..., :-1] + 1
    index = torch.arange(num, device=positions.device).expand_as(positions)
    end = torch.where(ends, index, num).flip(-1).cummin(dim=-1).values.flip(-1)
    return positions.gather(-1, end) + 1


def rotate(
    x: Float[Tensor, "B T N H"],
    cos: Float[Tensor, "*B T R"],
    sin: Float[Tensor, "*B T R"],
    pairs: Literal["halves", "neighbours"],
) -> Float[Tensor, "B T N H"]:
    """Turn each channel pair of `x` by its angle; channels past the 2R first pass unchanged."""
    rotary_dim = 2 * cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turning, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if pairs == "halves":
        first, second = turning.chunk(2, dim=-1)
    else:
        first, second = turning[..., 0::2], turning[..., 1::2]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    if pairs == "halves":
        turned = torch.cat((turned_first, turned_second), dim=-1)
    else:
        turned = torch.stack((turned_first, turned_second), dim=-1).flatten(-2)
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
