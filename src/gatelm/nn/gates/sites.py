"""Named places in a block: one list serves gates, probes and interventions.

A *site* is a place where a gate, a norm or an activation may sit. A *tap* is a place where a
tensor can be read, or replaced, by a forward hook. Every site `s` has two taps around it, `s`
(before) and `s_gated` (after), and a gate there adds `s_gate`, the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

ATTENTION_SITES = ("q", "k", "v", "q_rot", "k_rot", "sdpa", "out")
BLOCK_SITES = ("ffn",)
SITES = (*ATTENTION_SITES, *BLOCK_SITES)

SITE_DOCS = {
    "q": "queries, right after their projection (B,T,N,H)",
    "k": "keys, right after their projection (B,T,K,H); cached gated",
    "v": "values, right after their projection (B,T,K,H); cached gated",
    "q_rot": "queries after QK-norm and RoPE (in Gated DeltaNet: at unit length) (B,T,N,H): scales "
    "the scores of a query",
    "k_rot": "keys after QK-norm and RoPE (in Gated DeltaNet: at unit length) (B,T,K,H): scales "
    "the scores of a key; cached gated",
    "sdpa": "output of the heads (of scaled dot-product attention, or of the mixer in its place) "
    "before they are merged (B,T,N,H)",
    "out": "output of W_o, the branch that is added to the residual (B,T,D)",
    "ffn": "output of the feed-forward network (B,T,D)",
}

BLOCK_TAPS = ("resid_in", "normed", "resid_mid", "ffn_in", "resid_out")
BACKEND_TAPS = ("scores", "probs", "lse")
"""Filled only by a backend that materialises them: scores and probs (B,N,T,S), lse (B,T,N)."""


def site_taps(site: str) -> tuple[str, ...]:
    """The taps around one site."""
    return (site, f"{site}_gate", f"{site}_gated")


TAPS = (
    *BLOCK_TAPS,
    *(tap for site in SITES for tap in site_taps(site)),
    *BACKEND_TAPS,
)
"""Everything that can be measured, per layer."""


class Tap(nn.Identity):
    """An addressable identity: hooks on it see, and may replace, the tensor that passes."""


class Taps(nn.ModuleDict):
    """Taps by name. They add no state-dict keys."""

    def __init__(self, names: tuple[str, ...]):
        super().__init__({name: Tap() for name in names})

    def forward(self, name: str, tensor: Tensor) -> Tensor:
        return self[name](tensor)


@dataclass
class Sources:
    """What a gate may read beside the tensor it modulates; filled as the forward goes on.

    x: the pre-normed input of the sublayer (B,T,D). resid: the raw residual (B,T,D).
    q: queries after their projection and the gate there, before norm and RoPE (B,T,N,H).
    lse: log-sum-exp of the scaled scores (B,T,N).
    """

    x: Tensor
    resid: Tensor
    q: Tensor | None = None
    lse: Tensor | None = None


class Sites(nn.ModuleDict):
    """The modifiers (gate, norm, activation) of a sublayer by site, between their taps."""

    def __init__(self, names: tuple[str, ...], modifiers: Mapping[str, nn.Module]):
        assert set(modifiers) <= set(names), (names, tuple(modifiers))
        super().__init__(dict(modifiers))
        self.taps = Taps(tuple(tap for name in names for tap in site_taps(name)))

    def __contains__(self, key: object) -> bool:
        return key != "taps" and super().__contains__(key)  # pyright: ignore[reportArgumentType]

    def forward(self, name: str, y: Tensor, sources: Sources) -> Tensor:
        y = self.taps(name, y)
        if name in self:
            y = self[name](y, sources, self.taps[f"{name}_gate"])
        return self.taps(f"{name}_gated", y)
