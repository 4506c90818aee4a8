"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from gatelm.optim.config import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    OptimConfig,
    ScheduleConfig,
    WSDSchedule,
)


def lr(cfg: OptimConfig, step: int, total_steps: int) -> float:
    """The learning rate of the update after `step` finished ones, in a run of `total_steps`.

    `total_steps` is the schedule's horizon, not the step where the run stops: a run stopped early
    and continued later sees the same rates. Past the horizon the rate stays at its last value.
    """
    return cfg.lr * lr_factor(cfg.schedule, step, total_steps)


def lr_factor(schedule: ScheduleConfig, step: int, total_steps: int) -> float:
    """The same as a fraction of the peak rate.

    Warm-up gives (step + 1) / warmup_steps, so that the first update moves; a warm-up longer than
    the run never reaches the peak. The decay reaches `min_lr_ratio` at `step == total_steps`.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    match schedule:
        case ConstantSchedule():
            return 1.0
        case LinearSchedule():
            start, shape = schedule.warmup_steps, "linear"
        case CosineSchedule():
            start, shape = schedule.warmup_steps, "cosine"
        case WSDSchedule():
            start = max(schedule.warmup_steps, total_steps * (1 - schedule.decay_fraction))
            shape = schedule.decay_shape
    if step <= start and start < total_steps:
        return 1.0
    progress = min(1.0, (step - start) / (total_steps - start)) if start < total_steps else 1.0
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * _DECAY[shape](progress)


def ramp(step: int, from_step: int, warmup_steps: int) -> float:
    """A group's own factor: 0 before it trains, then (steps since then + 1) / `warmup_steps` to 1.

    Multiplies the schedule's rate, whose warm-up is counted from the run's beginning.
    """
    if step < from_step:
        return 0.0
    return min(1.0, (step - from_step + 1) / warmup_steps) if warmup_steps else 1.0


_DECAY = {
    "linear": lambda progress: 1 - progress,
    "sqrt": lambda progress: 1 - math.sqrt(progress),
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
