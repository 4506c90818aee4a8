"""Arms of equal cost: the width that gives a run its baseline's parameters or FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

Quantity = Literal["parameters", "flops"]

_MAX_STEPS = 1 << 20


def nearest_width(cost: Callable[[int], int], target: int, multiple: int) -> int:
    """Find the multiple of `multiple` whose cost, which grows with width, is nearest `target`.

    Of two equally near ones the smaller.

    Raises:
        ValueError: when even the smallest width costs more, or width does not change the cost.
    """

    @cache
    def at(number: int) -> int:
        return cost(number * multiple)

    if at(1) > target:
        raise ValueError(
            f"already at width {multiple} it costs {at(1):,}, more than the baseline's {target:,}"
        )
    low, high = _straight_line(at, target)
    while at(high) < target:
        low, high = high, 2 * high
        if high > _MAX_STEPS:
            raise ValueError("this width does not change what the run costs")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) <= target else (low, middle)
    return multiple * (low if target - at(low) <= at(high) - target else high)


def _straight_line(at: Callable[[int], int], target: int) -> tuple[int, int]:
    """Guess neighbours around the target if cost grows evenly, as it mostly does; else (1, 2)."""
    step = at(2) - at(1)
    guess = 1 + (target - at(1)) // step if step > 0 else 1
    return (guess, guess + 1) if guess <= _MAX_STEPS and at(guess) <= target else (1, 2)
