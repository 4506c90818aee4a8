"""AdamW."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from gatelm.optim.base import OptimizerConfig


class AdamWConfig(OptimizerConfig):
    """AdamW (arXiv 1711.05101), whose weight decay is decoupled from the gradient."""

    name: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the two moments, each in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the square root of the second moment, by which the first one is divided."""

    @field_validator("betas")
    @classmethod
    def _betas_in_range(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"each of betas must be at least 0 and below 1, got {list(betas)}")
        return betas

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make torch's AdamW of these groups."""
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)

    def first_state(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Return a step count and both moments, all zero."""
        moments = (
            torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2)
        )
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"step": step, **dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True))}
