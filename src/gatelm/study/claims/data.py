"""Results of a study as the tests of claims read them: values by part, point, arm and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gatelm.study.claims.registry import WRITTEN
from gatelm.study.results.statistics import Comparison, Interval, mean_interval, paired_difference

Values = dict[int, float]

OF_THE_RUN = ("seconds", "parameters", "gate_parameters", "flops")
"""What a run has beside its metrics."""


@dataclass(frozen=True)
class Point:
    """All arms of one part at one point of its axes."""

    part: str
    axes: Mapping[str, Any]
    confidence: float
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]]
    """By arm and seed."""
    compared: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)
    """The study's own comparisons, by arm, baseline and metric."""
    swept: bool = False
    """Each of `runs` stands for a seed's whole grid of learning rates."""

    @property
    def where(self) -> str:
        """The part, and the place on the axes."""
        place = ", ".join(f"{_last(path)}={value}" for path, value in self.axes.items())
        return f"{self.part} ({place})" if place else self.part

    def without(self, axis: str) -> dict[str, Any]:
        return {path: value for path, value in self.axes.items() if _last(path) != axis}

    def coordinate(self, axis: str) -> Any:
        """The value of an axis by the last step of its path; None where there is no such axis."""
        return next((value for path, value in self.axes.items() if _last(path) == axis), None)

    def values(self, arm: str, metric: str) -> Values:
        """The metric by seed, of the runs that finished and have it."""
        found = {
            seed: _value(run, metric)
            for seed, run in self.runs.get(arm, {}).items()
            if run.get("status") == "finished"
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def has(self, metric: str) -> bool:
        """Whether any finished run has the metric."""
        return any(self.values(arm, metric) for arm in self.runs)

    def diverged(self, arm: str) -> int:
        return sum(run.get("status") == "diverged" for run in self.runs.get(arm, {}).values())

    def planned(self, arm: str) -> int:
        return len(self.runs.get(arm, {}))

    def mean(self, arm: str, metric: str) -> Interval:
        return mean_interval(list(self.values(arm, metric).values()), self.confidence)

    def difference(self, arm: str, baseline: str, metric: str) -> Comparison:
        """Arm minus baseline, not corrected for other comparisons."""
        return paired_difference(
            self.values(arm, metric),
            self.values(baseline, metric),
            confidence=self.confidence,
            diverged=self.diverged(arm),
            baseline_diverged=self.diverged(baseline),
        )

    def study_difference(self, arm: str, baseline: str, metric: str) -> Comparison | None:
        """As the study itself compared them, corrected for its other arms."""
        entry = self.compared.get((arm, baseline, metric))
        if entry is None or not set(Comparison.__dataclass_fields__) <= set(entry):
            return None
        return Comparison(**{name: entry[name] for name in Comparison.__dataclass_fields__})


@dataclass(frozen=True)
class StudyData:
    """One study's results."""

    name: str
    size: str
    command: str
    points: tuple[Point, ...]

    @classmethod
    def of(cls, results: Mapping[str, Any], command: str) -> StudyData:
        return cls(
            str(results.get("study") or ""),
            str(results.get("size") or WRITTEN),
            command,
            tuple(_points(results)),
        )


def find_arms(
    point: Point, arms: Sequence[str], names: Callable[[str], Sequence[str]]
) -> tuple[list[str], list[str]]:
    """The point's own names of arms, each among `names`, and the arms that it lacks."""
    found = {arm: next((n for n in names(arm) if n in point.runs), None) for arm in arms}
    return [name for name in found.values() if name], [arm for arm in arms if not found[arm]]


def _points(results: Mapping[str, Any]) -> Iterator[Point]:
    """Every place that runs are at; results may be those of a study under way."""
    runs = results.get("runs") or ()
    grids = [{**sweep, "status": "finished"} for sweep in results.get("sweeps") or ()]
    for part, spec in results["parts"].items():
        for rows, swept in ((runs, False), (grids, True)):
            yield from _of_part(results, part, float(spec.get("confidence") or 0.95), rows, swept)


def _of_part(
    results: Mapping[str, Any],
    part: str,
    confidence: float,
    rows: Sequence[Mapping[str, Any]],
    swept: bool,
) -> Iterator[Point]:
    places: dict[str, Mapping[str, Any]] = {}
    runs: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for run in rows:
        if run.get("part") == part and "seed" in run:
            axes = run.get("axes") or {}
            key = json.dumps(axes)
            places[key] = axes
            runs.setdefault(key, {}).setdefault(str(run.get("arm")), {})[run["seed"]] = run
    for key, axes in places.items():
        compared = {
            (str(c.get("arm")), str(c.get("baseline")), str(c.get("metric"))): c
            for c in results.get("comparisons") or ()
            if c.get("part") == part and json.dumps(c.get("axes") or {}) == key
        }
        yield Point(part, axes, confidence, runs[key], compared, swept)


def _value(run: Mapping[str, Any], metric: str) -> float | None:
    value = run.get(metric) if metric in OF_THE_RUN else run.get("metrics", {}).get(metric)
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None  # type: ignore[arg-type]


def _last(path: str) -> str:
    return path.rpartition(".")[2]
