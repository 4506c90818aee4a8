"""A study's folder as plain data: results.json, and what each run folder holds.

Nothing that a run left behind is required: a run that was stopped, diverged or never started is
kept with what there is, and its `problems` say what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatelm.config.base import ConfigError

FINISHED, DIVERGED, MISSING = "finished", "diverged", "missing"


@dataclass(frozen=True)
class RunRecord:
    """One planned run with what its folder holds."""

    part: str
    arm: str
    axes: Mapping[str, Any]
    seed: int | None
    status: str
    record: Mapping[str, Any]
    """The run's entry in results.json."""
    train: tuple[Mapping[str, Any], ...] = ()
    evals: tuple[Mapping[str, Any], ...] = ()
    health: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    analysis: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    problems: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return label(self.arm, self.axes)

    @property
    def metrics(self) -> Mapping[str, Any]:
        return mapping(self.record.get("metrics"))

    @property
    def config_hash(self) -> str:
        return str(self.record.get("config_hash") or "")


@dataclass(frozen=True)
class StudyPart:
    """One question of a study, with its runs and the study's statistics."""

    name: str
    spec: Mapping[str, Any]
    """The part's entry in results.json."""
    runs: tuple[RunRecord, ...]
    summaries: tuple[Mapping[str, Any], ...]
    comparisons: tuple[Mapping[str, Any], ...]

    @property
    def title(self) -> str:
        return str(self.spec.get("title") or self.name)

    @property
    def baseline(self) -> str:
        return str(self.spec.get("baseline") or "")

    @property
    def arms(self) -> tuple[str, ...]:
        names = [str(arm) for arm in self.spec.get("arms") or ()]
        return tuple(dict.fromkeys([*names, *(run.arm for run in self.runs)]))

    @property
    def metrics(self) -> tuple[str, ...]:
        names = [*(self.spec.get("primary_metrics") or ()), *(self.spec.get("metrics") or ())]
        if not names:
            names = [s.get("metric") for s in self.summaries]
        if not any(names):
            names = [name for run in self.runs for name in run.metrics]
        return tuple(dict.fromkeys(str(name) for name in names if name))

    @property
    def primary_metrics(self) -> tuple[str, ...]:
        return tuple(self.spec.get("primary_metrics") or self.metrics)

    def finished(self) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if run.status == FINISHED)

    def settings(self) -> list[str]:
        """The points of the axes in order; one empty name for a part without axes."""
        return list(dict.fromkeys(setting(run.axes) for run in self.runs)) or [""]

    def groups(self) -> dict[str, list[RunRecord]]:
        """Runs by arm and axis values, in the order of the study; seeds within."""
        out: dict[str, list[RunRecord]] = {}
        order = {arm: i for i, arm in enumerate(self.arms)}
        for run in sorted(self.runs, key=lambda run: order[run.arm]):
            out.setdefault(run.label, []).append(run)
        return out


@dataclass(frozen=True)
class Study:
    """Everything a report shows."""

    root: Path
    results: Mapping[str, Any]
    parts: tuple[StudyPart, ...]

    @property
    def name(self) -> str:
        return str(self.results.get("study") or self.root.name)

    @property
    def title(self) -> str:
        return str(self.results.get("title") or self.name)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(run for part in self.parts for run in part.runs)


def setting(axes: Mapping[str, Any]) -> str:
    """`lr=0.003, total_steps=800`: the last name of each axis path and its value."""
    return ", ".join(f"{path.split('.')[-1]}={value}" for path, value in axes.items())


def label(arm: str, axes: Mapping[str, Any]) -> str:
    """`arm, lr=0.003`: the arm, and the point of the axes where there are axes."""
    return f"{arm}, {setting(axes)}" if axes else arm


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` when it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def read_study(root: Path) -> Study:
    """Read `root`/results.json and the run folders it names.

    Raises:
        ConfigError: no results.json there, or it is no JSON object.
    """
    path = root / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no results; run the study first (gatelm study run)") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as JSON ({error}); run the study again"
        ) from None
    if not isinstance(results, dict) or not isinstance(results.get("parts"), dict):
        raise ConfigError(f"{path}: not a study's results (no `parts`); run the study again")
    parts = tuple(_part(root, name, mapping(s), results) for name, s in results["parts"].items())
    return Study(root, results, parts)


def _part(root: Path, name: str, spec: Mapping[str, Any], results: Mapping[str, Any]) -> StudyPart:
    def mine(key: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(item for item in results.get(key) or () if item.get("part") == name)

    runs = [_run(root, record) for record in mine("runs")]
    runs += _never_started(name, spec, runs)
    return StudyPart(name, spec, tuple(runs), mine("summaries"), mine("comparisons"))


def _never_started(
    name: str, spec: Mapping[str, Any], runs: Sequence[RunRecord]
) -> Iterator[RunRecord]:
    """Runs of the grid (arms x axis values x seeds) that results.json does not list."""
    have = {(run.label, run.seed) for run in runs}
    seeds = list(dict.fromkeys([*(spec.get("seeds") or ()), *(run.seed for run in runs)]))
    grid = {json.dumps(dict(run.axes), sort_keys=True): run.axes for run in runs} or {"": {}}
    for arm in spec.get("arms") or ():
        for axes in grid.values():
            for seed in seeds:
                if (label(arm, axes), seed) not in have:
                    yield RunRecord(name, arm, axes, seed, MISSING, {}, problems=("not started",))


def _run(root: Path, record: Mapping[str, Any]) -> RunRecord:
    folder = root / str(record.get("folder") or "")
    problems: list[str] = []
    lines = _jsonl(folder / "metrics.jsonl", problems)
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        kinds.setdefault(str(line.get("kind")), []).append(line)
    seed = record.get("seed")
    return RunRecord(
        part=str(record.get("part")),
        arm=str(record.get("arm")),
        axes=mapping(record.get("axes")),
        seed=seed if isinstance(seed, int) else None,
        status=str(record.get("status") or MISSING),
        record=record,
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
    """The JSON objects of a file of lines; a broken line (a killed writer) is skipped and told."""
    out, broken = [], 0
    for line in _text(path, problems).splitlines():
        try:
            out.append(mapping(json.loads(line)))
        except ValueError:
            broken += 1
    if broken:
        problems.append(f"{broken} unreadable line{'s' * (broken > 1)} in {path.name}")
    return out
