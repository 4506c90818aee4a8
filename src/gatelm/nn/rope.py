"""Rotary position embedding (arXiv 2104.09864)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from gatelm.config import Config
from gatelm.nn.shapes import Float, Int, Tensor


class RopeConfig(Config):
    """Rotary positions; the first `partial_factor` of each head's channels turn."""

    base: float = Field(default=10_000.0, gt=1)
    partial_factor: float = Field(default=1.0, gt=0, le=1)
    pairs: Literal["halves", "neighbours"] = "halves"
    """Which channels form a pair: i and i + rotary_dim/2, or 2i and 2i + 1."""

    def rotary_dim(self, head_dim: int) -> int:
        """Channels that turn; a whole, even number (`nn.check` refuses others)."""
        return int(head_dim * self.partial_factor)


def rotary_angles(
    cfg: RopeConfig, head_dim: int, positions: Int[Tensor, "*B T"]
) -> Float[Tensor, "*B T R"]:
    """Angles position * base^(-2i/rotary_dim), one per pair, float32 whatever the model's dtype."""
    rotary_dim = cfg.rotary_dim(head_dim)
    exponent = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32)
    inverse_frequency = cfg.base ** (-exponent / rotary_dim)
    return positions[..., None].to(torch.float32) * inverse_frequency


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
