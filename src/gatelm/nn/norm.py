"""Normalisation over the last axis, computed in float32."""

from __future__ import annotations

from typing import Any, Literal

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

    def num_weights(self, dim: int) -> int:
        """Parameters of the norm over `dim` channels."""
        return 0 if self.weight == "none" else dim


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
        if self.cfg.kind == "layernorm":
            wide = _widen(x)
            y = F.layer_norm(wide, (self.dim,), _as(weight, wide), None, self.cfg.eps)
            return y.to(x.dtype)
        if x.device.type == "cpu" and weight is not None:
            return _CpuRMSNorm.apply(x, weight, self.cfg.eps)  # pyright: ignore[reportReturnType]
        return rms_norm(x, weight, self.cfg.eps)


def rms_norm(x: Float[Tensor, "*B D"], weight: Tensor | None, eps: float) -> Float[Tensor, "*B D"]:
    """x / rms(x) * weight by torch's own operator, which is one kernel on CUDA."""
    wide = _widen(x)
    return F.rms_norm(wide, (x.shape[-1],), _as(weight, wide), eps).to(x.dtype)


class _CpuRMSNorm(torch.autograd.Function):
    """`rms_norm` with its gradient by hand: on a CPU torch composes it of many passes over x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _widen(x)
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / x.shape[-1]
        inverse = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight.to(wide.dtype)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, inverse = ctx.saved_tensors
        grad = _widen(grads[0])
        normed = _widen(x) * inverse
        weighted = grad * weight.to(grad.dtype)
        mean = (weighted * normed).mean(dim=-1, keepdim=True)
        grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(dim=0)
        grad_x = torch.addcmul(weighted, normed, mean, value=-1.0).mul_(inverse)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


def _widen(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _as(weight: Tensor | None, like: Tensor) -> Tensor | None:
    return None if weight is None else weight.to(like.dtype)
