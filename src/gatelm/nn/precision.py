"""Where float32 is used inside, whatever the model's dtype."""

from __future__ import annotations

from torch import Tensor, float64


def to_float32(x: Tensor) -> Tensor:
    """x in float32, or as it is in float64."""
    return x if x.dtype == float64 else x.float()
