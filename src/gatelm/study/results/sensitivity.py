"""Learning-rate sensitivity: metrics of an arm over a grid of learning rates, by seed.

Source: arXiv 2309.14322; the formula is `lr_sensitivity` in `gatelm.analysis.metrics.registry`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatelm.study.planning.derived import LR_AXIS
from gatelm.study.results.numbers import is_number
from gatelm.train.watching.metrics import read_metrics

if TYPE_CHECKING:
    from gatelm.study.planning.plan import PlannedRun
    from gatelm.study.running.folder import State


@dataclass(frozen=True)
class Sweep:
    """One arm at one point of the other axes: its metrics by seed."""

    arm: str
    axes: Mapping[str, Any]
    metrics: Mapping[int, Mapping[str, float | None]]


def sweeps(
    runs: Iterable[PlannedRun], states: Mapping[PlannedRun, State], root: Path
) -> list[Sweep]:
    """Compute `LR_METRICS` of every arm over the axis `optim.lr`, for seeds whose grid is done."""
    grids: dict[tuple[str, str], dict[int, dict[float, PlannedRun]]] = {}
    axes: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        other = {path: value for path, value in run.axes.items() if path != LR_AXIS}
        key = run.arm, json.dumps(other)
        axes[key] = other
        grids.setdefault(key, {}).setdefault(run.seed, {})[float(run.axes[LR_AXIS])] = run
    return [
        Sweep(
            key[0],
            axes[key],
            {
                seed: _of_grid(grid, states, root)
                for seed, grid in by_seed.items()
                if all(states[run].done for run in grid.values())
            },
        )
        for key, by_seed in grids.items()
    ]


def sensitivity(losses: Mapping[float, float], loss_at_start: float) -> dict[str, float | None]:
    """Compute `LR_METRICS` of final losses by learning rate; a diverged loss is infinite."""
    diverged = {lr for lr, loss in losses.items() if not loss <= loss_at_start}
    clipped = {lr: loss_at_start if lr in diverged else loss for lr, loss in losses.items()}
    best = min(clipped, key=lambda lr: (clipped[lr], lr))
    stable = None
    for lr in sorted(losses):
        if lr in diverged:
            break
        stable = lr
    everything_diverged = len(diverged) == len(losses)
    return {
        "lr_sensitivity": math.fsum(clipped.values()) / len(clipped) - clipped[best],
        "largest_stable_lr": stable,
        "best_lr": None if everything_diverged else best,
        "best_lr_loss": None if everything_diverged else clipped[best],
    }


def _of_grid(
    grid: Mapping[float, PlannedRun], states: Mapping[PlannedRun, State], root: Path
) -> dict[str, float | None]:
    start = next(
        (loss for run in grid.values() if (loss := _loss_at_start(root / run.folder)) is not None),
        None,
    )
    if start is None:
        return {}
    losses = {}
    for lr, run in grid.items():
        loss = states[run].metrics.get("val_loss")
        finished = states[run].status == "finished"
        losses[lr] = float(loss) if finished and is_number(loss) else math.inf
    return sensitivity(losses, start)


def _loss_at_start(folder: Path) -> float | None:
    """Return the validation loss of the initial weights, which do not depend on the rate."""
    path = folder / "metrics.jsonl"
    for record in read_metrics(path, "eval") if path.is_file() else ():
        if record["step"] == 0:
            return record.get("val_loss")
    return None
