"""Sums that stay exact over many batches."""

from __future__ import annotations

from torch import Tensor


def double(tensor: Tensor) -> Tensor:
    """`tensor` in float64 on the CPU: some accelerators have no float64."""
    return tensor.detach().cpu().double()
