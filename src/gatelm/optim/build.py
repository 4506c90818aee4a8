"""The torch optimiser of an `OptimConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gatelm.config import ConfigError
from gatelm.optim.config import OptimConfig
from gatelm.optim.groups import parameter_groups
from gatelm.optim.schedule import ramp


def build_optimizer(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the model's trainable parameters.

    Each torch group carries `name`, `lr_scale`, `train_from_step` and `warmup_steps`.

    Raises:
        ConfigError: when the groups do not fit the model (see `parameter_groups`), or none of them
            trains at first.
    """
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": list(group.parameters),
            "name": group.name,
            "lr": cfg.lr * group.lr_scale,
            "lr_scale": group.lr_scale,
            "weight_decay": group.weight_decay,
            "train_from_step": group.train_from_step,
            "warmup_steps": group.warmup_steps,
        }
        for group in parameter_groups(trainable, cfg)
    ]
    begins = {str(group["name"]): int(group["train_from_step"]) for group in groups}
    if min(begins.values(), default=0) > 0:
        raise ConfigError(
            f"optim.groups: no group of this model trains before step {min(begins.values())} "
            f"({', '.join(begins)}); set train_from_step to 0 for one of them"
        )
    optimizer = torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)
    if any(begins.values()):
        _fill_state(optimizer)
    return optimizer


def set_lr(optimizer: torch.optim.Optimizer, lr: float, step: int = 0) -> None:
    """Give every group `lr` times its own scale and its own warm-up after `step` finished steps."""
    for group in optimizer.param_groups:
        own = ramp(step, group["train_from_step"], group["warmup_steps"])
        group["lr"] = lr * group["lr_scale"] * own


@contextmanager
def frozen(optimizer: torch.optim.Optimizer, step: int) -> Iterator[None]:
    """In the body, groups that do not train yet after `step` finished steps need no gradients."""
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


def _fill_state(optimizer: torch.optim.Optimizer) -> None:
    """What AdamW would make at a parameter's first update, so that every checkpoint has it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
