"""The torch optimiser of an `OptimConfig`."""

from __future__ import annotations

import torch
from torch import nn

from gatelm.optim.config import OptimConfig
from gatelm.optim.groups import parameter_groups


def build_optimizer(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the model's trainable parameters; each torch group carries `name`, `lr_scale`.

    Raises:
        ConfigError: when the groups do not fit the model (see `parameter_groups`).
    """
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": list(group.parameters),
            "name": group.name,
            "lr": cfg.lr * group.lr_scale,
            "lr_scale": group.lr_scale,
            "weight_decay": group.weight_decay,
        }
        for group in parameter_groups(trainable, cfg)
    ]
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group `lr` times its own scale."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]
