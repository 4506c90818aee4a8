"""Base of mixers with a state: all of their forward except the recurrence."""

from __future__ import annotations

from torch import nn

from gatelm.nn.forward_state import Context
from gatelm.nn.gates.sites import Sources
from gatelm.nn.mixers.base import MixerSettings, Modifiers
from gatelm.nn.shapes import Float, Tensor


class RecurrentMixer(nn.Module):
    """Base module with projections, sites and cache around `mix`.

    A subclass registers its own modules between `__init__` and `add_output`, which gives parameters
    the order in which they are used.
    """

    o_proj: nn.Linear

    def __init__(self, cfg: MixerSettings, hidden_dim: int, layer_index: int):
        super().__init__()
        self.cfg, self.layer_index = cfg, layer_index
        heads = cfg.heads(hidden_dim)
        self.key_width, self.value_width = heads.k[1], heads.v[1]
        self.q_proj = nn.Linear(hidden_dim, heads.q[0] * self.key_width, bias=False)
        self.k_proj = nn.Linear(hidden_dim, heads.k[0] * self.key_width, bias=False)
        self.v_proj = nn.Linear(hidden_dim, heads.v[0] * self.value_width, bias=False)

    def add_output(self, hidden_dim: int, modifiers: Modifiers) -> None:
        """Register W_o and the sites, after all other modules."""
        num_heads, width = self.cfg.heads(hidden_dim).y
        self.o_proj = nn.Linear(num_heads * width, hidden_dim, bias=False)
        self.gates = self.cfg.build_sites(hidden_dim, modifiers)

    def forward(
        self, x: Float[Tensor, "B T D"], resid: Float[Tensor, "B T D"], context: Context
    ) -> Float[Tensor, "B T D"]:
        """Compute the branch of x, the normed residual; `resid` is the raw one."""
        sources = Sources(x=x, resid=resid)
        q = self.q_proj(x).unflatten(-1, (-1, self.key_width))
        k = self.k_proj(x).unflatten(-1, (-1, self.key_width))
        v = self.v_proj(x).unflatten(-1, (-1, self.value_width))
        q = sources.q = self.gates("q", q, sources)
        k = self.gates("k", k, sources)
        v = self.gates("v", v, sources)
        cache = context.cache
        states = () if cache is None else cache.states.get(self.layer_index, ())
        y, states = self.mix(q, k, v, sources, context, states)
        if cache is not None:
            cache.states[self.layer_index] = states
        y = self.o_proj(self.merge(self.gates("sdpa", y, sources)))
        return self.gates("out", y, sources)

    def mix(
        self,
        q: Float[Tensor, "B T K Q"],
        k: Float[Tensor, "B T k Q"],
        v: Float[Tensor, "B T n V"],
        sources: Sources,
        context: Context,
        states: tuple[Tensor, ...],
    ) -> tuple[Float[Tensor, "B T N V"], tuple[Tensor, ...]]:
        """Return the heads' outputs as they reach `sdpa`, and the states for the next call.

        states: of the call before; empty at the beginning of the text.
        """
        raise NotImplementedError

    def merge(self, y: Float[Tensor, "B T N V"]) -> Float[Tensor, "B T C"]:
        """Concatenate the heads, as W_o reads them."""
        return y.flatten(-2)
