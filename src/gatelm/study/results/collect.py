"""The outcome of a study as data: every run, summaries over seeds, comparisons with the baseline.

`results.json` holds everything. `results.csv` has one row a run and one column a variable (tidy
for pandas and R: group by `part`, `arm` and the axes; other shapes are one `melt` away); the time
a run took stays out of it, so that the same runs give the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import gatelm
from gatelm.analysis.metrics.run_metrics import TRAINING_METRICS
from gatelm.io.files import write_text
from gatelm.study.planning.derived import LR_AXIS, LR_METRICS, SPEED_METRICS
from gatelm.study.planning.plan import Plan, PlannedRun
from gatelm.study.planning.spec import PartConfig
from gatelm.study.results.schema import (
    ComparisonEntry,
    Number,
    PartEntry,
    RunEntry,
    StudyResults,
    SummaryEntry,
    SweepEntry,
)
from gatelm.study.results.sensitivity import sweeps
from gatelm.study.results.sentence import sentence
from gatelm.study.results.speed import TIMED, speed
from gatelm.study.results.statistics import Comparison, correct, mean_interval, paired_difference
from gatelm.study.running.folder import State, read_json, read_state

Values = dict[int, float]


def write_results(plan: Plan, root: Path) -> StudyResults:
    """Collect the runs below `root` into results.json and results.csv; returns the former."""
    results = collect(plan, root)
    _update(root / "results.json", results.to_json() + "\n")
    _update(root / "results.csv", to_csv(results))
    return results


def _update(path: Path, text: str) -> None:
    """Write a file unless it is equal, so that its time says when the results last changed."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def collect(plan: Plan, root: Path) -> StudyResults:
    """Collect everything known about the plan's runs."""
    states = _states(plan, root)
    study = plan.study
    summaries: list[SummaryEntry] = []
    comparisons: list[ComparisonEntry] = []
    sweep_entries: list[SweepEntry] = []
    for name, part in study.parts.items():
        cells = _cells(plan.of(name), states)
        swept = _swept_cells(plan.of(name), states, root) if LR_AXIS in part.axes else []
        sweep_entries += [
            SweepEntry(
                part=name,
                arm=cell.arm,
                axes=dict(cell.axes),
                seed=seed,
                metrics=_numbers(state.result["metrics"]),
            )
            for cell in swept
            for seed, state in cell.runs.items()
        ]
        for metric in part.metrics:
            of_metric = swept if metric in LR_METRICS else cells
            summaries += _summaries(name, part, metric, of_metric)
            comparisons += _comparisons(name, part, metric, of_metric)
    command = root / "command.txt"
    return StudyResults(
        study=study.name,
        title=study.title,
        summary=study.summary,
        size=study.size,
        gatelm_version=gatelm.__version__,
        versions=_versions(plan, root),
        command=command.read_text(encoding="utf-8").strip() if command.is_file() else "",
        parts={name: _part(part) for name, part in study.parts.items()},
        runs=tuple(_run(run, states[run]) for run in plan.runs),
        sweeps=tuple(sweep_entries),
        summaries=tuple(summaries),
        comparisons=tuple(comparisons),
    )


def _states(plan: Plan, root: Path) -> dict[PlannedRun, State]:
    """Return the state of every run, with metrics of training and of speed to loss."""
    states = {run: read_state(root, run) for run in plan.runs}
    more: dict[PlannedRun, dict[str, Any]] = {
        run: {name: state.result["training"][name] for name in TRAINING_METRICS}
        for run, state in states.items()
        if TRAINING_METRICS[0] in (state.result.get("training") or {})
    }
    for name, part in plan.study.parts.items():
        if set(part.metrics) & set(SPEED_METRICS):
            for run, values in speed(plan.of(name), states, root, part.baseline).items():
                more.setdefault(run, {}).update(values)
    return {run: _with_metrics(state, more.get(run, {})) for run, state in states.items()}


def _with_metrics(state: State, more: Mapping[str, Any]) -> State:
    metrics = {**state.metrics, **more}
    return replace(state, result={**state.result, "metrics": metrics}) if more else state


def to_csv(results: StudyResults) -> str:
    """Write one row per run; cells without a value are empty."""
    runs = results.runs
    axes = list(dict.fromkeys(path for run in runs for path in run.axes))
    metrics = sorted({metric for run in runs for metric in run.metrics} - set(TIMED))
    fixed = ["part", "arm", "seed", "status", "config_hash", "parameters", "gate_parameters"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*fixed, *axes, *metrics])
    for run in runs:
        values = [run.axes.get(path) for path in axes]
        values += [run.metrics.get(metric) for metric in metrics]
        writer.writerow([getattr(run, key) for key in fixed] + [_cell(value) for value in values])
    return buffer.getvalue()


