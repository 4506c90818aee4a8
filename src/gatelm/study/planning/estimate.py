"""The time of a plan, estimated from finished runs if there are any, else from timed steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from gatelm.study.planning.plan import Plan, PlannedRun
from gatelm.study.planning.vocabulary import sized
from gatelm.study.running.folder import read_state
from gatelm.study.running.resources import Resources
from gatelm.train.speed import TrainingSpeed, run_flops, training_speed

START_SECONDS = 3.0
"""Seconds of a worker's imports, and of the end of a run."""
_RUN_SECONDS = 0.5

Basis = Literal["finished runs", "timed steps", "products", "given"]


@dataclass(frozen=True)
class TimeEstimate:
    """Expected seconds of each run without a result, and the basis of the estimate.

    `finished runs`: their throughput, by part where it has any; `timed steps`: a few training steps
    of each part's baseline, in as many processes as train at once; `products`: a share of the speed
    of matrix products, for models too large to time; `given`: FLOPs over the speed named.
    """

    seconds: Mapping[PlannedRun, float]
    basis: Basis
    wall_seconds: float


def estimate(
    plan: Plan, root: Path, resources: Resources, flops_per_second: float | None = None
) -> TimeEstimate:
    """Estimate the seconds of every run without a result, and of all of them in their workers.

    Args:
        flops_per_second: what a run computes on another machine, whose time is wanted.
    """
    states = {run: read_state(root, run) for run in plan.runs}
    finished: dict[str, list[float]] = {}
    for run, state in states.items():
        seconds = state.result.get("seconds")
        if state.status == "finished" and seconds:
            finished.setdefault(run.part, []).append(run.flops / seconds)
    todo = [run for run, state in states.items() if not state.done]
    bases: list[Basis] = []
    speeds: dict[str, float] = {}
    for part in dict.fromkeys(run.part for run in todo):
        if flops_per_second is not None:
            speeds[part], basis = flops_per_second, "given"
        elif part in finished:
            speeds[part], basis = median(finished[part]), "finished runs"
        else:
            speed = _timed(plan, part, resources)
            speeds[part] = speed.flops_per_second
            basis = "timed steps" if speed.measured else "products"
        bases.append(basis)
    seconds = {
        run: run_flops(run.config, sized(run.config)) / speeds[run.part] + _RUN_SECONDS
        for run in todo
    }
    wall = max([*seconds.values(), sum(seconds.values()) / resources.workers], default=0.0)
    return TimeEstimate(
        seconds=seconds,
        basis=_weakest(bases),
        wall_seconds=wall + START_SECONDS * bool(todo),
    )


def _timed(plan: Plan, part: str, resources: Resources) -> TrainingSpeed:
    """Measure the speed of the part's first run."""
    cfg = plan.of(part)[0].config
    threads = cfg.train.threads or resources.threads
    return training_speed(cfg, sized(cfg), threads=threads, processes=resources.workers)


def _weakest(bases: list[Basis]) -> Basis:
    order: tuple[Basis, ...] = ("given", "products", "timed steps")
    for basis in order:
        if basis in bases:
            return basis
    return "finished runs"
