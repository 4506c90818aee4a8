"""Parameter groups: every parameter in exactly one, by name and shape, with a rate of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from gatelm.config import Config, ConfigError
from gatelm.optim.schedule import ramp


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
    """Number of finished steps before the group begins to train."""
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
"""Default groups: gate projections and biases, 1-D parameters, embeddings, other matrices."""


@dataclass(frozen=True)
class ParameterGroup:
    """One group as the optimiser gets it; `names` in the model's order."""

    name: str
    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    lr_scale: float
    weight_decay: float
    train_from_step: int = 0
    warmup_steps: int = 0


def parameter_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    groups: Mapping[str, GroupConfig],
    order: Sequence[str],
    weight_decay: float,
) -> list[ParameterGroup]:
    """Return the non-empty groups in `order`; the first that matches takes a parameter.

    weight_decay: of the groups that name none.

    Raises:
        ConfigError: when a parameter matches no group, or a group that does not say
            `when_empty: skip` takes no parameter.
    """
    members: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in order}
    matched: set[str] = set()
    for name, parameter in named_parameters:
        matching = [g for g in order if _matches(groups[g], name, parameter)]
        if not matching:
            raise ConfigError(
                f"optim.groups: no group takes the parameter {name!r} of shape "
                f"{tuple(parameter.shape)}; add a last group with pattern '.*'"
            )
        members[matching[0]].append((name, parameter))
        matched.update(matching)
    for group in order:
        if not members[group] and groups[group].when_empty == "error":
            raise ConfigError(_empty(group, groups[group], taken=group in matched))
    return [
        _group(name, members[name], groups[name], weight_decay) for name in order if members[name]
    ]


def _matches(group: GroupConfig, name: str, parameter: nn.Parameter) -> bool:
    if group.shape == "vector" and parameter.ndim > 1:
        return False
    if group.shape == "matrix" and parameter.ndim < 2:
        return False
    return re.search(group.pattern, name) is not None


def _empty(name: str, group: GroupConfig, *, taken: bool) -> str:
    where = f"optim.groups.{name}.pattern: {group.pattern!r}"
    if taken:
        return f"{where} takes no parameter: earlier groups of group_order took all it matches"
    return (
        f"{where} matches no parameter; correct it, or set optim.groups.{name}.when_empty to skip"
    )


def _group(
    name: str, members: list[tuple[str, nn.Parameter]], group: GroupConfig, weight_decay: float
) -> ParameterGroup:
    return ParameterGroup(
        name=name,
        names=tuple(n for n, _ in members),
        parameters=tuple(p for _, p in members),
        lr_scale=group.lr_scale,
        weight_decay=weight_decay if group.weight_decay is None else group.weight_decay,
        train_from_step=group.train_from_step,
        warmup_steps=group.warmup_steps,
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float, step: int = 0) -> None:
    """Give every group `lr` times its own scale and its own warm-up after `step` finished steps."""
    for group in optimizer.param_groups:
        own = ramp(step, group["train_from_step"], group["warmup_steps"])
        group["lr"] = lr * group["lr_scale"] * own


@contextmanager
def frozen(optimizer: torch.optim.Optimizer, step: int) -> Iterator[None]:
    """Compute no gradients in the body for groups that do not train yet after `step` steps."""
    waiting = [
        parameter
        for group in optimizer.param_groups
        if step < group["train_from_step"]
        for parameter in group["params"]
    ]
    for parameter in waiting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in waiting:
            parameter.requires_grad_(True)
