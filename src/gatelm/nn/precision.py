"""Computation in float32 inside modules, whatever the model's dtype."""

from __future__ import annotations

from torch import Tensor, float64


def to_float32(x: Tensor) -> Tensor:
    """Return x in float32, or unchanged if it is float64."""
    return x if x.dtype == float64 else x.float()
