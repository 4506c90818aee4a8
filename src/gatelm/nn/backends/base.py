"""What an attention backend is: one function and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gatelm.nn.masks import AttentionMask
from gatelm.nn.shapes import Float, Tensor

Observe = Callable[[str, Tensor], Tensor]
"""Passes a named intermediate through its tap."""


@dataclass(frozen=True)
class Capabilities:
    """lse: returns log-sum-exp. probs: fills the taps scores and probs. dropout: applies it."""

    lse: bool
    probs: bool
    dropout: bool


class AttentionOutput(NamedTuple):
    """y (B,T,N,H); lse (B,T,N) float32, or None from a backend without it."""

    y: Tensor
    lse: Tensor | None


class AttentionBackend(Protocol):
    """softmax(scale q k^T + mask) v for q (B,T,N,H), k and v (B,S,K,H), N a multiple of K."""

    capabilities: Capabilities

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K H"],
        *,
        mask: AttentionMask,
        window_tokens: int | None,
        scale: float,
        dropout: float,
        observe: Observe,
    ) -> AttentionOutput: ...
