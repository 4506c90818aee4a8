"""Named places in a block: one list serves gates, probes and interventions.

A *site* is a place where a gate, a norm or an activation may sit. A *tap* is a place where a
tensor can be read, or replaced, by a forward hook. Every site `s` has two taps around it, `s`
(before) and `s_gated` (after), and a gate there adds `s_gate`, the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn


@dataclass(frozen=True)
class Site:
    """All that follows from a place in the layer, declared once.

    tensor: the tensor that passes: queries, keys, values, the heads' outputs y, or a whole branch.
    owner: the module that offers the site. doc: what a user reads.
    unreadable: gate inputs that do not exist yet, or not at all, where the site stands.
    folds_into: the module below a block whose output matrix can absorb a factor at the site; None
    where the softmax stands between.
    """

    tensor: Literal["q", "k", "v", "y", "branch"]
    doc: str
    owner: Literal["mixer", "block"] = "mixer"
    unreadable: tuple[str, ...] = ("lse",)
    folds_into: str | None = None

    @property
    def before_softmax(self) -> bool:
        """Whether a factor at the site changes attention scores, and so passes no matrix."""
        return self.tensor in ("q", "k")

    @property
    def cached(self) -> bool:
        """Whether the cache holds the tensor as it leaves the site."""
        return self.tensor in ("k", "v")


_LATER = ("q_rot", "lse")
"""What exists only after queries and keys have been rotated, or after the softmax."""

SITES: dict[str, Site] = {
    "q": Site("q", "queries, right after their projection (B,T,N,H)", unreadable=("q", *_LATER)),
    "k": Site("k", "keys, right after their projection (B,T,K,H); cached gated", unreadable=_LATER),
    "v": Site(
        "v",
        "values, right after their projection (B,T,K,H); cached gated",
        unreadable=_LATER,
        folds_into="attn.o_proj",
    ),
    "q_rot": Site(
        "q",
        "queries after QK-norm and RoPE (in Gated DeltaNet: at unit length) (B,T,N,H): scales "
        "the scores of a query",
        unreadable=_LATER,
    ),
    "k_rot": Site(
        "k",
        "keys after QK-norm and RoPE (in Gated DeltaNet: at unit length) (B,T,K,H): scales "
        "the scores of a key; cached gated",
    ),
    "sdpa": Site(
        "y",
        "output of the heads (of scaled dot-product attention, or of the mixer in its place) "
        "before they are merged (B,T,N,H)",
        unreadable=(),
        folds_into="attn.o_proj",
    ),
    "out": Site(
        "branch",
        "output of W_o, the branch that is added to the residual (B,T,D)",
        folds_into="attn.o_proj",
    ),
    "ffn": Site(
        "branch",
        "output of the feed-forward network (B,T,D)",
        owner="block",
        unreadable=("q", "q_rot", "lse"),
        folds_into="ffn",
    ),
}
"""Every site, in the order in which a forward passes them."""

ATTENTION_SITES = tuple(name for name, site in SITES.items() if site.owner == "mixer")
BLOCK_SITES = tuple(name for name, site in SITES.items() if site.owner == "block")
SITE_DOCS = {name: site.doc for name, site in SITES.items()}

BLOCK_TAPS = ("resid_in", "normed", "resid_mid", "ffn_in", "resid_out")
BACKEND_TAPS = ("scores", "probs", "lse")
"""Filled only by a backend that materialises them: scores and probs (B,N,T,S), lse (B,T,N)."""


def gate_module(site: str) -> str:
    """The name of the module at a site, below its block."""
    return f"attn.gates.{site}" if SITES[site].owner == "mixer" else f"gates.{site}"


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
        """The tensor as it leaves the tap `name`; without a hook on it nothing is called."""
        tap = self._modules[name]
        assert tap is not None
        return tap(tensor) if tap._forward_hooks or tap._forward_pre_hooks else tensor

    __call__ = forward


@dataclass
class Sources:
    """What a gate may read beside the tensor it modulates; filled as the forward goes on.

    x: the pre-normed input of the sublayer (B,T,D). resid: the raw residual (B,T,D).
    q: queries after their projection and the gate there, before norm and RoPE (B,T,N,H).
    q_rot: queries as they meet the keys, after norm, RoPE and the gate there (B,T,N,H).
    lse: log-sum-exp of the scaled scores (B,T,N).
    """

    x: Tensor
    resid: Tensor
    q: Tensor | None = None
    q_rot: Tensor | None = None
    lse: Tensor | None = None


@runtime_checkable
class Modifier(Protocol):
    """A config of what sits at a site."""

    @property
    def site(self) -> str:
        """The site's name."""
        ...

    def build(self, shape: Any) -> nn.Module:
        """The module for a site of this `gates.gate.SiteShape`."""
        ...


class Sites(nn.ModuleDict):
    """The modifiers (gate, norm, activation) of a sublayer by site, between their taps."""

    def __init__(
        self,
        names: tuple[str, ...],
        modifiers: Iterable[Modifier],
        shape_of: Callable[[str], Any],
    ):
        """names: the sites that the sublayer offers. shape_of: the `SiteShape` of a site."""
        super().__init__({m.site: m.build(shape_of(m.site)) for m in modifiers})
        assert {*self} <= {*names}, (names, tuple(self))
        self.taps = Taps(tuple(tap for name in names for tap in site_taps(name)))

    def __contains__(self, key: object) -> bool:
        return key != "taps" and super().__contains__(key)  # pyright: ignore[reportArgumentType]

    def forward(self, name: str, y: Tensor, sources: Sources) -> Tensor:
        """Pass `y` through the taps of site `name` and through what sits there."""
        y = self.taps(name, y)
        if name in self:
            y = self[name](y, sources, self.taps[f"{name}_gate"])
        return self.taps(f"{name}_gated", y)

    __call__ = forward
