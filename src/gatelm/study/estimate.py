"""How long a plan will take: measured on finished runs where there are any, else assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gatelm.study.folder import read_state
from gatelm.study.plan import Plan, PlannedRun
from gatelm.study.resources import Resources

ASSUMED_FLOPS_PER_SECOND = {"cpu": 3e10, "cuda": 2e13}
"""Of one CPU thread, or a GPU, on small models; only a run here can tell."""


@dataclass(frozen=True)
class Estimate:
    """Seconds each run without a result needs, and on what that rests.

    `measured`: throughput of finished runs of the same part (else of the study); `assumed`: none
    has finished, and the figure is FLOPs over `assumed_rate`.
    """

    seconds: Mapping[PlannedRun, float]
    basis: Literal["measured", "assumed"]
    wall_seconds: float


def assumed_rate(resources: Resources) -> float:
    """FLOP/s of one run, where nothing has been measured."""
    share = resources.threads if resources.device == "cpu" else 1 / resources.workers
    return ASSUMED_FLOPS_PER_SECOND[resources.device] * share


def estimate(plan: Plan, root: Path, resources: Resources) -> Estimate:
    """Seconds of every run that has no result yet, and of all of them in their workers."""
    states = {run: read_state(root, run) for run in plan.runs}
    measured: dict[str, list[float]] = {}
    for run, state in states.items():
        seconds = state.result.get("seconds")
        if state.status == "finished" and seconds:
            measured.setdefault(run.part, []).append(run.flops / seconds)
    everything = [rate for rates in measured.values() for rate in rates]
    fallback = _median(everything) if everything else assumed_rate(resources)
    rates = {
        part: _median(measured[part]) if part in measured else fallback for part in plan.study.parts
    }
    todo = {run: run.flops / rates[run.part] for run, s in states.items() if not s.done}
    longest = max(todo.values(), default=0.0)
    return Estimate(
        seconds=todo,
        basis="measured" if everything else "assumed",
        wall_seconds=max(longest, sum(todo.values()) / resources.workers),
    )


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
