"""Speed to loss: when a run first reaches the loss at which its baseline ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gatelm.train.watching.metrics import read_metrics

if TYPE_CHECKING:
    from gatelm.study.planning.plan import PlannedRun
    from gatelm.study.running.folder import State

TIMED = ("seconds_to_baseline_loss",)
"""Metrics that depend on the machine's clock, which differ between equal runs."""

Point = tuple[float, float]


def speed(
    runs: Iterable[PlannedRun], states: Mapping[PlannedRun, State], root: Path, baseline: str
) -> dict[PlannedRun, dict[str, float]]:
    """Compute `SPEED_METRICS` of the finished runs of a part whose baseline has finished."""
    curves = {
        run: _curves(root / run.folder / "metrics.jsonl")
        for run in runs
        if states[run].status == "finished"
    }
    targets = {
        (str(dict(run.axes)), run.seed): losses[-1][1]
        for run, (losses, _) in curves.items()
        if run.arm == baseline and losses
    }
    out: dict[PlannedRun, dict[str, float]] = {}
    for run, (losses, seconds) in curves.items():
        target = targets.get((str(dict(run.axes)), run.seed))
        if target is None or not losses:
            continue
        step = first_step_at(losses, target)
        reached = step if step is not None else losses[-1][0]
        out[run] = {"steps_to_baseline_loss": reached, "reached_baseline_loss": step is not None}
        if seconds:
            out[run]["seconds_to_baseline_loss"] = interpolate([(0.0, 0.0), *seconds], reached)
    return out


def first_step_at(losses: Sequence[Point], target: float) -> float | None:
    """Return the step at which a curve of (step, loss) first is at or below `target`, or None.

    Between two validations the loss is taken to be a straight line.
    """
    previous: Point | None = None
    for step, loss in losses:
        if loss <= target:
            if previous is None:
                return step
            before, above = previous
            return before + (step - before) * (above - target) / (above - loss)
        previous = step, loss
    return None


def interpolate(points: Sequence[Point], x: float) -> float:
    """Interpolate linearly between points in rising order; extrapolate beyond the last."""
    if len(points) == 1:
        return points[0][1]
    index = next((i for i, (at, _) in enumerate(points) if at >= x and i), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _curves(path: Path) -> tuple[list[Point], list[Point]]:
    """Read (step, validation loss) and (step, seconds of training) of a run, in order."""
    losses: list[Point] = []
    seconds: list[Point] = []
    for record in read_metrics(path) if path.is_file() else ():
        if record["kind"] == "eval" and record.get("val_loss") is not None:
            losses.append((record["step"], record["val_loss"]))
        elif record["kind"] == "train" and record.get("seconds") is not None:
            seconds.append((record["step"], record["seconds"]))
    return losses, seconds
