"""The base of all optimisers: a config with parameter groups and a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import nn

from gatelm.config import Config, ConfigError, nearest
from gatelm.optim.groups import DEFAULT_GROUPS, GroupConfig, ParameterGroup, parameter_groups
from gatelm.optim.schedule import ConstantSchedule, ScheduleConfig, lr_factor


class OptimizerConfig(Config):
    """Base of optimiser configs: explicit parameter groups, a schedule, a limit on gradients."""

    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of every group that names none."""
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

    @model_validator(mode="after")
    def _order_names_every_group_once(self) -> OptimizerConfig:
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

    def lr_at(self, step: int, total_steps: int) -> float:
        """Return the learning rate of the update after `step` finished ones, of `total_steps`.

        `total_steps` is the schedule's horizon, not the step where the run stops: a run stopped
        early and continued later sees the same rates. Past the horizon the rate stays at its last
        value.
        """
        return self.lr * lr_factor(self.schedule, step, total_steps)

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Sort the model's parameters into groups; see `groups.parameter_groups`."""
        return parameter_groups(named_parameters, self.groups, self.group_order, self.weight_decay)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build the torch optimiser of the model's trainable parameters.

        Each torch group carries `name`, `lr_scale`, `train_from_step` and `warmup_steps`.

        Raises:
            ConfigError: when the groups do not fit the model (see `parameter_groups`), or none of
                them trains at first.
        """
        groups = [
            {
                "params": list(group.parameters),
                "name": group.name,
                "lr": self.lr * group.lr_scale,
                "lr_scale": group.lr_scale,
                "weight_decay": group.weight_decay,
                "train_from_step": group.train_from_step,
                "warmup_steps": group.warmup_steps,
            }
            for group in self.parameter_groups(
                (n, p) for n, p in model.named_parameters() if p.requires_grad
            )
        ]
        begins = {str(group["name"]): int(group["train_from_step"]) for group in groups}
        if min(begins.values(), default=0) > 0:
            raise ConfigError(
                f"optim.groups: no group of this model trains before step {min(begins.values())} "
                f"({', '.join(begins)}); set train_from_step to 0 for one of them"
            )
        optimizer = self.make(groups)
        if any(begins.values()):  # so that every checkpoint has the state of all parameters
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                optimizer.state[parameter] = self.first_state(parameter)
        return optimizer

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make the torch optimiser of these groups, each with its `lr` and `weight_decay`."""
        raise NotImplementedError

    def first_state(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Return the state that the torch optimiser makes at the first update of a parameter."""
        raise NotImplementedError


def _laid_on(default: dict[str, Any], given: Any) -> Any:
    if given is None:
        return default
    return {**default, **given} if isinstance(given, Mapping) else given
