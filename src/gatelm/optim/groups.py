"""Every parameter to exactly one group, by name and shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from gatelm.config import ConfigError
from gatelm.optim.config import GroupConfig, OptimConfig


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
    named_parameters: Iterable[tuple[str, nn.Parameter]], cfg: OptimConfig
) -> list[ParameterGroup]:
    """The non-empty groups in `cfg.group_order`; the first group that matches takes a parameter.

    Raises:
        ConfigError: when a parameter matches no group, or a group that does not say
            `when_empty: skip` takes no parameter.
    """
    members: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in cfg.group_order}
    matched: set[str] = set()
    for name, parameter in named_parameters:
        matching = [g for g in cfg.group_order if _matches(cfg.groups[g], name, parameter)]
        if not matching:
            raise ConfigError(
                f"optim.groups: no group takes the parameter {name!r} of shape "
                f"{tuple(parameter.shape)}; add a last group with pattern '.*'"
            )
        members[matching[0]].append((name, parameter))
        matched.update(matching)
    for group in cfg.group_order:
        if not members[group] and cfg.groups[group].when_empty == "error":
            raise ConfigError(_empty(group, cfg, taken=group in matched))
    return [_group(name, members[name], cfg) for name in cfg.group_order if members[name]]


def _matches(group: GroupConfig, name: str, parameter: nn.Parameter) -> bool:
    if group.shape == "vector" and parameter.ndim > 1:
        return False
    if group.shape == "matrix" and parameter.ndim < 2:
        return False
    return re.search(group.pattern, name) is not None


def _empty(group: str, cfg: OptimConfig, *, taken: bool) -> str:
    where = f"optim.groups.{group}.pattern: {cfg.groups[group].pattern!r}"
    if taken:
        return f"{where} takes no parameter: earlier groups of group_order took all it matches"
    return (
        f"{where} matches no parameter; correct it, or set optim.groups.{group}.when_empty to skip"
    )


def _group(name: str, members: list[tuple[str, nn.Parameter]], cfg: OptimConfig) -> ParameterGroup:
    group = cfg.groups[name]
    return ParameterGroup(
        name=name,
        names=tuple(n for n, _ in members),
        parameters=tuple(p for _, p in members),
        lr_scale=group.lr_scale,
        weight_decay=cfg.weight_decay if group.weight_decay is None else group.weight_decay,
        train_from_step=group.train_from_step,
        warmup_steps=group.warmup_steps,
    )
