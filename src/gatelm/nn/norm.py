"""Normalisation over the last axis, computed in float32."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config
from gatelm.nn.shapes import Float, Tensor


class NormConfig(Config):
    """A norm over the last axis."""

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    eps: float = 1e-6
    weight: Literal["plain", "zero_centred", "none"] = "plain"
    """plain: y*w, w starts at 1. zero_centred: y*(1+w), w starts at 0. none: no weight."""


class Norm(nn.Module):
    """RMSNorm (arXiv 1910.07467) or LayerNorm without bias; float32 inside, input dtype out."""

    def __init__(self, cfg: NormConfig, dim: int):
        super().__init__()
        self.cfg, self.dim = cfg, dim
        self.weight = None if cfg.weight == "none" else nn.Parameter(torch.empty(dim))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.weight is not None:
            self.weight.fill_(0.0 if self.cfg.weight == "zero_centred" else 1.0)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        weight = self.weight
        if weight is not None and self.cfg.weight == "zero_centred":
            weight = 1.0 + weight
        wide = x if x.dtype == torch.float64 else x.float()
        if weight is not None:
            weight = weight.to(wide.dtype)
        if self.cfg.kind == "rmsnorm":
            y = F.rms_norm(wide, (self.dim,), weight, self.cfg.eps)
        else:
            y = F.layer_norm(wide, (self.dim,), weight, None, self.cfg.eps)
        return y.to(x.dtype)
