"""A study expanded into runs: configs, content hashes, folders, parameters and FLOPs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gatelm.analysis.metrics.registry import describe
from gatelm.config.base import ConfigError, nearest
from gatelm.config.load import flatten, set_path
from gatelm.nn.count import count, flops_per_token
from gatelm.study.planning.derived import LR_AXIS, LR_METRICS, SPEED_METRICS
from gatelm.study.planning.matching import Quantity, nearest_width
from gatelm.study.planning.spec import PartConfig, StudyConfig
from gatelm.study.planning.vocabulary import sized
from gatelm.train.config import RunConfig
from gatelm.train.precision import choose, resolved
from gatelm.train.speed import training_flops

_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_MAX_LABEL = 60


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run. Arms that resolve to the same config share `config_hash`, never `folder`."""

    part: str
    arm: str
    axes: Mapping[str, Any]
    """Value of each axis in this run, by config path."""
    seed: int
    config: RunConfig
    config_hash: str
    parameters: int
    gate_parameters: int
    flops: float
    """Number of matrix-product FLOPs of training."""
    folder: str
    """Path relative to the study's folder, with forward slashes."""

    @property
    def setting(self) -> str:
        """The arm with its place on the axes: `sdpa-head,lr=0.003`."""
        return setting_label(self.arm, self.axes)

    @property
    def label(self) -> str:
        """Name of the run: its part, its setting and its seed."""
        return f"{self.part}/{self.setting}/seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order parts, axes, arms and seeds are written."""

    study: StudyConfig
    runs: tuple[PlannedRun, ...]

    def of(self, part: str) -> tuple[PlannedRun, ...]:
        """Return the runs of a part."""
        return tuple(r for r in self.runs if r.part == part)


def plan(study: StudyConfig) -> Plan:
    """Plan every run of the study: validate its config and count its cost.

    Raises:
        ConfigError: naming part, arm and config path.
    """
    runs: list[PlannedRun] = []
    for name, part in study.parts.items():
        _check_metrics(name, part)
    study = _with_precision(study)
    for name, part in study.parts.items():
        for axes in _points(part.axes):
            runs.extend(_plan_point(study, name, axes))
    return Plan(study, tuple(runs))


def _with_precision(study: StudyConfig) -> StudyConfig:
    """Choose one precision for all runs that leave it open, by the largest run."""
    if study.precision != "auto":
        return study
    baselines = [
        _config(study, name, part.baseline, axes)
        for name, part in study.parts.items()
        for axes in _points(part.axes)
    ]
    undecided = [config for config in baselines if config.train.precision == "auto"]
    if not undecided:
        return study
    return study.replace(precision=choose(max(undecided, key=_training_flops)))


def setting_label(arm: str, axes: Mapping[str, Any]) -> str:
    """Make `arm,key=value` for a folder's name; a key is the last step of its config path."""
    keys = {path: path.rpartition(".")[2] for path in axes}
    short = len(set(keys.values())) == len(keys)
    return ",".join(
        [arm, *(f"{keys[p] if short else p}={_value_label(v)}" for p, v in axes.items())]
    )


def _check_metrics(name: str, part: PartConfig) -> None:
    for metric in part.metrics:
        try:
            describe(metric)
        except ValueError as error:
            raise ConfigError(f"part {name}: metrics: {error}") from None
        if metric in LR_METRICS and LR_AXIS not in part.axes:
            raise ConfigError(
                f"part {name}: metrics: {metric} is taken over learning rates; add the axis "
                f"{LR_AXIS}, or leave it out"
            )


def _check_validations(name: str, part: PartConfig, config: RunConfig) -> None:
    for metric in part.metrics:
        needs = metric in LR_METRICS or metric in SPEED_METRICS
        if needs and config.train.eval_every_steps is None:
            raise ConfigError(
                f"part {name}: metrics: {metric} needs validations along the way; set "
                "base.train.eval_every_steps"
            )


def _plan_point(study: StudyConfig, name: str, axes: Mapping[str, Any]) -> list[PlannedRun]:
    part = study.parts[name]
    baseline = _config(study, name, part.baseline, axes)
    _check_validations(name, part, baseline)
    out: list[PlannedRun] = []
    for arm in part.arms:
        config = _matched(study, name, arm, axes, baseline)
        if config.train.precision != baseline.train.precision:
            raise ConfigError(
                f"part {name}: arm {arm} trains in {config.train.precision} and the baseline "
                f"{part.baseline} in {baseline.train.precision}: their differences would mix the "
                "two; give both one train.precision, or make it an axis"
            )
        for seed in part.seeds:
            setting = setting_label(arm, axes)
            run = config.replace(name=f"{study.name}/{name}/{setting}/seed-{seed}", seed=seed)
            digest = run.content_hash()
            counted = count(sized(run))
            out.append(
                PlannedRun(
                    part=name,
                    arm=arm,
                    axes=axes,
                    seed=seed,
                    config=run,
                    config_hash=digest,
                    parameters=counted.total,
                    gate_parameters=counted.gate,
                    flops=_training_flops(run),
                    folder=f"runs/{name}/{setting}/seed-{seed}-{digest}",
                )
            )
    return out


def _points(axes: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _tree(part: PartConfig, where: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    tree = deepcopy(part.base)
    for path, value in overrides.items():
        try:
            set_path(tree, path, value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return tree


def _config(
    study: StudyConfig, name: str, arm: str, axes: Mapping[str, Any], width: int | None = None
) -> RunConfig:
    part = study.parts[name]
    where = f"part {name}, arm {setting_label(arm, axes)}"
    overrides = {**part.arms[arm], **axes}
    if part.match and width is not None:
        overrides[part.match.by] = width
    tree = _tree(part, where, overrides)
    tree.setdefault("name", name)
    config = RunConfig.parse(tree, where)
    return config if study.precision == "auto" else resolved(config, study.precision)


def _matched(
    study: StudyConfig, name: str, arm: str, axes: Mapping[str, Any], baseline: RunConfig
) -> RunConfig:
    config = _config(study, name, arm, axes)
    part = study.parts[name]
    match = part.match
    if match is None or match.by in {**part.arms[arm], **axes}:
        return config
    if match.by not in flatten(config.tree()):
        known = flatten(config.tree())
        raise ConfigError(
            f"part {name}: match.by: no setting {match.by!r}; {nearest(match.by, known)}"
        )
    target = _cost(baseline, match.quantity)
    if _cost(config, match.quantity) == target:
        return config
    try:
        width = nearest_width(
            lambda width: _cost(_config(study, name, arm, axes, width), match.quantity),
            target,
            match.multiple,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"part {name}, arm {arm}: match.by {match.by}: {error}") from None
    return _config(study, name, arm, axes, width)


def _cost(config: RunConfig, quantity: Quantity) -> int:
    if quantity == "parameters":
        return count(sized(config)).total
    return flops_per_token(sized(config), config.data.seq_len)


def _training_flops(config: RunConfig) -> float:
    return training_flops(config, sized(config))


def _value_label(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return _UNSAFE.sub("-", text).strip("-")[:_MAX_LABEL] or "empty"
