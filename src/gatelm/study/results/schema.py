"""The content of results.json, which claims, tables and reports read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from gatelm.config.base import ConfigError
from gatelm.config.load import packaged_recipes
from gatelm.study.results.statistics import Comparison, Interval

Number = bool | int | float
Axes = dict[str, Any]
"""The value of each axis, by the axis's config path."""


class Place(BaseModel, frozen=True):
    """One arm of one part, at one point of the part's axes."""

    part: str
    arm: str
    axes: Axes = Field(default_factory=dict)

    @property
    def setting(self) -> str:
        """The point of the axes as text: `lr=0.003, total_steps=800`; empty without axes."""
        return setting(self.axes)

    @property
    def label(self) -> str:
        """The arm, and the point of the axes if there are any: `arm, lr=0.003`."""
        return f"{self.arm}, {self.setting}" if self.axes else self.arm


class RunEntry(Place, frozen=True):
    """One planned run and what it measured."""

    seed: int
    config_hash: str = ""
    status: str
    """`finished`, `diverged`, `failed` or `unfinished`."""
    error: str = ""
    folder: str = ""
    """Path of the run's folder, relative to the study's."""
    parameters: int | None = None
    gate_parameters: int | None = None
    precision: str | None = None
    flops: Number | None = None
    metrics: dict[str, Number | None] = Field(default_factory=dict)
    seconds: Number | None = None


class SweepEntry(Place, frozen=True):
    """Metrics of all learning rates of one arm and seed together."""

    seed: int
    metrics: dict[str, Number | None] = Field(default_factory=dict)


class _MetricEntry(Place, frozen=True):
    metric: str


class SummaryEntry(Interval, _MetricEntry, frozen=True):
    """One metric of one arm over its seeds."""

    diverged: int = 0


class _BaselineEntry(Place, frozen=True):
    baseline: str
    metric: str


class ComparisonEntry(Comparison, _BaselineEntry, frozen=True):
    """One metric of one arm against the baseline, with the sentence that says how it came out."""

    sentence: str = ""


class PartEntry(BaseModel, frozen=True):
    """One question of a study, as `PartConfig` asked it."""

    title: str = ""
    question: str = ""
    claims: tuple[str, ...] = ()
    note: str = ""
    arms_from: tuple[Any, ...] = ()
    baseline: str = ""
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()
    primary_metrics: tuple[str, ...] = ()
    confidence: float = 0.95
    match: dict[str, Any] | None = None
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    base_config: dict[str, Any] = Field(default_factory=dict)
    arm_overrides: dict[str, Any] = Field(default_factory=dict)
    arms: tuple[str, ...] = ()


class StudyResults(BaseModel, frozen=True):
    """Everything in results.json, in the order of its keys."""

    study: str = ""
    title: str = ""
    summary: str = ""
    size: str | None = None
    gatelm_version: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    parts: dict[str, PartEntry]
    runs: tuple[RunEntry, ...] = ()
    sweeps: tuple[SweepEntry, ...] = ()
    summaries: tuple[SummaryEntry, ...] = ()
    comparisons: tuple[ComparisonEntry, ...] = ()

    def to_json(self) -> str:
        """Return the text of results.json."""
        return json.dumps(self.model_dump(), indent=1, allow_nan=False)

    def typed_command(self) -> str:
        """The command that ran the study, with the folders it would use by default.

        Runs taken from a folder that no shipped study makes are trained by whoever types it.
        """
        words = iter(_words(self.command or f"gatelm study run {self.study or 'NAME'}"))
        out = []
        for word in words:
            if word == "--out":
                next(words, None)
            elif word == "--reuse":
                reused = Path(next(words, "")).name
                if (packaged_recipes() / "studies" / f"{reused}.yaml").is_file():
                    out += [word, f"runs/{reused}"]
            else:
                out.append(word)
        return shlex.join(out)


def _words(command: str) -> list[str]:
    """Split a command line into words; at blanks if a shell could not read it."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def setting(axes: Axes) -> str:
    """Write a point as `lr=0.003, total_steps=800`: the last step of each path, and its value."""
    return ", ".join(f"{path.rpartition('.')[2]}={value}" for path, value in axes.items())


def read_results(root: Path) -> StudyResults:
    """Read the results in a study's folder.

    Raises:
        ConfigError: when there are none that can be read.
    """
    path = root / "results.json"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return StudyResults.model_validate(tree)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no results; run the study first (gatelm study run)") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the file"
        raise ConfigError(
            f"{path}: not a study's results ({where}: {first['msg']}); run the study again"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as JSON ({error}); run the study again"
        ) from None
