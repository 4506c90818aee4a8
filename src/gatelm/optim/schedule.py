"""Learning rate as a pure function of the step; each schedule is a config with its own formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from gatelm.config import Config


class ConstantSchedule(Config):
    """The peak rate at every step after the warm-up."""

    kind: Literal["constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""

    def after_warmup(self, step: int, total_steps: int) -> float:
        """Return the rate at a step after the warm-up, as a fraction of the peak."""
        return 1.0


class LinearSchedule(Config):
    """A straight line from the peak to `min_lr_ratio` times the peak."""

    kind: Literal["linear"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""

    def after_warmup(self, step: int, total_steps: int) -> float:
        """Return the rate at a step after the warm-up, as a fraction of the peak."""
        return decayed(self, "linear", self.warmup_steps, step, total_steps)


class CosineSchedule(Config):
    """Half a cosine from the peak to `min_lr_ratio` times the peak."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""

    def after_warmup(self, step: int, total_steps: int) -> float:
        """Return the rate at a step after the warm-up, as a fraction of the peak."""
        return decayed(self, "cosine", self.warmup_steps, step, total_steps)


class WSDSchedule(Config):
    """Warm-up, stable, decay: the peak rate until the last `decay_fraction` of the steps."""

    kind: Literal["wsd"] = "wsd"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    decay_fraction: float = Field(default=0.2, gt=0, le=1)
    """The part of `total_steps`, at its end, over which the rate falls."""
    decay_shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """How it falls: a line, 1 - sqrt(progress), or half a cosine."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""

    def after_warmup(self, step: int, total_steps: int) -> float:
        """Return the rate at a step after the warm-up, as a fraction of the peak."""
        start = max(self.warmup_steps, total_steps * (1 - self.decay_fraction))
        return decayed(self, self.decay_shape, start, step, total_steps)


ScheduleConfig = Annotated[
    ConstantSchedule | LinearSchedule | CosineSchedule | WSDSchedule, Field(discriminator="kind")
]


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """Return the rate of the update after `step` finished ones, as a fraction of the peak.

    Warm-up gives (step + 1) / warmup_steps, so that the first update moves; a warm-up longer than
    the run never reaches the peak. The decay reaches `min_lr_ratio` at `step == total_steps`.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    return schedule.after_warmup(step, total_steps)


def decayed(
    schedule: LinearSchedule | CosineSchedule | WSDSchedule,
    shape: str,
    start: int | float,
    step: int,
    total_steps: int,
) -> float:
    """Decay from 1 at the step `start` to `min_lr_ratio` at `total_steps`, by one of `DECAYS`."""
    if step <= start and start < total_steps:
        return 1.0
    progress = min(1.0, (step - start) / (total_steps - start)) if start < total_steps else 1.0
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * DECAYS[shape](progress)


def ramp(step: int, from_step: int, warmup_steps: int) -> float:
    """Return a group's factor: 0 before it trains, then (steps since + 1) / `warmup_steps` to 1.

    Multiplies the schedule's rate, whose warm-up is counted from the run's beginning.
    """
    if step < from_step:
        return 0.0
    return min(1.0, (step - from_step + 1) / warmup_steps) if warmup_steps else 1.0


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "sqrt": lambda progress: 1 - math.sqrt(progress),
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
"""Remaining part of a decay at a progress of 0 to 1, by the name of its shape."""