class _Cell:
    """The runs of one arm at one point of the axes."""

    def __init__(self, arm: str, axes: Mapping[str, Any], runs: Mapping[int, State]):
        self.arm, self.axes, self.runs = arm, axes, runs
        self.diverged = {seed for seed, state in runs.items() if state.status == "diverged"}

    def values(self, metric: str) -> Values:
        """Return the metric by seed, from the finished runs that have it."""
        found = {
            seed: _number(state.metrics.get(metric))
            for seed, state in self.runs.items()
            if state.status == "finished"
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def knows(self, metric: str) -> bool:
        """Whether finished runs report the metric, even as null; True if none has finished."""
        finished = [s.metrics for s in self.runs.values() if s.status == "finished"]
        return not finished or any(metric in metrics for metrics in finished)


def _cells(runs: Iterable[PlannedRun], states: Mapping[PlannedRun, State]) -> list[_Cell]:
    grouped = groupby(runs, key=lambda run: (run.arm, json.dumps(run.axes)))
    out = []
    for _, group in grouped:
        members = list(group)
        by_seed = {run.seed: states[run] for run in members}
        out.append(_Cell(members[0].arm, members[0].axes, by_seed))
    return out


def _swept_cells(
    runs: Iterable[PlannedRun], states: Mapping[PlannedRun, State], root: Path
) -> list[_Cell]:
    """Return an arm's metrics over its learning rates, as if each seed's grid were one run."""
    return [
        _Cell(
            sweep.arm,
            sweep.axes,
            {
                seed: State("finished", {"metrics": dict(metrics)})
                for seed, metrics in sweep.metrics.items()
            },
        )
        for sweep in sweeps(runs, states, root)
    ]


def _summaries(
    name: str, part: PartConfig, metric: str, cells: Iterable[_Cell]
) -> list[SummaryEntry]:
    return [
        SummaryEntry(
            part=name,
            arm=cell.arm,
            axes=dict(cell.axes),
            metric=metric,
            diverged=len(cell.diverged),
            **dict(mean_interval(list(cell.values(metric).values()), part.confidence)),
        )
        for cell in cells
    ]


def _comparisons(
    name: str, part: PartConfig, metric: str, cells: list[_Cell]
) -> list[ComparisonEntry]:
    baselines = {json.dumps(c.axes): c for c in cells if c.arm == part.baseline}
    pairs = [
        (cell, baselines[json.dumps(cell.axes)]) for cell in cells if cell.arm != part.baseline
    ]
    pairs = [(cell, base) for cell, base in pairs if _comparable(metric, cell, base)]
    compared = correct([_compare(part, metric, cell, base) for cell, base in pairs])
    return [
        ComparisonEntry(
            part=name,
            arm=cell.arm,
            axes=dict(cell.axes),
            baseline=part.baseline,
            metric=metric,
            sentence=sentence(cell.arm, part.baseline, cell.axes, metric, comparison),
            **dict(comparison),
        )
        for (cell, _), comparison in zip(pairs, compared, strict=True)
    ]


def _comparable(metric: str, cell: _Cell, base: _Cell) -> bool:
    """Whether no side has finished runs without the metric, such as a gate's mean."""
    return all(side.knows(metric) for side in (cell, base))


def _compare(part: PartConfig, metric: str, cell: _Cell, base: _Cell) -> Comparison:
    return paired_difference(
        cell.values(metric),
        base.values(metric),
        confidence=part.confidence,
        diverged=len(cell.diverged),
        baseline_diverged=len(base.diverged),
    )


def _part(part: PartConfig) -> PartEntry:
    tree = part.tree()
    return PartEntry.model_validate({
        **tree,
        "base_config": tree["base"],
        "arm_overrides": tree["arms"],
        "arms": tuple(part.arms),
        "primary_metrics": part.primary,
    })  # fmt: skip


def _run(run: PlannedRun, state: State) -> RunEntry:
    result = state.result
    return RunEntry(
        part=run.part,
        arm=run.arm,
        axes=dict(run.axes),
        seed=run.seed,
        config_hash=run.config_hash,
        status=state.status,
        error=state.error,
        folder=run.folder,
        parameters=result.get("parameters", run.parameters),
        gate_parameters=result.get("gate_parameters", run.gate_parameters),
        precision=run.config.train.precision,
        flops=run.flops,
        metrics=_numbers(state.metrics),
        seconds=_number(result.get("seconds")),
    )


def _versions(plan: Plan, root: Path) -> dict[str, str]:
    """Return the versions that trained the runs; this process's if there is no record yet."""
    seen: dict[str, set[str]] = {}
    for run in plan.runs:
        record = read_json(root / run.folder / "run.json")
        for name, text in (record.get("versions") or {}).items():
            seen.setdefault(name, set()).add(str(text))
        if "threads" in record:
            seen.setdefault("threads", set()).add(str(record["threads"]))
        if record:
            seen.setdefault("precision", set()).add(run.config.train.precision)
    if not seen:
        seen = {"python": {platform.python_version()}, "gatelm": {gatelm.__version__}}
        for name in ("torch", "numpy"):
            try:
                seen[name] = {version(name)}
            except PackageNotFoundError:
                continue
    return {name: ", ".join(sorted(texts)) for name, texts in sorted(seen.items())}


def _numbers(values: Mapping[str, Any]) -> dict[str, Number | None]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: Any) -> Number | None:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return value
    return None


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
