"""A study's folder as plain data: results.json, and what each run folder holds.

Nothing that a run left behind is required: a run that was stopped, diverged or never started is
kept with what there is, and its `problems` say what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, SkipValidation

from gatelm.study.results.schema import (
    ComparisonEntry,
    PartEntry,
    RunEntry,
    StudyResults,
    SummaryEntry,
    read_results,
)

FINISHED, DIVERGED, MISSING = "finished", "diverged", "missing"

Lines = SkipValidation[tuple[Mapping[str, Any], ...]]
"""Records of one kind in metrics.jsonl."""


class RunRecord(RunEntry, frozen=True):
    """One planned run with the content of its folder."""

    train: Lines = ()
    evals: Lines = ()
    health: Lines = ()
    events: Lines = ()
    analysis: SkipValidation[Mapping[str, Any]] = Field(default_factory=dict)
    config_text: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyPart:
    """One question of a study, with its runs and the study's statistics."""

    name: str
    spec: PartEntry
    runs: tuple[RunRecord, ...]
    summaries: tuple[SummaryEntry, ...]
    comparisons: tuple[ComparisonEntry, ...]

    @property
    def title(self) -> str:
        """The part's title, or its name."""
        return self.spec.title or self.name

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return self.spec.baseline

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms as the study lists them, then those that only runs have."""
        return tuple(dict.fromkeys([*self.spec.arms, *(run.arm for run in self.runs)]))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The study's metrics, primary ones first; without any, the metrics that have values."""
        names = [*self.spec.primary_metrics, *self.spec.metrics]
        names = names or [summary.metric for summary in self.summaries]
        names = names or [name for run in self.runs for name in run.metrics]
        return tuple(dict.fromkeys(names))

    @property
    def primary_metrics(self) -> tuple[str, ...]:
        """The metrics that the verdict is about."""
        return self.spec.primary_metrics or self.metrics

    def summaries_of(self, metric: str) -> list[SummaryEntry]:
        """Return the summaries of one metric that have a mean."""
        return [s for s in self.summaries if s.metric == metric and s.mean is not None]

    def comparisons_of(self, metric: str) -> list[ComparisonEntry]:
        """Return the comparisons of one metric, in the order of results.json."""
        return [c for c in self.comparisons if c.metric == metric]

    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that finished."""
        return tuple(run for run in self.runs if run.status == FINISHED)

    def settings(self) -> list[str]:
        """The points of the axes in order; one empty name for a part without axes."""
        return list(dict.fromkeys(run.setting for run in self.runs)) or [""]

    def groups(self) -> dict[str, list[RunRecord]]:
        """Runs by arm and axis values, in the order of the study; seeds within."""
        out: dict[str, list[RunRecord]] = {}
        order = {arm: i for i, arm in enumerate(self.arms)}
        for run in sorted(self.runs, key=lambda run: order[run.arm]):
            out.setdefault(run.label, []).append(run)
        return out


@dataclass(frozen=True)
class Study:
    """A study: everything that its report shows."""

    root: Path
    results: StudyResults
    parts: tuple[StudyPart, ...]

    @property
    def name(self) -> str:
        """The study's name, or its folder's."""
        return self.results.study or self.root.name

    @property
    def title(self) -> str:
        """The study's title, or its name."""
        return self.results.title or self.name

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs of all parts."""
        return tuple(run for part in self.parts for run in part.runs)


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def read_study(root: Path) -> Study:
    """Read `root`/results.json and the run folders it names.

    Raises:
        ConfigError: there are no results that can be read.
    """
    results = read_results(root)
    return Study(root, results, tuple(_part(root, name, results) for name in results.parts))


def _part(root: Path, name: str, results: StudyResults) -> StudyPart:
    spec = results.parts[name]
    runs = [_run(root, entry) for entry in results.runs if entry.part == name]
    runs += _never_started(name, spec, runs)
    summaries = tuple(entry for entry in results.summaries if entry.part == name)
    comparisons = tuple(entry for entry in results.comparisons if entry.part == name)
    return StudyPart(name, spec, tuple(runs), summaries, comparisons)


def _never_started(name: str, spec: PartEntry, runs: Sequence[RunRecord]) -> Iterator[RunRecord]:
    """Runs of the grid (arms x axis values x seeds) that results.json does not list."""
    have = {(run.label, run.seed) for run in runs}
    seeds = list(dict.fromkeys([*spec.seeds, *(run.seed for run in runs)]))
    grid = {json.dumps(run.axes, sort_keys=True): run.axes for run in runs} or {"": {}}
    for arm in spec.arms:
        for axes in grid.values():
            for seed in seeds:
                run = RunRecord(
                    part=name,
                    arm=arm,
                    axes=axes,
                    seed=seed,
                    status=MISSING,
                    problems=("not started",),
                )
                if (run.label, run.seed) not in have:
                    yield run


def _run(root: Path, entry: RunEntry) -> RunRecord:
    folder = root / entry.folder
    problems: list[str] = []
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for line in _jsonl(folder / "metrics.jsonl", problems):
        kinds.setdefault(str(line.get("kind")), []).append(line)
    return RunRecord(
        **dict(entry),
        train=tuple(kinds.get("train", ())),
        evals=tuple(kinds.get("eval", ())),
        health=tuple(kinds.get("health", ())),
        events=tuple(kinds.get("event", ())),
        analysis=_json(folder / "analysis.json", problems),
        config_text=_text(folder / "config.yaml", problems),
        problems=tuple(problems),
    )


def _text(path: Path, problems: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        problems.append(f"no {path.name}")
        return ""


def _json(path: Path, problems: list[str]) -> Mapping[str, Any]:
    text = _text(path, problems)
    try:
        return mapping(json.loads(text)) if text else {}
    except ValueError:
        problems.append(f"{path.name} is no JSON")
        return {}


def _jsonl(path: Path, problems: list[str]) -> list[Mapping[str, Any]]:
    """Read the JSON objects of a file of lines; a broken line is skipped with a warning."""
    out, broken = [], 0
    for line in _text(path, problems).splitlines():
        try:
            out.append(mapping(json.loads(line)))
        except ValueError:
            broken += 1
    if broken:
        problems.append(f"{broken} unreadable line{'s' * (broken > 1)} in {path.name}")
    return out
