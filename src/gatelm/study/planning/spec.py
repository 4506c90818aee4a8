"""A study as data: parts, each a base run, arms as overrides of it, axes, seeds and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gatelm.config.base import Config, ConfigError, nearest
from gatelm.config.load import load, merge, parse_value, read_yaml, set_path
from gatelm.study.planning.arms import ArmsFrom, with_made_arms

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class MatchConfig(Config):
    """Matching: every arm gets the width with which it costs as much as the baseline."""

    by: str = "model.layer.ffn.ffn_dim"
    """Config path of the width that is adapted; an arm that sets it itself keeps its value."""
    multiple: int = 8
    """The width is a multiple of this."""
    quantity: Literal["parameters", "flops"] = "parameters"
    """What is made equal: all parameters, or the FLOPs of one training token."""

    @field_validator("multiple")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"must be 1 or more (got {value})")
        return value


class PartConfig(Config):
    """One question: the same run in several arms, at every point of the axes, over seeds."""

    title: str = ""
    question: str = ""
    claims: tuple[str, ...] = ()
    """The published statements this part speaks to, each with its source."""
    note: str = ""
    """What a reader must know to read the outcome honestly."""
    base: dict[str, Any]
    """The run's config; `extends: FILE` (relative to the study's file) merges another one in."""
    arms: dict[str, dict[str, Any]]
    """Name of each arm, and the values it sets: `{config.path: value}`."""
    arms_from: tuple[ArmsFrom, ...] = ()
    """Further arms, made from registries such as the gates' activations as the study is read."""
    baseline: str
    """The arm that all others are compared with."""
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Further settings, `{config.path: [values]}`: every arm runs at every combination."""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1, 2)
    """Each decides the initial weights and the order of the data, equally in all arms."""
    metrics: tuple[str, ...] = ("val_loss",)
    """What is summarised and compared."""
    primary_metrics: tuple[str, ...] = ()
    """Those among `metrics` the verdict is about; empty means all."""
    confidence: float = 0.95
    match: MatchConfig | None = None
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Changes of this part by size, e.g. `{gpu: {seeds: [0, 1], base: {extends: FILE}}}`: the
    study's `size` chooses one, which is merged in as the study is read."""

    @property
    def primary(self) -> tuple[str, ...]:
        """Metrics that the verdict is about."""
        return self.primary_metrics or self.metrics

    @model_validator(mode="before")
    @classmethod
    def _make_arms(cls, tree: Any) -> Any:
        """Replace the part's templates by the arms that they make."""
        if not isinstance(tree, Mapping) or not tree.get("arms_from"):
            return tree
        templates = [
            ArmsFrom.parse(template, f"arms_from.{index}")
            for index, template in enumerate(tree["arms_from"])
        ]
        arms = with_made_arms(tree.get("arms") or {}, templates)
        return {**tree, "arms": arms, "arms_from": ()}

    @field_validator("arms", mode="before")
    @classmethod
    def _empty_arm(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: {} if over is None else over for name, over in value.items()}
        return value

    @field_validator("arms")
    @classmethod
    def _arm_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not value:
            raise ValueError("a part needs at least one arm")
        for name in value:
            _check_name(name)
        return value

    @field_validator("seeds", "metrics")
    @classmethod
    def _no_repeats(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise ValueError("at least one is needed")
        if len(set(value)) != len(value):
            raise ValueError(f"the same one is named twice in {list(value)}")
        return value

    @field_validator("axes")
    @classmethod
    def _axis_values(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for path, points in value.items():
            if not points or any(p in points[:i] for i, p in enumerate(points)):
                raise ValueError(f"{path} needs at least one value, and each only once")
        return value

    @field_validator("confidence")
    @classmethod
    def _open_unit(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError(f"must lie between 0 and 1, e.g. 0.95 (got {value})")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline {self.baseline!r} is no arm; {nearest(self.baseline, self.arms)}"
            )
        for name in self.primary_metrics:
            if name not in self.metrics:
                raise ValueError(
                    f"primary metric {name!r} is not among metrics; {nearest(name, self.metrics)}"
                )
        for arm, overrides in self.arms.items():
            for path in overrides:
                for axis in self.axes:
                    if path == axis or path.startswith(axis + ".") or axis.startswith(path + "."):
                        raise ValueError(f"arm {arm!r} sets {path}, which the axis {axis} sets too")
        return self


class StudyConfig(Config):
    """Parts that are run, summarised and reported together."""

    name: str
    """Names the folder of the results."""
    title: str = ""
    summary: str = ""
    size: str | None = None
    """Which of the parts' `sizes` to run; null: the parts as written."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What `train.precision: auto` stands for in all runs. auto: what pays for the largest of them
    on this machine; the study's folder keeps it."""
    parts: dict[str, PartConfig]

    @field_validator("name")
    @classmethod
    def _study_name(cls, value: str) -> str:
        _check_name(value)
        return value

    @field_validator("parts")
    @classmethod
    def _part_names(cls, value: dict[str, PartConfig]) -> dict[str, PartConfig]:
        if not value:
            raise ValueError("a study needs at least one part")
        for name in value:
            _check_name(name)
        return value


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> StudyConfig:
    """Load a study from a recipe: merge `extends`, then its size, then `path=value` overrides.

    Raises:
        ConfigError: what is wrong, with file and config path.
    """
    loaded = load(path)
    where = Path(loaded.path or path).name
    pending = [_split(override) for override in overrides]
    for key, value in pending:
        if key.split(".")[0] != "parts":
            set_path(loaded.tree, key, value)
    asked = any(key == "size" for key, _ in pending)
    _resolve_size(loaded.tree, f"{where}: size" if not asked else "--set size", asked)
    for key, value in pending:
        if key.split(".")[0] == "parts":
            _set_in_part(loaded.tree, key, value)
    return StudyConfig.parse(loaded.tree, where)


def continued(study: StudyConfig, root: Path) -> StudyConfig:
    """Give the study the precision with which its folder began, on any machine."""
    begun = root / "study.yaml"
    if study.precision != "auto" or not begun.is_file():
        return study
    precision = read_yaml(begun).get("precision")
    return study.replace(precision=precision) if precision in ("fp32", "bf16") else study


def _resolve_size(tree: dict[str, Any], where: str, asked: bool) -> None:
    """Merge `sizes[size]` into every part; a resolved study keeps only its size's name."""
    size, parts = tree.get("size"), tree.get("parts")
    sized = {
        name: part
        for name, part in (parts.items() if isinstance(parts, dict) else ())
        if isinstance(part, dict) and part.get("sizes")
    }
    if size is not None and asked and not sized:
        raise ConfigError(f"{where}: no part of this study has sizes")
    for name, part in sized.items():
        sizes = part.pop("sizes")
        if not isinstance(sizes, dict):
            raise ConfigError(
                f"{where}: parts.{name}.sizes: write sizes by name, not {sizes!r:.40}"
            )
        if size is not None and size not in sizes:
            raise ConfigError(f"{where}: part {name} has no size {size!r}; {nearest(size, sizes)}")
        if size is not None:
            assert isinstance(parts, dict)
            changes = sizes[size] or {}
            if not isinstance(changes, dict):
                raise ConfigError(
                    f"{where}: parts.{name}.sizes.{size}: write what the size changes of the part, "
                    f"not {changes!r:.60}"
                )
            parts[name] = merge(part, changes)


def _split(override: str) -> tuple[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override}: expected PATH=VALUE, e.g. parts.main.seeds=[0,1]")
    return key.strip(), parse_value(text)


def _set_in_part(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a value as `set_path` does, where keys of arms and axes are dotted config paths."""
    parts = tree.get("parts")
    _, name, *rest = [*key.split("."), ""]
    if not isinstance(parts, dict) or not isinstance(parts.get(name), dict):
        known = parts if isinstance(parts, dict) else ()
        raise ConfigError(f"--set {key}: no part {name!r}; {nearest(name, known)}")
    field, tail = rest[0], key.removeprefix(f"parts.{name}.{rest[0]}.")
    if field == "axes" and tail != key:
        part = parts[name]
        part["axes"] = {**(part.get("axes") or {}), tail: value}
        return
    if field == "arms":
        arms = parts[name].get("arms") or {}
        for arm in sorted(arms, key=len, reverse=True):
            if tail.startswith(f"{arm}."):
                arms[arm] = {**(arms[arm] or {}), tail.removeprefix(f"{arm}."): value}
                return
    set_path(tree, key, value)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} names a folder: use letters, digits and . _ + - only")
