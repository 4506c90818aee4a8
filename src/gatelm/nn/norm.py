"""Normalisation over the last axis, computed in float32."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config
from gatelm.nn.precision import to_float32
from gatelm.nn.shapes import Float, Tensor


class NormGateConfig(Config):
    """Gate of GatedNorm (arXiv 2601.22966): y sigmoid(W_up silu(W_down y)), y the norm's output."""

    rank: int = Field(default=16, ge=1)


class NormConfig(Config):
    """A norm over the last axis."""

    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    eps: float = 1e-6
    weight: Literal["plain", "zero_centred", "none"] = "plain"
    """plain: y*w, w starts at 1. zero_centred: y*(1+w), w starts at 0. none: no weight."""
    gate: NormGateConfig | None = None
    """A low-rank gate on the norm's output, read from it."""
    pre_affine: Literal["none", "vector"] = "none"
    """vector: a learned factor per channel before the norm, 1 at the start (PreAffine, arXiv
    2601.22966): large channels need no weight elsewhere to move the norm."""

    def build(self, dim: int) -> Norm:
        """Build the norm over `dim` channels."""
        return Norm(self, dim)

    def num_weights(self, dim: int) -> int:
        """Count the parameters of the norm over `dim` channels, including its gate."""
        vectors = (self.weight != "none") + (self.pre_affine == "vector")
        return vectors * dim + self.matrix_entries(dim)

    def matrix_entries(self, dim: int) -> int:
        """Count the entries of the gate's matrices, each of which costs two FLOPs a token."""
        return 0 if self.gate is None else 2 * dim * self.gate.rank


class Norm(nn.Module):
    """RMSNorm (arXiv 1910.07467) or LayerNorm without bias; float32 inside, input dtype out."""

    def __init__(self, cfg: NormConfig, dim: int):
        super().__init__()
        self.cfg, self.dim = cfg, dim
        self.weight = None if cfg.weight == "none" else nn.Parameter(torch.empty(dim))
        self.pre = nn.Parameter(torch.empty(dim)) if cfg.pre_affine == "vector" else None
        self.gate = NormGate(cfg.gate, dim) if cfg.gate else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the vectors to the identity; a gate's matrices are set with the others."""
        if self.pre is not None:
            self.pre.fill_(1.0)
        if self.weight is not None:
            self.weight.fill_(0.0 if self.cfg.weight == "zero_centred" else 1.0)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return the normed x."""
        y = self._norm(x) if self.pre is None else self._norm(to_float32(x) * self.pre).to(x.dtype)
        return y if self.gate is None else self.gate(y)

    def _norm(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        weight = self.weight
        if weight is not None and self.cfg.weight == "zero_centred":
            weight = 1.0 + weight
        if self.cfg.kind == "layernorm":
            inner = to_float32(x)
            y = F.layer_norm(inner, (self.dim,), _as(weight, inner), None, self.cfg.eps)
            return y.to(x.dtype)
        if x.device.type == "cpu" and weight is not None:
            if not torch.is_grad_enabled():
                return _cpu_rms_norm(x, weight, self.cfg.eps)[0]
            return _CpuRMSNorm.apply(x, weight, self.cfg.eps)  # pyright: ignore[reportReturnType]
        return rms_norm(x, weight, self.cfg.eps)


class NormGate(nn.Module):
    """Gate on a normed vector, which computes a score in (0, 1) for each channel from it."""

    def __init__(self, cfg: NormGateConfig, dim: int):
        super().__init__()
        self.down = nn.Linear(dim, cfg.rank, bias=False)
        self.up = nn.Linear(cfg.rank, dim, bias=False)

    def forward(self, y: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return y times its scores."""
        return y * self.up(F.silu(self.down(y))).sigmoid()


def rms_norm(x: Float[Tensor, "*B D"], weight: Tensor | None, eps: float) -> Float[Tensor, "*B D"]:
    """Compute x / rms(x) * weight by torch's own operator, which is one kernel on CUDA."""
    inner = to_float32(x)
    return F.rms_norm(inner, (x.shape[-1],), _as(weight, inner), eps).to(x.dtype)


def _cpu_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute x / rms(x) * weight in few passes over x; also returns 1 / rms(x)."""
    inner = to_float32(x)
    mean_square = torch.linalg.vector_norm(inner, dim=-1, keepdim=True).square_() / x.shape[-1]
    inverse = mean_square.add_(eps).rsqrt_()
    return (inner * inverse).mul_(weight.to(inner.dtype)).to(x.dtype), inverse


class _CpuRMSNorm(torch.autograd.Function):
    """`rms_norm` with a gradient of its own, because torch's takes many passes over x on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, inverse = _cpu_rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, inverse = ctx.saved_tensors
        grad = to_float32(grads[0])
        normed = to_float32(x) * inverse
        weighted = grad * weight.to(grad.dtype)
        mean = (weighted * normed).mean(dim=-1, keepdim=True)
        grad_weight = (grad * normed).reshape(-1, x.shape[-1]).sum(dim=0)
        grad_x = torch.addcmul(weighted, normed, mean, value=-1.0).mul_(inverse)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


def _as(weight: Tensor | None, like: Tensor) -> Tensor | None:
    return None if weight is None else weight.to(like.dtype)
