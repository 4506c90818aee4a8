"""How long a plan will take: measured on finished runs where there are any, else from a probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from gatelm.study.folder import read_state
from gatelm.study.plan import Plan, PlannedRun
from gatelm.study.resources import Resources

UTILISATION = 0.4
"""The part of its matrix products' speed that training a small model reaches; only a run tells."""
_PROBE_SECONDS = 0.05
_PROBE_WIDTH = 512
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Estimate:
    """Seconds each run without a result needs, and on what that rests.

    `measured`: throughput of finished runs of the same part (else of the study); `probed`: none has
    finished, and the figure is FLOPs over `probed_rate`; `given`: FLOPs over the speed named.
    """

    seconds: Mapping[PlannedRun, float]
    basis: Literal["measured", "probed", "given"]
    wall_seconds: float


def probed_rate(run: PlannedRun, resources: Resources) -> float:
    """FLOP/s of a run where nothing has been measured: a share of its matrix products' speed."""
    share = 1 if resources.device == "cpu" else 1 / resources.workers
    speed = matmul_flops_per_second(run.config.train.precision, resources.device, resources.threads)
    return UTILISATION * share * speed


@cache
def matmul_flops_per_second(precision: str, device: str, threads: int) -> float:
    """Speed of a square matrix product, best of a few tries within a fraction of a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.ones(_PROBE_WIDTH, _PROBE_WIDTH, dtype=_DTYPES[precision], device=device)
        best, started = float("inf"), time.perf_counter()
        while time.perf_counter() - started < _PROBE_SECONDS:
            begun = time.perf_counter()
            (a @ a).sum().item()
            best = min(best, time.perf_counter() - begun)
    finally:
        torch.set_num_threads(before)
    return 2 * _PROBE_WIDTH**3 / best


def estimate(
    plan: Plan, root: Path, resources: Resources, flops_per_second: float | None = None
) -> Estimate:
    """Seconds of every run that has no result yet, and of all of them in their workers.

    Args:
        flops_per_second: what a run computes on another machine, whose time is wanted.
    """
    states = {run: read_state(root, run) for run in plan.runs}
    measured: dict[str, list[float]] = {}
    for run, state in states.items():
        seconds = state.result.get("seconds")
        if state.status == "finished" and seconds:
            measured.setdefault(run.part, []).append(run.flops / seconds)
    everything = [rate for rates in measured.values() for rate in rates]

    def rate(run: PlannedRun) -> float:
        if flops_per_second is not None:
            return flops_per_second
        known = measured.get(run.part) or everything
        return _median(known) if known else probed_rate(run, resources)

    todo = {run: run.flops / rate(run) for run, s in states.items() if not s.done}
    longest = max(todo.values(), default=0.0)
    return Estimate(
        seconds=todo,
        basis="given" if flops_per_second else "measured" if everything else "probed",
        wall_seconds=max(longest, sum(todo.values()) / resources.workers),
    )


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
