"""Results of a study as the tests of claims read them: values by part, point, arm and seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gatelm.study.claims.registry import WRITTEN
from gatelm.study.results.numbers import is_number
from gatelm.study.results.schema import Axes, ComparisonEntry, RunEntry, StudyResults, setting
from gatelm.study.results.statistics import Comparison, Interval, mean_interval, paired_difference

Values = dict[int, float]

OF_THE_RUN = ("seconds", "parameters", "gate_parameters", "flops")
"""Numbers of a run beside its metrics."""


@dataclass(frozen=True)
class Point:
    """All arms of one part at one point of its axes."""

    part: str
    axes: Axes
    confidence: float
    runs: Mapping[str, Mapping[int, RunEntry]]
    """Runs by arm and seed."""
    compared: Mapping[tuple[str, str, str], ComparisonEntry] = field(default_factory=dict)
    """The study's own comparisons, by arm, baseline and metric."""
    swept: bool = False
    """Each of `runs` stands for a seed's whole grid of learning rates."""

    @property
    def where(self) -> str:
        """Name the part and the point of its axes."""
        return f"{self.part} ({setting(self.axes)})" if self.axes else self.part

    def without(self, axis: str) -> dict[str, Any]:
        """Return all axes except the one whose path ends with this name."""
        return {path: value for path, value in self.axes.items() if _last(path) != axis}

    def coordinate(self, axis: str) -> Any:
        """Return the value of the axis whose path ends with this name; None if there is none."""
        return next((value for path, value in self.axes.items() if _last(path) == axis), None)

    def without_seeds(self, seeds: Collection[int], arms: Collection[str]) -> Point:
        """Return the point without these arms' runs of these seeds.

        The study's own comparisons included those runs, so they are left out too.
        """
        if not seeds:
            return self
        runs = {
            arm: {s: run for s, run in by_seed.items() if arm not in arms or s not in seeds}
            for arm, by_seed in self.runs.items()
        }
        return replace(self, runs=runs, compared={})

    def values(self, arm: str, metric: str) -> Values:
        """Return the metric by seed, of the finished runs that have it."""
        found = {
            seed: getattr(run, metric) if metric in OF_THE_RUN else run.metrics.get(metric)
            for seed, run in self.runs.get(arm, {}).items()
            if run.status == "finished"
        }
        return {seed: float(value) for seed, value in found.items() if is_number(value)}

    def has(self, metric: str) -> bool:
        """Whether any finished run has the metric."""
        return any(self.values(arm, metric) for arm in self.runs)

    def diverged(self, arm: str) -> int:
        """Return the number of runs that diverged."""
        return sum(run.status == "diverged" for run in self.runs.get(arm, {}).values())

    def planned(self, arm: str) -> int:
        """Return the number of runs, ended or not."""
        return len(self.runs.get(arm, {}))

    def mean(self, arm: str, metric: str) -> Interval:
        """Return the metric's mean over seeds with its interval."""
        return mean_interval(list(self.values(arm, metric).values()), self.confidence)

    def difference(self, arm: str, baseline: str, metric: str) -> Comparison:
        """Return arm minus baseline, not corrected for other comparisons."""
        return paired_difference(
            self.values(arm, metric),
            self.values(baseline, metric),
            confidence=self.confidence,
            diverged=self.diverged(arm),
            baseline_diverged=self.diverged(baseline),
        )

    def study_difference(self, arm: str, baseline: str, metric: str) -> Comparison | None:
        """Return the study's own comparison, which is corrected for its other arms."""
        return self.compared.get((arm, baseline, metric))


@dataclass(frozen=True)
class StudyData:
    """Results of one study as points."""

    name: str
    size: str
    command: str
    points: tuple[Point, ...]

    @classmethod
    def of(cls, results: StudyResults) -> StudyData:
        """Read the points of a study, which may be under way."""
        size = results.size or WRITTEN
        return cls(results.study, size, results.typed_command(), tuple(_points(results)))


def find_arms(
    point: Point, arms: Sequence[str], names: Callable[[str], Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Return the point's own names of arms, each among `names`, and the arms that it lacks."""
    found = {arm: next((n for n in names(arm) if n in point.runs), None) for arm in arms}
    return [name for name in found.values() if name], [arm for arm in arms if not found[arm]]


def _points(results: StudyResults) -> Iterator[Point]:
    grids = [RunEntry(**dict(sweep), status="finished") for sweep in results.sweeps]
    for part in results.parts:
        for rows, swept in ((results.runs, False), (grids, True)):
            yield from _of_part(results, part, rows, swept)


def _of_part(
    results: StudyResults, part: str, rows: Sequence[RunEntry], swept: bool
) -> Iterator[Point]:
    places: dict[str, Axes] = {}
    runs: dict[str, dict[str, dict[int, RunEntry]]] = {}
    for run in rows:
        if run.part == part:
            key = json.dumps(run.axes)
            places[key] = run.axes
            runs.setdefault(key, {}).setdefault(run.arm, {})[run.seed] = run
    for key, axes in places.items():
        compared = {
            (c.arm, c.baseline, c.metric): c
            for c in results.comparisons
            if c.part == part and json.dumps(c.axes) == key
        }
        confidence = results.parts[part].confidence
        yield Point(part, axes, confidence, runs[key], compared, swept)


def _last(path: str) -> str:
    return path.rpartition(".")[2]
