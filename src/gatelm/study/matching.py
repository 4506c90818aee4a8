"""Arms of equal cost: the width with which a run has its baseline's parameters or FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Quantity = Literal["parameters", "flops"]

_MAX_STEPS = 1 << 20


def nearest_width(cost: Callable[[int], int], target: int, multiple: int) -> int:
    """The multiple of `multiple` whose cost, which must not fall with width, is nearest `target`.

    Of two equally near ones the smaller.

    Raises:
        ValueError: when even the smallest width costs more, or width does not change the cost.
    """
    if cost(multiple) > target:
        raise ValueError(
            f"already at width {multiple} it costs {cost(multiple):,}, more than the baseline's "
            f"{target:,}"
        )
    low, high = 1, 2
    while cost(high * multiple) < target:
        low, high = high, 2 * high
        if high > _MAX_STEPS:
            raise ValueError("this width does not change what the run costs")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle * multiple) <= target else (low, middle)
    below, above = cost(low * multiple), cost(high * multiple)
    return multiple * (low if target - below <= above - target else high)
