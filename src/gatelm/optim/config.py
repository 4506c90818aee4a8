"""What the optimiser does, as data: AdamW, its parameter groups and its learning-rate schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gatelm.config import Config, nearest


class ConstantSchedule(Config):
    """The peak rate at every step after the warm-up."""

    kind: Literal["constant"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""


class LinearSchedule(Config):
    """A straight line from the peak to `min_lr_ratio` times the peak."""

    kind: Literal["linear"] = "linear"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""


class CosineSchedule(Config):
    """Half a cosine from the peak to `min_lr_ratio` times the peak."""

    kind: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""


class WSDSchedule(Config):
    """Warm-up, stable, decay: the peak rate until the last `decay_fraction` of the steps."""

    kind: Literal["wsd"] = "wsd"
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly to its peak."""
    decay_fraction: float = Field(default=0.2, gt=0, le=1)
    """The part of `total_steps`, at its end, over which the rate falls."""
    decay_shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """How it falls: a line, 1 - sqrt(progress), or half a cosine."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The rate at `total_steps`, as a fraction of the peak."""


ScheduleConfig = Annotated[
    ConstantSchedule | LinearSchedule | CosineSchedule | WSDSchedule, Field(discriminator="kind")
]


class GroupConfig(Config):
    """Parameters that share a learning-rate scale and a weight decay."""

    pattern: str = ".*"
    """Regular expression searched for in the parameter's full name."""
    shape: Literal["any", "vector", "matrix"] = "any"
    """Which parameters the pattern may take: all, at most one dimension, at least two."""
    lr_scale: float = Field(default=1.0, ge=0)
    """Factor on the learning rate."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay of this group; null takes `optim.weight_decay`."""
    train_from_step: int = Field(default=0, ge=0)
    """The group stays as it starts until so many steps are finished."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the group's rate rises linearly from there, on top of the schedule."""
    when_empty: Literal["error", "skip"] = "error"
    """A pattern that takes no parameter is a mistake, unless the group says `skip`."""

    @field_validator("pattern")
    @classmethod
    def _is_a_regular_expression(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern


DEFAULT_GROUPS: dict[str, dict[str, Any]] = {
    "gates": {"pattern": r"(^|\.)gates\..*\.proj\.", "when_empty": "skip"},
    "gate_biases": {
        "pattern": r"(^|\.)gates\..*\.bias$",
        "weight_decay": 0.0,
        "when_empty": "skip",
    },
    "vectors": {"shape": "vector", "weight_decay": 0.0, "when_empty": "skip"},
    "embeddings": {
        "pattern": r"embed|(^|\.)positions\.",
        "weight_decay": 0.0,
        "when_empty": "skip",
    },
    "matrices": {"when_empty": "skip"},
}
"""Gate projections; gate biases; norms and other 1-D parameters; embeddings; all other matrices."""


class OptimConfig(Config):
    """AdamW (arXiv 1711.05101) with explicit parameter groups."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the two moments, each in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of every group that names none."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest global gradient norm; null does not clip."""
    schedule: ScheduleConfig = ConstantSchedule()
    groups: dict[str, GroupConfig] = Field(default_factory=dict)
    """Parameter groups by name. The defaults `gates`, `gate_biases`, `vectors`, `embeddings` and
    `matrices` are there unless set to null; naming one changes only the fields given."""
    group_order: tuple[str, ...] = ()
    """The order in which groups are tried; the first match takes the parameter. By default your
    own groups in the order written, then the defaults."""

    @model_validator(mode="before")
    @classmethod
    def _add_default_groups(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        given = data.get("groups")
        if not isinstance(given, Mapping):
            given = {} if given is None else given
            if not isinstance(given, Mapping):
                return data
        dropped = {name for name, group in given.items() if group is None}
        own = {n: g for n, g in given.items() if n not in DEFAULT_GROUPS and n not in dropped}
        defaults = {
            name: _laid_on(default, given.get(name))
            for name, default in DEFAULT_GROUPS.items()
            if name not in dropped
        }
        groups = {**own, **defaults}
        order = tuple(data.get("group_order") or ()) or tuple(groups)
        return {**data, "groups": groups, "group_order": order}

    @field_validator("betas")
    @classmethod
    def _betas_in_range(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"each of betas must be at least 0 and below 1, got {list(betas)}")
        return betas

    @model_validator(mode="after")
    def _order_names_every_group_once(self) -> Self:
        for name in self.group_order:
            if name not in self.groups:
                raise ValueError(
                    f"group_order names the unknown group {name!r}; {nearest(name, self.groups)}"
                )
        if sorted(self.group_order) != sorted(self.groups):
            raise ValueError(
                "group_order must name every group once: " + ", ".join(sorted(self.groups))
            )
        return self


def _laid_on(default: dict[str, Any], given: Any) -> Any:
    if given is None:
        return default
    return {**default, **given} if isinstance(given, Mapping) else given
