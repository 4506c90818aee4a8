"""The interface of attention backends: one function and its capabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor

Observe = Callable[[str, Tensor], Tensor]
"""Passes a named intermediate through its tap."""


@dataclass(frozen=True)
class Capabilities:
    """lse: returns log-sum-exp. probs: fills the taps scores and probs. dropout: applies it.

    backward: the types of devices on which there are gradients; None: all.
    """

    lse: bool
    probs: bool
    dropout: bool
    backward: tuple[str, ...] | None = None


class AttentionOutput(NamedTuple):
    """y (B,T,N,H); lse (B,T,N) float32, or None from a backend without it."""

    y: Tensor
    lse: Tensor | None


class AttentionBackend(Protocol):
    """softmax(scale q k^T + bias + mask) v for q (B,T,N,H), k and v (B,S,K,H), N a multiple of K.

    mask and pattern say which keys a query sees and what is added to its scores. lse: whether the
    log-sum-exp of the scores is wanted, with its gradient.
    """

    capabilities: Capabilities

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K V"],
        *,
        mask: AttentionMask,
        pattern: Pattern,
        scale: float,
        dropout: float,
        observe: Observe,
        lse: Literal["skip", "return"] = "skip",
    ) -> AttentionOutput: ...
