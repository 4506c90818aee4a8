"""A plan as a table for the terminal, or as JSON."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatelm.study.planning.estimate import TimeEstimate
from gatelm.study.planning.plan import Plan, PlannedRun
from gatelm.study.results.numbers import si
from gatelm.study.running.folder import read_state
from gatelm.study.running.progress import clock_time
from gatelm.study.running.resources import Resources
from gatelm.train.speed import UTILISATION


def plan_table(plan: Plan, root: Path, times: TimeEstimate, resources: Resources) -> RenderableType:
    """Make one row per arm and point of the axes; its seeds share parameters and FLOPs."""
    out: list[RenderableType] = []
    for name, part in plan.study.parts.items():
        runs = plan.of(name)
        table = Table(box=None, pad_edge=False, header_style="underline")
        for column in ("arm", "seeds"):
            table.add_column(column)
        for column in ("parameters", "gates", "FLOPs a run", "time a run", "done"):
            table.add_column(column, justify="right")
        for _, group in groupby(runs, key=lambda run: run.setting):
            table.add_row(*_row(list(group), root, times))
        precisions = ", ".join(sorted({run.config.train.precision for run in runs}))
        out += [Text(f"{name}: {part.question or part.title}", style="bold"), table]
        out.append(Text(f"trained in {precisions}", style="dim"))
        if part.match:
            matched = f"{part.match.quantity} matched to {part.baseline} by {part.match.by}"
            out.append(Text(matched, style="dim"))
        out.append(Text(""))
    return Group(*out, Text(_total(plan, times, resources)))


def forecast(plan: Plan, times: TimeEstimate) -> str:
    """Say in a line what a study will do on this machine."""
    precisions = ", ".join(sorted({run.config.train.precision for run in times.seconds}))
    return (
        f"{plan.study.name}: training in {precisions}, about {clock_time(times.wall_seconds)} here "
        f"({_BASES[times.basis]})"
    )


def plan_json(plan: Plan, root: Path, times: TimeEstimate) -> dict[str, Any]:
    """Return the plan for programs: one record per run."""
    return {
        "study": plan.study.name,
        "folder": str(root),
        "precision": plan.study.precision,
        "estimate": {"basis": times.basis, "wall_seconds": times.wall_seconds},
        "runs": [
            {
                "part": run.part,
                "arm": run.arm,
                "axes": dict(run.axes),
                "seed": run.seed,
                "config_hash": run.config_hash,
                "status": read_state(root, run).status,
                "folder": run.folder,
                "parameters": run.parameters,
                "gate_parameters": run.gate_parameters,
                "precision": run.config.train.precision,
                "flops": run.flops,
                "estimated_seconds": times.seconds.get(run),
            }
            for run in plan.runs
        ],
    }


def _row(runs: list[PlannedRun], root: Path, times: TimeEstimate) -> list[str]:
    first = runs[0]
    left = [times.seconds[run] for run in runs if run in times.seconds]
    done = sum(read_state(root, run).done for run in runs)
    return [
        first.setting,
        ",".join(str(run.seed) for run in runs),
        f"{first.parameters:,}",
        f"{first.gate_parameters:,}",
        si(first.flops),
        clock_time(left[0]) if left else "",
        f"{done}/{len(runs)}",
    ]


def _total(plan: Plan, times: TimeEstimate, resources: Resources) -> str:
    if not times.seconds:
        return f"all {len(plan.runs)} runs are done"
    flops = si(sum(run.flops for run in times.seconds))
    return (
        f"{len(times.seconds)} of {len(plan.runs)} runs to train, {flops}FLOP in all; "
        f"with {_processes(resources)} about {clock_time(times.wall_seconds)}, "
        f"an estimate {_BASES[times.basis]}"
    )


_BASES = {
    "finished runs": "from the throughput of finished runs",
    "timed steps": "from a few training steps of each part, timed on this machine",
    "products": f"at {UTILISATION:.0%} of the speed of this machine's matrix products, a guess",
    "given": "at the speed named",
}


def _processes(resources: Resources) -> str:
    if resources.device == "cuda":
        return f"{resources.workers} at a time on the GPU"
    return f"{resources.workers} at a time, {resources.threads} CPU threads each,"
